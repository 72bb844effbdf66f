r"""Compute the stored reference values of the length statistics with mpmath.

Run as a script to complete `length_statistics_reference.json` (delete the file to start afresh);
the tests only read that file.

The method shares as little as possible with the library: textbook forms at 50 digits, whose
cancellation costs nothing there. With $\varphi=E\exp(-e^{\sigma g+u})$,
$a_k[f]=E[f\,e^{k(\sigma g+u)}\exp(-e^{\sigma g+u})]$ and $\chi=\exp(-\sum_fe^{s_f+u})$,

    E ln Z   = c + int (e^{-e^{u+c}} - chi phi^L) du
    Var ln Z = 2 int (u+c+gamma) (chi phi^L - e^{-e^{u+c}}) du - (E ln Z - c)^2
    E R      = L int a_1[s] chi phi^{L-1} + sum_f int s_f e^{s_f+u} chi phi^L,          R = sum p s
    E R^2, E R ln Z with the same integrands; H = ln Z - R.

Scores and u lie on one grid, so that exponentials are needed once for every t; two step sizes and
the total mass decide how many digits are stored. Two free tokens alone are compared with a direct
one-dimensional integral as well.
"""

import json
import math
import operator
import pathlib
import sys
import time
from typing import Any

import mpmath
from mpmath import mp, mpf

STORED = 20
BITS = 260
POINTS = [
    ("1", "2", ()),
    ("1", "100", ()),
    ("1", "100", ("5",)),
    ("2", "1000", ("9",)),
    ("4", "10", ()),
    ("4", "10", ("8",)),
    ("4", "1000", ("14",)),
    ("4", "1000", ()),
    ("2", "1000", ()),
    ("1", "1e6", ()),
    ("1", "1e6", ("15",)),
    ("1", "2", ("1",)),
    ("1.2", "20", ("2.5", "-1")),
    ("0.02", "2", ()),
    ("0.02", "1e12", ()),
    ("0.3", "1", ("1",)),
    ("0.3", "1e12", ()),
    ("2", "1e12", ("29",)),
    ("5.4", "1e12", ()),
    ("8", "1e12", ()),
    ("12", "3", ()),
    ("40", "2", ()),
]

Number = Any  # mpmath.mpf, which carries no annotations


def fixed_point(value: Number) -> int:
    return int(value * 2**BITS)


class Grid:
    """Transforms of one score on the nodes of u, for one (sigma, L, fixed scores)."""

    def __init__(self, sigma: str, length: str, fixed: tuple[str, ...], step: Number):
        self.sigma, self.length, self.step = mpf(sigma), mpf(length), step
        self.fixed = [mpf(score) for score in fixed]
        stride = max(1, math.ceil(mpf(1) / 3 / min(self.sigma, 1)))
        self.inner = step / stride  # scores need a finer grid where they are narrow
        low, high = self._range()
        self.u = [step * index for index in range(math.floor(low / step), math.ceil(high / step))]
        self.rows = self._transforms(stride)

    def _range(self) -> tuple[Number, Number]:
        """Return u outside which the integrands are below 1e-49 of their sum."""
        sigma, log_length, drop = self.sigma, mpmath.log(self.length), mpf(115)
        left = sigma * mpmath.sqrt(2 * (log_length + drop))
        if left > sigma**2:
            left = log_length + sigma**2 / 2 + drop
        high = sigma * mpmath.sqrt(2 * drop / self.length) + 6
        if self.length > 100:
            typical = sigma * mpmath.sqrt(2 * log_length)
            concentrated = -log_length - sigma**2 / 2 + 12 * sigma + 6
            high = max(concentrated, -typical + 5 * sigma + 6)
        top = max(self.fixed, default=-mpmath.inf)
        if self.fixed:
            left, high = max(left, top + drop), min(high, 6 - top)
        return -left - 4, high

    def _transforms(self, stride: int) -> list[list[Number]]:
        """Return phi, a_1[1], a_1[s], a_2[1], a_2[s], a_2[s^2] at every u."""
        sigma, h = self.sigma, self.inner
        first, last = (
            math.floor(-mpf(17) * sigma / h),
            math.ceil((17 * sigma + 2 * sigma**2) / h),
        )
        scores = [h * index for index in range(first, last)]
        scale = h / (sigma * mpmath.sqrt(2 * mp.pi))
        density = [fixed_point(scale * mpmath.exp(-((s / sigma) ** 2) / 2)) for s in scores]
        kernels = [density]
        for power in (1, 2):
            weights = [(s / sigma) ** power for s in scores]
            kernels.append([int(d * w) for d, w in zip(density, weights, strict=True)])
        begin = round(self.u[0] / h)
        count = stride * (len(self.u) - 1) + len(scores)
        zeroth, once, twice = [], [], []
        for index in range(begin + first, begin + first + count):
            x = mpmath.exp(h * index)
            left = mpmath.exp(-x)
            zeroth.append(fixed_point(left))
            once.append(fixed_point(x * left))
            twice.append(fixed_point(x * x * left))
        rows = []
        for place in range(len(self.u)):
            window = slice(stride * place, stride * place + len(scores))
            pairs = (
                (kernels[0], zeroth), (kernels[0], once), (kernels[1], once),
                (kernels[0], twice), (kernels[1], twice), (kernels[2], twice),
            )  # fmt: skip
            sums = [sum(map(operator.mul, kernel, signal[window])) for kernel, signal in pairs]
            rows.append([mpmath.ldexp(mpf(total), -2 * BITS) for total in sums])
        return rows

    def statistics(self) -> dict[str, Number]:
        sigma, length, step = self.sigma, self.length, self.step
        gamma = mp.euler
        c = mpmath.log(length * mpmath.exp(sigma**2 / 2) + sum(map(mpmath.exp, self.fixed)))
        names = ("mass", "zeroth", "first", "energy", "square", "cross", "participation")
        total = dict.fromkeys(names, mpf(0))
        weights = [mpf(0)] * len(self.fixed)
        for u, (phi, a1, a1g, a2, _, a2gg) in zip(self.u, self.rows, strict=True):
            v = u + c
            tokens = [mpmath.exp(score + u) for score in self.fixed]
            chi = mpmath.exp(-mpmath.fsum(tokens))
            power = chi * mpmath.exp(length * mpmath.log(phi)) if phi > 0 else mpf(0)
            rest = power - mpmath.exp(-mpmath.exp(v))
            total["zeroth"] += rest
            total["first"] += v * rest
            if power == 0:
                continue
            b1, b1s, b2 = a1 / phi, sigma * a1g / phi, a2 / phi
            own = mpmath.fsum(x * s for x, s in zip(tokens, self.fixed, strict=True))
            energy = length * b1s + own
            total["mass"] += power * (length * b1 + mpmath.fsum(tokens))
            total["energy"] += power * energy
            total["cross"] += power * energy * (-u - gamma)
            pairs = length * (length - 1) * b1s**2 + 2 * length * b1s * own + own**2
            total["square"] += power * (length * sigma**2 * a2gg / phi + pairs)
            total["participation"] += power * (length * b2 + mpmath.fsum(x * x for x in tokens))
            weights = [w + step * power * x for w, x in zip(weights, tokens, strict=True)]
        total = {name: step * value for name, value in total.items()}
        mean = c - total["zeroth"]
        variance = 2 * (total["first"] + gamma * total["zeroth"]) - total["zeroth"] ** 2
        energy_variance = total["square"] - total["energy"] ** 2
        covariance = total["cross"] - total["energy"] * mean
        return {
            "mass": total["mass"],
            "log_partition": mean,
            "log_partition_variance": variance,
            "entropy": mean - total["energy"],
            "entropy_variance": variance + energy_variance - 2 * covariance,
            "participation": total["participation"],
            "covariance": covariance / sigma,
            **{f"fixed_{index}": weight for index, weight in enumerate(weights)},
        }


def two_tokens(sigma: Number) -> dict[str, Number]:
    r"""Return the statistics of two tokens from the law of $g_1-g_2=\sqrt2x$.

    $\ln Z=\sigma(g_1+g_2)/2+\ln(2\cosh(\sigma x/\sqrt2))$, the first term independent of x.
    """

    def mean(function) -> Number:
        def integrand(x: Number) -> Number:
            weight = 2 * mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mp.pi)
            return weight * function(sigma * x / mpmath.sqrt(2))

        knots = [0, *(mpf(n) / (4 * sigma) for n in (1, 4, 16, 64) if n < 30 * sigma), 2, 5, 9, 14]
        return mpmath.quad(integrand, sorted(set(knots)))

    def entropy(half: Number) -> Number:
        p, q = 1 / (1 + mpmath.exp(-2 * half)), 1 / (1 + mpmath.exp(2 * half))
        return -p * mpmath.log(p) - q * mpmath.log(q)

    def partition(half: Number) -> Number:
        return half + mpmath.log(1 + mpmath.exp(-2 * half))

    first, second = mean(partition), mean(lambda half: partition(half) ** 2)
    flat = mpmath.log(2)
    short, shorts = (mean(lambda half, n=n: (flat - entropy(half)) ** n) for n in (1, 2))
    return {
        "log_partition": first,
        "log_partition_variance": sigma**2 / 2 + second - first**2,
        "entropy": flat - short,
        "entropy_variance": shorts - short**2,
        "participation": mean(lambda half: 1 - 1 / (2 * mpmath.cosh(half) ** 2)),
    }


def difference(one: dict[str, Number], other: dict[str, Number]) -> Number:
    return max(abs(one[name] / value - 1) for name, value in other.items())


def reference(sigma: str, length: str, fixed: tuple[str, ...]) -> dict[str, Any]:
    """Return one entry of the file, with the digits on which two grids agree.

    Grids for very sharp scores are long; two tokens need none.
    """
    entry: dict[str, Any] = {"sharpness": sigma, "length": length, "fixed": list(fixed)}
    if length == "2" and float(sigma) > 15.0:
        values = two_tokens(mpf(sigma))
        named = {name: mpmath.nstr(value, STORED) for name, value in values.items()}
        return entry | {"digits": STORED} | named
    coarse = Grid(sigma, length, fixed, mpf(1) / 8).statistics()
    fine = Grid(sigma, length, fixed, mpf(1) / 9).statistics()
    disagreement = max(difference(coarse, fine), abs(fine["mass"] - 1))
    if length == "2" and not fixed:
        disagreement = max(disagreement, difference(fine, two_tokens(mpf(sigma))))
    digits = min(STORED, int(-mpmath.log10(disagreement)) - 1) if disagreement else STORED
    named = {name: mpmath.nstr(value, digits) for name, value in fine.items()}
    return entry | {"digits": digits} | named


def main() -> None:
    mp.dps = 50
    target = pathlib.Path(__file__).with_suffix(".json")
    entries = json.loads(target.read_text(encoding="utf-8")) if target.exists() else []
    done = {(entry["sharpness"], entry["length"], tuple(entry["fixed"])) for entry in entries}
    for point in POINTS:
        if point in done:
            continue
        started = time.perf_counter()
        entries.append(reference(*point))
        seconds = time.perf_counter() - started
        sys.stderr.write(f"{point} {entries[-1]['digits']} digits {seconds:.0f} s\n")
        target.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
