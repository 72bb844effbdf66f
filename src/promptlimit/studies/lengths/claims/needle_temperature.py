"""Claim 5: a closed formula nearly keeps the weight of a needle, and exact roots keep it."""

import math
from collections.abc import Sequence

from promptlimit.lengths import inverse_temperature, length_statistics, log_n, needle_margin
from promptlimit.results import Length
from promptlimit.studies import Check, Claim, Setting

_CELLS = (
    (1.0, 6.0, 0.5, 1e2), (1.0, 6.0, 0.5, 1e4), (1.0, 6.0, 0.5, 1e6), (1.0, 6.0, 0.9, 1e5),
    (2.0, 11.0, 0.5, 8192.0), (2.0, 12.0, 0.3, 1e6), (0.5, 4.0, 0.7, 1e9),
)  # fmt: skip


def weight(b: float, sigma: float, margin: float, length: Length) -> float:
    """Return the mean weight of a needle at an inverse temperature."""
    statistics = length_statistics(b * sigma, length, fixed_scores=[b * margin])
    return float(statistics.fixed_weights[0])


def decide(setting: Setting) -> Sequence[Check]:
    """Return by how much formula, roots and log-n miss the weight that is to be kept."""
    cells = _CELLS[::2] if setting.quick else _CELLS
    by_formula, by_root = [], []
    for sigma, margin, target, length in cells:
        advantage = math.log(length) + math.log(target / (1.0 - target))
        if advantage > 0.8 * margin**2 / (2.0 * sigma**2):
            raise ValueError(f"the needle {margin} is too low for the formula")
        kept = inverse_temperature(sigma, length, margin=margin, weight=target)
        for b, column in ((kept.annealed, by_formula), (kept.value, by_root)):
            column.append(abs(weight(float(b), sigma, margin, length) / target - 1.0))
    margin = needle_margin(2.0, 8192, 0.5)
    lost = 0.5 - weight(float(log_n(131072, 8192)), 2.0, margin, 131072)
    return [
        Check(
            f"formula, {len(cells)} cases: largest relative error of the weight",
            max(by_formula),
            "<=",
            0.015,
            basis="the 1.5% of the statement",
        ),
        Check(
            "exact roots: largest relative error of the weight",
            max(by_root),
            "<=",
            1e-10,
            basis="tolerance of the root finder, $10^{-13}$ in $b$; margin 1000",
        ),
        Check(
            r"log-n rule at $\sigma = 2$, from 8192 to 131,072 tokens: weight lost",
            lost,
            ">=",
            0.15,
            role="control",
            basis="ten times the 1.5% that the formula may lose",
        ),
    ]


CLAIM = Claim(
    number=5,
    name="needle-temperature",
    statement=r"Let a needle be one token whose score is $\Delta$ above the mean of $L$ scores "
    r"of standard deviation $\sigma$. Multiplying all scores by "
    r"$b = 2a/(\Delta + \sqrt{\Delta^2 - 2\sigma^2a})$, with $a = \ln L + \ln(P/(1 - P))$, keeps "
    r"the weight of the needle within 1.5% of $P$ while $a \le 0.8\,\Delta^2/(2\sigma^2)$; rules "
    r"that grow like $\ln L$ do not.",
    reference="lengths.md, section 4",
    decide=decide,
)
