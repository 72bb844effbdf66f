"""Claim 3: along a fixed distance to freezing the entropy is a fixed share of ln L."""

import itertools
import math
from collections.abc import Sequence

from promptlimit.lengths import length_statistics
from promptlimit.studies import Check, Claim, Setting
from promptlimit.weights import weight_statistics


def share(s: float, length: float) -> float:
    r"""Return $E\,H/\ln L$ at $\sigma^2=s\ln L$."""
    sigma = math.sqrt(s * math.log(length))
    return float(length_statistics(sigma, length).entropy) / math.log(length)


def participation(s: float, length: float) -> float:
    r"""Return $E\,S_2$ at $\sigma^2=s\ln L$."""
    return float(weight_statistics(math.sqrt(s * math.log(length)), length).participation)


def decide(setting: Setting) -> Sequence[Check]:  # noqa: ARG001  # nothing is drawn
    r"""Return distances from 1 - s/2 below freezing: quick below s = 1, slow above.

    By the derivative of $E\ln Z$ the entropy is
    $E\,H=\ln L-\sigma^2/2+\sigma^2E\,S_2-\int_0^\sigma\sigma'E\,S_2\,d\sigma'$. $E\,S_2$ grows with
    the sharpness, so the share is above $1-s/2$ by at least half of $s\,E\,S_2$ and at most that.
    """
    slow = [share(1.5, length) for length in (1e6, 1e12, 1e24)]
    falls = max(later - earlier for earlier, later in itertools.pairwise(slow))
    frozen = [share(4.0, length) for length in (1e6, 1e24)]
    return [
        *(
            Check(
                f"$s = {s:g}$, $L = 10^{{{math.log10(length):g}}}$: distance of the share from "
                f"{1 - s / 2:g}",
                abs(share(s, length) - (1 - s / 2)),
                "<=",
                participation(s, length) * s,
                basis=r"theory: at most $s\,\mathbb{E}S_2$, an integral computed separately",
            )
            for s, length in ((0.5, 1e6), (1.0, 1e12), (1.5, 1e24))
        ),
        Check(
            r"$s = 0.5$, $L = 10^6$: $\mathbb{E}S_2$",
            participation(0.5, 1e6),
            "<=",
            2e-3,
            basis="theory: $L^{s-1} = 10^{-3}$ to leading order below $s = 2/3$; margin 2",
        ),
        Check(
            "$s = 1.5$, $L = 10^6, 10^{12}, 10^{24}$: largest change of the share from one "
            "length to the next, towards $1/4$",
            falls,
            "<=",
            -0.02,
            basis=r"theory: $s\,\mathbb{E}S_2 \sim 0.42\,s\,L^{-1/48}/\sigma$ falls by 0.033 "
            "from $10^{12}$ on; margin 1.5",
        ),
        Check(
            "$s = 4$: ratio of the share at $L = 10^{24}$ to that at $L = 10^6$",
            frozen[1] / frozen[0],
            "<=",
            0.5,
            basis=r"theory: the entropy stays finite, so its share falls like $1/\ln L$, to "
            "$1/4$; margin 2",
        ),
        Check(
            "$s = 1.5$, $L = 10^{24}$: distance of the share from $1 - s$",
            abs(slow[-1] + 0.5),
            ">=",
            0.5,
            role="control",
            basis="the limits $1/4$ and $-1/2$ are 0.75 apart; margin 1.5",
        ),
    ]


CLAIM = Claim(
    number=3,
    name="entropy-share",
    statement=r"If the sharpness grows with the length as $\sigma^2 = s\ln L$, the mean entropy "
    r"of the weights as a share of $\ln L$ tends to $1 - s/2$ for $s < 2$, and to 0 beyond. "
    r"Below $s = 1$ it converges quickly, above slowly: at $s = 1.5$ it is still 0.02 away at "
    r"$10^{24}$ tokens.",
    reference="lengths.md, section 2; known of the random energy model",
    decide=decide,
)
