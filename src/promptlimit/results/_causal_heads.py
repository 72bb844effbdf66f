"""What was measured of the heads of a causal model, by distance."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from promptlimit.results._heads import SHARPNESS_UNIT, AbstractAtlas
from promptlimit.results._result import derived, plain, variable


class CausalAtlas(AbstractAtlas):
    r"""Every head of a causal model on one text; arrays are [layers, heads] unless said otherwise.

    A query at position i has the prompt 0..i. Means are over queries, then over windows.

    Attributes:
        model: the name of the model.
        model_type: its family.
        window: tokens of a window.
        windows: number of windows.
        shortest: tokens of the shortest prompt that was looked at.
        every: one query in `every` was measured.
        sinks: tokens kept at the beginning.
        recent: tokens kept before the query, its own included.
        equivalent: tokens that take as much memory as the moments of the far tokens.
        band: tokens of a band of distance.
        rotary: whether keys were taken after rotation.
        parity: relative error of each layer's attention output rebuilt from its heads, [layers].
        between: variance of the mean scores of bands of distance.
        within: variance of the scores within bands; `sharpness` squared is the sum of both.
        sink_weight: softmax weight of the first tokens.
        recent_weight: softmax weight of the last ones; sinks that are recent count here too.
        effective_tokens: $1/\overline{S_2}$.
        entropy: $\overline H$ in nats; $e^{\overline H}$ is the other number of effective tokens.
        far_sharpness: standard deviation of the scores of far tokens, its root mean square over
            queries.
        mass_error: mean logarithm of the far tokens' mass from their moments, over the true one.
        r2: share of the head's variation over queries that is left when the far tokens are not
            there, by the way to do without them; no lower bound. NaN for a head that answers alike.
        r2_error: standard error of each `r2` over windows; infinite for one window.
        lengths: edges of the classes by length of prompt, [classes + 1].
        by_length: `between`, `within` and `entropy` by class, [layers, heads, classes].
        entropy_predicted: entropy in the last class predicted from the first, by the way to do so.
    """

    model: str
    model_type: str
    window: int
    windows: int
    shortest: int
    every: int
    sinks: int
    recent: int
    equivalent: int
    band: int
    rotary: bool
    parity: np.ndarray = variable("layer")
    between: np.ndarray = variable("layer", "head")
    within: np.ndarray = variable("layer", "head")
    sink_weight: np.ndarray = variable("layer", "head")
    recent_weight: np.ndarray = variable("layer", "head")
    effective_tokens: np.ndarray = variable("layer", "head")
    entropy: np.ndarray = variable("layer", "head")
    far_sharpness: np.ndarray = variable("layer", "head")
    mass_error: np.ndarray = variable("layer", "head")
    r2: Mapping[str, np.ndarray] = variable("layer", "head")
    r2_error: Mapping[str, np.ndarray] = variable("layer", "head")
    lengths: np.ndarray = variable("edge")
    by_length: Mapping[str, np.ndarray] = variable("layer", "head", "class")
    entropy_predicted: Mapping[str, np.ndarray] = variable("layer", "head")

    @property
    @derived("layer", "head", label="sharpness")
    def value(self) -> np.ndarray:
        """The sharpness."""
        return self.sharpness

    @property
    @derived("layer", "head")
    def sharpness(self) -> np.ndarray:
        r"""The standard deviation $\sigma$ of the scores, its root mean square over queries."""
        return np.sqrt(self.between + self.within)

    @property
    @derived("layer", "head")
    def between_share(self) -> np.ndarray:
        """The share of the scores' variance that distance alone explains."""
        variance = self.between + self.within
        return self.between / np.where(variance > 0, variance, np.nan)

    @property
    def entropy_tokens(self) -> np.ndarray:
        r"""$e^{\overline H}$, the effective number of tokens by entropy."""
        return np.exp(self.entropy)

    def median_r2(self) -> dict[str, float]:
        """Return the median R² over heads of each way to do without the far tokens."""
        return {name: float(np.nanmedian(value)) for name, value in self.r2.items()}

    def wins(self, way: str, other: str = "dropped") -> int:
        """Return for how many heads one way explains more than another."""
        return int((self.r2[way] > self.r2[other]).sum())

    def entropy_errors(self) -> dict[str, float]:
        """Return the mean absolute error over heads of each prediction of entropy, in nats."""
        there = self.by_length["entropy"][..., -1]
        return {
            name: float(np.nanmean(np.abs(predicted - there)))
            for name, predicted in self.entropy_predicted.items()
        }

    def rows(self) -> Iterator[dict[str, float | int]]:
        """Yield one flat record a head."""
        names = (
            "sharpness", "between", "within", "between_share", "sink_weight", "recent_weight",
            "effective_tokens", "entropy_tokens", "entropy", "far_sharpness", "mass_error",
        )  # fmt: skip
        columns = {name: getattr(self, name) for name in names}
        columns |= {f"r2_{name}": value for name, value in self.r2.items()}
        columns |= {f"r2_{name}_error": value for name, value in self.r2_error.items()}
        for name, values in self.by_length.items():
            for place, (low, high) in enumerate(itertools.pairwise(self.lengths)):
                columns[f"{name}_{low:.0f}_to_{high:.0f}"] = values[..., place]
        for name, values in self.entropy_predicted.items():
            columns[f"entropy_predicted_{name.replace(' ', '_')}"] = values
        for layer, head in np.ndindex(self.entropy.shape):
            numbers = {name: float(value[layer, head]) for name, value in columns.items()}
            yield {"layer": layer, "head": head, **numbers}

    def to_dict(self) -> dict[str, Any]:
        """Return settings, medians and one record a head; non-finite numbers become None."""
        return plain(
            {
                **self._attributes(),
                "sharpness": SHARPNESS_UNIT,
                "parity": self.parity,
                "lengths": self.lengths,
                "median_r2": self.median_r2(),
                "entropy_errors": self.entropy_errors(),
                "heads": list(self.rows()),
            }
        )
