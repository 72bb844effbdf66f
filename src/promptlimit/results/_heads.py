"""What was measured of the heads of a trained transformer, and of replacing them."""

import math
from collections.abc import Mapping

import numpy as np

from promptlimit.results._result import Result, axis, derived, variable

REGIMES = ("linear", "concentrating", "frozen")


class HeadAtlas(Result):
    r"""Every head of a model on one text; arrays are [layers, heads] unless said otherwise.

    Attributes:
        model: the name of the model's folder.
        model_type: its family, as in config.json.
        window: tokens of a prompt, L.
        windows: number of prompts.
        clusters: number of Gaussians in the limit "mixture".
        sinks: number of tokens that are atoms, in addition to one Gaussian, in the limit "sinks".
        causal: whether a query's prompt ends with the query.
        rotary: whether keys were taken after rotation, their law averaged over positions.
        parity: relative error of each layer's attention output rebuilt from its heads, [layers];
            NaN for heads brought by hand, with no output to compare with.
        quantiles: the shares of queries at which `sharpness` is given, [5].
        sharpness: $\sigma=\sqrt{q^\top\mathrm{Cov}(k)q}$ with the head's scale, the standard
            deviation of a query's scores: its quantiles over the queries of all prompts together
            (5, 25, 50, 75 and 95 per cent), [layers, heads, 5].
        linear: share of queries with $\sigma^2\le\frac23\ln L$.
        frozen: share of queries with $\sigma^2>2\ln L$.
        effective_tokens: $1/\overline{S_2}$, measured.
        effective_tokens_predicted: the same for Gaussian tokens of that sharpness.
        skewness: of the scores of one query, averaged over queries; 0 for Gaussian scores.
        kurtosis: the same for the excess kurtosis.
        r2: share of the head's variation over queries that a limit explains, by the limit's name.
            A limit may do worse than the mean answer: there is no lower bound. NaN for a head that
            answers every query alike.
        r2_error: standard error of `r2["gaussian"]` over windows; infinite for one window.
        error_predicted: share of the variation that independent Gaussian tokens would leave
            unexplained, exactly.
        length_needed: length from which a tenth is left unexplained, for Gaussian tokens; infinite
            beyond $2^{40}$.
        exponent: $\kappa$ of the squared gap's $L^{-\kappa}$ for Gaussian tokens and queries.
        matrix: $M$ of the Gaussian limit $q\mapsto Mq+b$ with the whole text's moments, the scale
            of the scores included, [layers, heads, e, d].
        shift: $b$, [layers, heads, e].
    """

    model: str
    model_type: str
    window: int
    windows: int
    clusters: int
    sinks: int
    causal: bool
    rotary: bool
    parity: np.ndarray = variable("layer")
    quantiles: np.ndarray = axis("quantile")
    sharpness: np.ndarray = variable("layer", "head", "quantile")
    linear: np.ndarray = variable("layer", "head")
    frozen: np.ndarray = variable("layer", "head")
    effective_tokens: np.ndarray = variable("layer", "head")
    effective_tokens_predicted: np.ndarray = variable("layer", "head")
    skewness: np.ndarray = variable("layer", "head")
    kurtosis: np.ndarray = variable("layer", "head")
    r2: Mapping[str, np.ndarray] = variable("layer", "head")
    r2_error: np.ndarray = variable("layer", "head")
    error_predicted: np.ndarray = variable("layer", "head")
    length_needed: np.ndarray = variable("layer", "head")
    exponent: np.ndarray = variable("layer", "head")
    matrix: np.ndarray = variable("layer", "head", "output", "query", bulk=True)
    shift: np.ndarray = variable("layer", "head", "output", bulk=True)

    @property
    @derived("layer", "head", label="median sharpness")
    def value(self) -> np.ndarray:
        """The median sharpness."""
        return self.median_sharpness

    @property
    def median_sharpness(self) -> np.ndarray:
        r"""The median of $\sigma$ over all queries: the order parameter of a head."""
        return self.sharpness[..., 2]

    @property
    @derived("layer", "head")
    def regime(self) -> np.ndarray:
        r"""The regimes: the median $\sigma$, squared, against $\frac23\ln L$ and $2\ln L$."""
        order = self.median_sharpness**2 / math.log(self.window)
        return np.select([order <= 2 / 3, order <= 2.0], REGIMES[:2], REGIMES[2])

    def order(self, limit: str = "gaussian") -> list[tuple[int, int]]:
        """Return the heads (layer, head) from the one a limit explains best to the worst."""
        heads = self.linear.shape[1]
        return [
            (int(index) // heads, int(index) % heads)
            for index in np.argsort(-self.r2[limit], axis=None, kind="stable")
        ]

    def median_r2(self, regime: str) -> dict[str, float]:
        """Return the median R² of every limit over the heads of a regime; nothing without heads."""
        chosen = (self.regime == regime) & np.isfinite(self.r2["gaussian"])
        if not chosen.any():
            return {}
        return {name: float(np.median(value[chosen])) for name, value in self.r2.items()}

    def rank_correlation(self, limit: str = "gaussian") -> float:
        """Return Spearman's correlation, over heads, of the median sharpness with a limit's R²."""
        varies = np.isfinite(self.r2[limit])
        ranks = [
            np.argsort(np.argsort(values[varies])).astype(float)
            for values in (self.median_sharpness, self.r2[limit])
        ]
        return float(np.corrcoef(np.stack(ranks))[0, 1]) if varies.sum() > 1 else math.nan


class CausalAtlas(Result):
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
    @derived("layer", "head")
    def entropy_tokens(self) -> np.ndarray:
        r"""$e^{\overline H}$, the effective number of tokens by entropy."""
        return np.exp(self.entropy)

    @property
    @derived()
    def median_r2(self) -> dict[str, float]:
        """The median R² over heads of each way to do without the far tokens."""
        return {name: float(np.nanmedian(value)) for name, value in self.r2.items()}

    def wins(self, way: str, other: str = "dropped") -> int:
        """Return for how many heads one way explains more than another."""
        return int((self.r2[way] > self.r2[other]).sum())

    @property
    @derived()
    def entropy_errors(self) -> dict[str, float]:
        """The mean absolute error over heads of each prediction of entropy, in nats."""
        there = self.by_length["entropy"][..., -1]
        return {
            name: float(np.nanmean(np.abs(predicted - there)))
            for name, predicted in self.entropy_predicted.items()
        }


class HeadReplacement(Result):
    """What a model's output does when more and more heads answer by a limit.

    Attributes:
        model: the name of the model's folder.
        measure: "cosine" of the embedding with that of the model as trained, or "loss" in nats.
        window: tokens of a prompt.
        sinks: number of tokens that are atoms, in addition to one Gaussian, in the limit "sinks".
        read_before: how many of the windows the atlas had read, when both were given one text.
        counts: numbers of heads replaced, [n].
        curves: by name, one value for every count and window, [n, windows].
        baseline: what an unrelated answer would give: the mean cosine of different windows'
            embeddings, or the loss of a uniform guess.
    """

    model: str
    measure: str
    window: int
    sinks: int
    read_before: int
    counts: np.ndarray = axis("count")
    curves: Mapping[str, np.ndarray] = variable("count", "window")
    baseline: float

    @property
    @derived()
    def is_cosine(self) -> bool:
        """Whether `measure` is "cosine"."""
        return self.measure == "cosine"
