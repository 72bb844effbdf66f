r"""Compute the stored reference values of the weight statistics with mpmath.

Run as a script to complete `weight_statistics_reference.json` (delete the file to start over);
the tests only read that file.

The method shares as little as possible with the library. All set partitions of the factors are
enumerated by a program instead of by hand; a block's transform $E[P(g-\sigma)F_k(\sigma g+u)]$,
$F_k(t)=e^{kt}\exp(-e^t)$, is reduced by Stein's lemma to the transforms $\alpha_k=E F_k$,

    E[h P(h) F_k] = E[P'(h) F_k] + sigma (k-1) E[P(h) F_k] - sigma E[P(h) F_{k+1}],  h = g - sigma,

and the outer integral is done by Gauss-Legendre panels. Cancellation costs nothing at 50 digits.
Two grids (of both integrals) must agree, and the total mass must be one, to the digits stored.
For two tokens everything is compared with a direct one-dimensional integral as well.
"""

import json
import math
import operator
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import mpmath
from mpmath import mp, mpf

DIGITS = 50
STORED = 25
HIGHEST = 8
BITS = 560
POINTS = [
    ("0.01", "2"),
    ("0.01", "1e12"),
    ("0.3", "3"),
    ("0.3", "1e30"),
    ("1", "2"),
    ("1", "10"),
    ("1.5", "1000"),
    ("4", "3"),
    ("4", "1e18"),
    ("8", "10"),
    ("40", "2"),
    ("40", "1e30"),
    ("4", "1e30"),
    ("8", "1e12"),
    ("12", "1e30"),
    ("40", "1000"),
]

Number = Any  # mpmath.mpf, which carries no annotations
Polynomial = list[Number]  # coefficients of powers of h = g - sigma, lowest first
Factor = tuple[int, Polynomial]  # sum over tokens of p^k P(h)


def set_partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """Yield all partitions of a list into blocks."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for partition in set_partitions(rest):
        yield [[first], *partition]
        for index, block in enumerate(partition):
            yield [*partition[:index], [first, *block], *partition[index + 1 :]]


def product(one: Polynomial, other: Polynomial) -> Polynomial:
    result = [mpf(0)] * (len(one) + len(other) - 1)
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            result[i + j] += a * b
    return result


def reduced(k: int, polynomial: Polynomial, sigma: Number) -> dict[int, Number]:
    """Return coefficients r with E[P(h) F_k] = sum_n r[n] E F_n."""
    if len(polynomial) == 1:
        return {k: polynomial[0]}
    quotient = polynomial[1:]
    derivative = [i * c for i, c in enumerate(quotient)][1:] or [mpf(0)]
    total = {k: polynomial[0]}
    parts = (
        (mpf(1), reduced(k, derivative, sigma)),
        (sigma * (k - 1), reduced(k, quotient, sigma)),
        (-sigma, reduced(k + 1, quotient, sigma)),
    )
    for factor, part in parts:
        for n, value in part.items():
            total[n] = total.get(n, mpf(0)) + factor * value
    return total


class Prompt:
    """The transforms of one score at the nodes of the outer integral, for one (sigma, L)."""

    def __init__(self, sigma: str, length: str, nodes: int, step: Number):
        self.sigma, self.length = mpf(sigma), mpf(length)
        step = min(step, 3 * step * self.sigma)
        self.panel_steps = int(mpf("2.25") * max(1, self.sigma / 10) / step)
        width = self.panel_steps * step
        low, high = self._range()
        panels = range(math.floor(low / width), math.ceil(high / width) + 1)
        self.weights: list[Number] = []
        self.alpha: list[list[Number]] = []
        for position, weight in legendre(nodes):
            offset = (position + 1) / 2 * width
            self._add_nodes(offset, panels, step)
            self.weights += [weight / 2 * width] * len(panels)
        self.log_phi = [mpmath.log(row[0]) for row in self.alpha]
        self._powers: dict[int, list[Number]] = {}

    def _range(self) -> tuple[Number, Number]:
        """Return the range of u outside which the integrands are below 1e-44 of their sum."""
        sigma, log_length, drop = self.sigma, mpmath.log(self.length), mpf(104)
        left = sigma * mpmath.sqrt(2 * (log_length + drop))
        if left > sigma**2:
            left = log_length + sigma**2 / 2 + drop
        tail = mpmath.sqrt(2 * drop / self.length)
        typical = mpmath.sqrt(2 * log_length) if self.length > 100 else mpf(0)
        concentrated = -log_length - sigma**2 / 2 + 16 * sigma + 8
        frozen = -sigma * typical + sigma * max(tail, 5) + 8
        return -left - 5, max(concentrated, frozen) if self.length > 100 else frozen

    def _add_nodes(self, offset: Number, panels: range, step: Number) -> None:
        """Append E F_k(sigma g + u), k = 0..8, for the nodes `offset + panel * width`.

        Below t = -250 all F_k with k > 0 vanish and F_0 is 1, to more digits than are carried.
        Sums run over integers, in units of 2^-BITS: ten times faster than over floats.
        """
        first, density, cumulated = self._density(step)
        top, bottom = int(6 / step), int(-250 / step)
        low = max(panels[0] * self.panel_steps + first, bottom)
        damped = [damped_powers(offset + index * step) for index in range(low, top)]
        columns = [[row[k] for row in damped] for k in range(HIGHEST + 1)]
        for panel in panels:
            start = max(panel * self.panel_steps + first, bottom)
            shift = start - panel * self.panel_steps - first
            kernel = density[shift : shift + max(top - start, 0)]
            window = slice(start - low, start - low + len(kernel))
            sums = [sum(map(operator.mul, kernel, column[window])) for column in columns]
            sums[0] += cumulated[shift] << BITS
            self.alpha.append([mpmath.ldexp(mpf(total), -2 * BITS) for total in sums])

    def _density(self, step: Number) -> tuple[int, list[int], list[int]]:
        """Return the law of sigma g on the grid, its first index, and its sums from the left."""
        sigma = self.sigma
        first = math.floor(-mpf(18) * sigma / step)
        last = math.ceil(sigma * (mpf(18) + HIGHEST * sigma) / step)
        last = min(last, int(1400 / step))
        scale = step / (sigma * mpmath.sqrt(2 * mp.pi))
        density = [
            fixed(scale * mpmath.exp(-((index * step / sigma) ** 2) / 2))
            for index in range(first, last)
        ]
        cumulated = [0]
        for value in density:
            cumulated.append(cumulated[-1] + value)
        return first, density, cumulated

    def mean(self, factors: list[Factor]) -> Number:
        """Return the mean over prompts of a product of sums over tokens."""
        total = mpf(0)
        for partition in set_partitions(list(range(len(factors)))):
            blocks = []
            for block in partition:
                power, polynomial = 0, [mpf(1)]
                for index in block:
                    power += factors[index][0]
                    polynomial = product(polynomial, factors[index][1])
                blocks.append(reduced(power, polynomial, self.sigma))
            total += self._bracket(blocks)
        return total / mpmath.factorial(sum(k for k, _ in factors) - 1)

    def _bracket(self, blocks: list[dict[int, Number]]) -> Number:
        count = len(blocks)
        falling = mpf(1)
        for taken in range(count):
            falling *= self.length - taken
        if falling == 0:
            return mpf(0)
        if count not in self._powers:
            self._powers[count] = [
                weight * mpmath.exp((self.length - count) * log)
                for weight, log in zip(self.weights, self.log_phi, strict=True)
            ]
        total = mpf(0)
        for row, weight in zip(self.alpha, self._powers[count], strict=True):
            if weight < mpf(10) ** (-400):
                continue
            term = weight
            for block in blocks:
                term *= mpmath.fsum(value * row[n] for n, value in block.items() if value)
            total += term
        return falling * total


def fixed(value: Number) -> int:
    return int(value * 2**BITS)


def damped_powers(t: Number) -> list[int]:
    """Return F_0(t), ..., F_8(t) in units of 2^-BITS."""
    exponential = mpmath.exp(t)
    powers = [mpmath.exp(-exponential)]
    for _ in range(HIGHEST):
        powers.append(powers[-1] * exponential)
    return [fixed(power) for power in powers]


def legendre(count: int) -> list[tuple[Number, Number]]:
    """Return nodes and weights of the Gauss-Legendre rule by Newton's method."""
    rule = []
    for i in range(count):
        x = mpmath.cos(mp.pi * (i + mpf(3) / 4) / (count + mpf(1) / 2))
        slope = mpf(1)
        for _ in range(100):
            before, value = mpf(1), x
            for n in range(2, count + 1):
                before, value = value, ((2 * n - 1) * x * value - (n - 1) * before) / n
            slope = count * (x * value - before) / (x * x - 1)
            change = value / slope
            x -= change
            if abs(change) < mpf(10) ** (5 - mp.dps):
                break
        rule.append((x, 2 / ((1 - x * x) * slope**2)))
    return rule


def statistics(prompt: Prompt) -> dict[str, Number]:
    """Return all statistics from their definitions, with Y = sum p (h^2-1), B = sum p h."""
    one, h, square = [mpf(1)], [mpf(0), mpf(1)], [mpf(0), mpf(0), mpf(1)]
    y: Factor = (1, [mpf(-1), mpf(0), mpf(1)])
    b: Factor = (1, h)
    s2: Factor = (2, one)
    mean = prompt.mean
    participation, cubic = mean([s2]), mean([(3, one)])
    participation_square = mean([s2, s2])
    spread = mean([y, y]) - 2 * mean([y, b, b]) + mean([b, b, b, b])
    residual = mean([(2, square)]) - 2 * mean([(2, h), b]) + mean([s2, b, b])
    return {
        "mass": mean([(1, one)]),
        "participation": participation,
        "shrinkage": 1 - participation,
        "mean_score": prompt.sigma + mean([b]),
        "score_error": mean([b, b]),
        "cubic_participation": cubic,
        "participation_square": participation_square,
        "spread_error": spread,
        "residual": residual,
        "spread_participation": mean([y, s2]) - mean([s2, b, b]),
        "coupling": participation - 2 * cubic + participation_square,
    }


def two_tokens(sigma: Number) -> dict[str, Number]:
    r"""Return the statistics for L = 2 from the law of the difference $g_1-g_2=\sqrt2x$.

    With $p=1/(1+e^{-\sigma\sqrt2x})$ and $q=1-p$: $A=(g_1+g_2)/2+(p-q)x/\sqrt2$, whose first
    term is an independent N(0, 1/2), and $\sum p(g-A)^2=2pqx^2$.
    """
    root = mpmath.sqrt(2)

    def mean(function) -> Number:
        def integrand(x: Number) -> Number:
            p = 1 / (1 + mpmath.exp(-sigma * root * x))
            weight = mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mp.pi)
            return weight * (function(p, 1 - p, x) + function(1 - p, p, -x))

        knots = [0, *(mpf(n) / (4 * sigma) for n in (1, 4, 16, 48) if n < 40 * sigma), 2, 5, 10, 17]
        return mpmath.quad(integrand, sorted(set(knots)))

    return {
        "participation": mean(lambda p, q, _: p**2 + q**2),
        "shrinkage": mean(lambda p, q, _: 2 * p * q),
        "mean_score": mean(lambda p, q, x: (p - q) * x / root),
        "score_error": mean(lambda p, q, x: ((p - q) * x / root - sigma) ** 2 + mpf(1) / 2),
        "cubic_participation": mean(lambda p, q, _: p**3 + q**3),
        "participation_square": mean(lambda p, q, _: (p**2 + q**2) ** 2),
        "spread_error": mean(lambda p, q, x: (2 * p * q * x**2 - 1) ** 2),
        "residual": mean(lambda p, q, x: 4 * p**2 * q**2 * x**2),
        "spread_participation": mean(lambda p, q, x: (2 * p * q * x**2 - 1) * (p**2 + q**2)),
        "coupling": mean(lambda p, q, _: 4 * p**2 * q**2),
    }


def difference(one: dict[str, Number], other: dict[str, Number]) -> Number:
    return max(abs(one[name] / value - 1) for name, value in other.items())


def reference(sigma: str, length: str) -> dict[str, Any]:
    """Return one entry of the file, with the digits on which the two grids agree."""
    coarse = statistics(Prompt(sigma, length, 30, mpf(1) / 10))
    fine = statistics(Prompt(sigma, length, 36, mpf(9) / 100))
    disagreement = max(difference(coarse, fine), abs(fine["mass"] - 1))
    if length == "2":
        disagreement = max(disagreement, difference(fine, two_tokens(mpf(sigma))))
    digits = min(STORED, int(-mpmath.log10(disagreement)) - 1) if disagreement else STORED
    entry: dict[str, Any] = {"sharpness": sigma, "length": length, "digits": digits}
    return entry | {name: mpmath.nstr(value, digits) for name, value in fine.items()}


def main() -> None:
    mp.dps = DIGITS + 15
    target = pathlib.Path(__file__).with_suffix(".json")
    entries = json.loads(target.read_text(encoding="utf-8")) if target.exists() else []
    done = {(entry["sharpness"], entry["length"]) for entry in entries}
    for sigma, length in POINTS:
        if (sigma, length) in done:
            continue
        started = time.perf_counter()
        entries.append(reference(sigma, length))
        seconds = time.perf_counter() - started
        sys.stderr.write(f"{sigma:>5} {length:>5} {entries[-1]['digits']} digits {seconds:.0f} s\n")
        target.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
