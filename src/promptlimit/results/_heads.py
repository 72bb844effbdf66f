"""Results on the heads of a trained transformer: atlases, and curves of replaced heads."""

import abc
import math
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from promptlimit._text import aligned
from promptlimit.results._result import Result, axis, derived, variable

REGIMES = ("linear", "concentrating", "frozen")
_SUMMED = ("uniform", "gaussian", "sinks", "mixture", "affine")
_WAYS = {
    "dropped": "dropped, with more recent tokens kept",
    "mean": "mean value, true mass",
    "gaussian": "moments",
    "gaussian_finite": "moments, finite length",
    "gaussian_mass": "moments, true mass",
}
"""The description of each approximation in a `CausalAtlas`, by name."""


class Column(NamedTuple):
    """A column of the table of heads.

    Attributes:
        heading: the heading of the column.
        name: the name of the column in `rows`.
        digits: 2 for two decimals, 3 for three significant digits, 0 for names and counts.
    """

    heading: str
    name: str
    digits: int = 0


class Summary(NamedTuple):
    """A small table over all heads, given by its headings and rows."""

    headings: tuple[str, ...]
    rows: list[tuple[str | int | float, ...]]


class AbstractAtlas(Result, abc.ABC):
    r"""Statistics of every head of a model on one text; arrays are [layers, heads] by default.

    Attributes:
        columns: the columns of the table of heads.
        model: the name of the model.
        model_type: the family of the model, as in config.json.
        window: L, the number of tokens of a prompt.
        windows: the number of prompts.
        sinks: the number of sinks, which are tokens that approximations of a head keep exactly.
        rotary: whether the model rotates queries and keys by their position. If it does, all
            statistics are those of rotated queries and keys.
        parity: the relative error of each layer's attention output when rebuilt from its heads,
            [layers]; NaN for heads built by hand.
        effective_tokens: $1/\overline{S_2}$, with $\overline{S_2}$ the mean over queries of the sum
            of squared softmax weights.
        r2: $R^2$ of each approximation of the head, by name: the fraction of the variance of the
            output over queries that the approximation explains. $R^2$ is negative if the
            approximation is worse than the mean output, and NaN if the output is the same at every
            query.
        r2_error: the standard error of each `r2` over windows; infinite for one window.
    """

    columns: ClassVar[tuple[Column, ...]]

    model: str
    model_type: str
    window: int
    windows: int
    sinks: int
    rotary: bool
    parity: np.ndarray = variable("layer")
    effective_tokens: np.ndarray = variable("layer", "head")
    r2: Mapping[str, np.ndarray] = variable("layer", "head")
    r2_error: Mapping[str, np.ndarray] = variable("layer", "head")

    @property
    @abc.abstractmethod
    def outcome(self) -> str:
        """The result in a few words."""

    @abc.abstractmethod
    def summary(self) -> Summary:
        """Return a table of the R² of each approximation over all heads."""

    @abc.abstractmethod
    def notes(self) -> list[str]:
        """Return sentences that describe the measurement and statistics over all heads."""

    def text(self) -> str:
        """Return the table of heads, the summary and the notes."""
        columns = self.columns
        rows = [[_cell(row[c.name], c.digits) for c in columns] for row in self.rows()]
        headings, summary = self.summary()
        return "\n".join(
            [
                f"{self.windows} x {self.window} tokens",
                aligned([column.heading for column in columns], rows),
                aligned(headings, [[_cell(value, 2) for value in row] for row in summary]),
                *self.notes(),
            ]
        )


class HeadAtlas(AbstractAtlas):
    r"""Every head of a model on one text, compared with approximations of the head.

    An approximation replaces the prompt of a head by a simpler law. Its name in `r2` is "uniform",
    "gaussian", "gaussian_finite", "sinks", "mixture", "corpus", "corpus_finite" or "affine"
    (docs/heads-theory.md). `AbstractAtlas` describes the common attributes.

    Attributes:
        clusters: the number of Gaussians in the approximation "mixture".
        causal: whether the prompt of a query ends at the position of the query.
        quantiles: the probabilities of the quantiles in `sharpness`, [5].
        sharpness: the quantiles (5, 25, 50, 75 and 95 per cent) of $\sigma$ over the queries of all
            prompts, [layers, heads, 5]. $\sigma=c\sqrt{q^\top\mathrm{Cov}(k)q}$ is the standard
            deviation of the scores of a query $q$, with keys $k$ and the scale $c$.
        linear_share: the fraction of queries with $\sigma^2\le\frac23\ln L$, where $L$ is the
            number of tokens to which the query attends.
        frozen_share: the fraction of queries with $\sigma^2>2\ln L$, with the same $L$.
        effective_tokens_predicted: `effective_tokens`, predicted from the sharpness of each query
            as if tokens were independent and Gaussian.
        skewness: the skewness of the scores of one query, averaged over queries.
        kurtosis: the excess kurtosis of the scores of one query, averaged over queries.
        error_predicted: the fraction of the variance of the output that the approximation
            "gaussian" would leave unexplained if tokens were independent and Gaussian.
        length_needed: the length at which the predicted error of "gaussian" is a tenth of the
            variance of the output of "gaussian" over queries; at least 16, and infinite beyond
            $2^{40}$.
        exponent: $\kappa$, where the gap falls like $L^{-\kappa}$ for Gaussian tokens and queries
            with the moments of the head.
        matrix: the matrix $M$ of the Gaussian limit $q\mapsto Mq+b$ with the moments of the whole
            text, [layers, heads, e, d]. It includes the scale of the scores.
        shift: the vector $b$ of this limit, [layers, heads, e].
    """

    columns: ClassVar[tuple[Column, ...]] = (
        Column("layer", "layer"), Column("head", "head"), Column("regime", "regime"),
        Column("σ", "value", 3), Column("σ 5%", "sharpness[0.05]", 3),
        Column("σ 95%", "sharpness[0.95]", 3), Column("tokens", "effective_tokens", 3),
        Column("predicted", "effective_tokens_predicted", 3),
        Column("R² uniform", "r2.uniform", 2), Column("Gaussian", "r2.gaussian", 2),
        Column("predicted", "r2_predicted", 2), Column("sinks", "r2.sinks", 2),
        Column("mixture", "r2.mixture", 2), Column("affine, fitted", "r2.affine", 2),
        Column("length", "length_needed", 3),
    )  # fmt: skip

    clusters: int
    causal: bool
    quantiles: np.ndarray = axis("quantile")
    sharpness: np.ndarray = variable("layer", "head", "quantile")
    linear_share: np.ndarray = variable("layer", "head")
    frozen_share: np.ndarray = variable("layer", "head")
    effective_tokens_predicted: np.ndarray = variable("layer", "head")
    skewness: np.ndarray = variable("layer", "head")
    kurtosis: np.ndarray = variable("layer", "head")
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
        r"""The median of $\sigma$ over all queries."""
        return self.sharpness[..., 2]

    @property
    @derived("layer", "head")
    def regime(self) -> np.ndarray:
        r"""The regime of each head: "linear", "concentrating" or "frozen".

        A head is linear if $\sigma^2\le\frac23\ln L$ and frozen if $\sigma^2>2\ln L$, where
        $\sigma$ is its median sharpness and L the number of tokens of a prompt.
        """
        order = self.median_sharpness**2 / math.log(self.window)
        return np.select([order <= 2 / 3, order <= 2.0], REGIMES[:2], REGIMES[2])

    @property
    @derived("layer", "head")
    def r2_predicted(self) -> np.ndarray:
        """The R² of "gaussian", predicted as if tokens were independent and Gaussian."""
        return 1.0 - self.error_predicted

    @property
    def outcome(self) -> str:
        return ", ".join(f"{(self.regime == regime).sum()} {regime}" for regime in REGIMES)

    def summary(self) -> Summary:
        """Return the number of heads and the median R² of approximations in each regime."""
        rows: list[tuple[str | int | float, ...]] = []
        for regime in REGIMES:
            medians = self.median_r2(regime)
            if medians:
                count = int((self.regime == regime).sum())
                rows.append((regime, count, *(medians[name] for name in _SUMMED)))
        return Summary(("regime", "heads", *(f"median R² {name}" for name in _SUMMED)), rows)

    def notes(self) -> list[str]:
        ranks = [f"{name} {self.rank_correlation(name):.2f}" for name in ("gaussian", "sinks")]
        rotary = "Keys are taken after rotation; a law is averaged over the prompt's positions."
        return [
            f"Rank correlation of sharpness and R²: {', '.join(ranks)}. Median standard error of "
            f"the Gaussian R²: {np.median(self.r2_error['gaussian']):.2g}.",
            *([rotary] if self.rotary else []),
        ]

    def order(self, limit: str = "gaussian") -> list[tuple[int, int]]:
        """Return the pairs (layer, head) in decreasing order of the R² of an approximation.

        Args:
            limit: the name of the approximation.
        """
        heads = self.linear_share.shape[1]
        return [
            (int(index) // heads, int(index) % heads)
            for index in np.argsort(-self.r2[limit], axis=None, kind="stable")
        ]

    def median_r2(self, regime: str) -> dict[str, float]:
        """Return the median R² of each approximation over the heads of a regime, {} for no head."""
        chosen = (self.regime == regime) & np.isfinite(self.r2["gaussian"])
        if not chosen.any():
            return {}
        return {name: float(np.median(value[chosen])) for name, value in self.r2.items()}

    def rank_correlation(self, limit: str = "gaussian") -> float:
        """Return Spearman's rank correlation, over heads, of median sharpness and R².

        Args:
            limit: the name of the approximation.
        """
        varies = np.isfinite(self.r2[limit])
        ranks = [
            np.argsort(np.argsort(values[varies])).astype(float)
            for values in (self.median_sharpness, self.r2[limit])
        ]
        return float(np.corrcoef(np.stack(ranks))[0, 1]) if varies.sum() > 1 else math.nan


class CausalAtlas(AbstractAtlas):
    r"""Every head of a causal model on one text: statistics by distance, and replaced far tokens.

    The prompt of a query at position i consists of tokens 0..i. Its first `sinks` tokens (sinks)
    and its last `recent` tokens (recent tokens) are kept exactly; the tokens between them are
    called far. An approximation of the head replaces the far tokens. Its name in `r2` is "dropped",
    "mean", "gaussian", "gaussian_finite" or "gaussian_mass" (docs/heads-theory.md). A band consists
    of the tokens at `band` consecutive distances from the query. All statistics are means over
    queries and windows. `AbstractAtlas` describes the common attributes.

    Attributes:
        shortest: the number of tokens of the shortest measured prompt.
        every: the number of positions from one measured query to the next.
        recent: the number of recent tokens, including the token at the position of the query.
        equivalent_tokens: the number of tokens that take as much memory as the moments of the far
            tokens.
        band: the number of distances in a band.
        between: the variance of the mean scores of the bands.
        within: the variance of the scores within bands.
        sink_weight: the total softmax weight of the sinks.
        recent_weight: the total softmax weight of the recent tokens.
        entropy: $\overline H$, the mean entropy of the softmax weights, in nats.
        far_sharpness: the standard deviation of the scores of far tokens, as a root mean square
            over queries.
        mass_error: the mean of $\ln(\hat Z_f/Z_f)$. Here $Z_f$ is the sum of $e^s$ over the scores
            $s$ of the far tokens, and $\hat Z_f$ its approximation by the mean and variance of
            these scores.
        lengths: the edges of the classes of prompt lengths, [classes + 1].
        by_length: `between`, `within` and `entropy` for each class of lengths,
            [layers, heads, classes].
        entropy_predicted: the entropy in the last class, predicted from the first class by the
            methods "no change", "more tokens", "gaussian" and "gaussian far".
    """

    columns: ClassVar[tuple[Column, ...]] = (
        Column("layer", "layer"), Column("head", "head"), Column("σ", "sharpness", 3),
        Column("between bands", "between_share", 2), Column("sinks", "sink_weight", 2),
        Column("recent", "recent_weight", 2), Column("1/S₂", "effective_tokens", 3),
        Column("e^H", "entropy_tokens", 3), Column("σ far", "far_sharpness", 3),
        Column("R² dropped", "r2.dropped", 2), Column("mean", "r2.mean", 2),
        Column("moments", "r2.gaussian", 2), Column("finite", "r2.gaussian_finite", 2),
        Column("true mass", "r2.gaussian_mass", 2),
    )  # fmt: skip

    shortest: int
    every: int
    recent: int
    equivalent_tokens: int
    band: int
    between: np.ndarray = variable("layer", "head")
    within: np.ndarray = variable("layer", "head")
    sink_weight: np.ndarray = variable("layer", "head")
    recent_weight: np.ndarray = variable("layer", "head")
    entropy: np.ndarray = variable("layer", "head")
    far_sharpness: np.ndarray = variable("layer", "head")
    mass_error: np.ndarray = variable("layer", "head")
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
        r"""The root mean square over queries of $\sigma$, the standard deviation of the scores."""
        return np.sqrt(self.between + self.within)

    @property
    @derived("layer", "head")
    def between_share(self) -> np.ndarray:
        """The share of `between` in the variance of the scores."""
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
        """The median R² over heads of each approximation."""
        return {name: float(np.nanmedian(value)) for name, value in self.r2.items()}

    def wins(self, way: str, other: str = "dropped") -> int:
        """Return the number of heads for which approximation `way` has a larger R² than `other`."""
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

    @property
    def outcome(self) -> str:
        wins = self.wins("gaussian_finite")
        return f"moments beat dropping in {wins} of {self.entropy.size} heads"

    def summary(self) -> Summary:
        """Return the quartiles of R² over heads for each approximation."""
        rows: list[tuple[str | int | float, ...]] = []
        for name, words in _WAYS.items():
            quartiles = np.nanpercentile(self.r2[name], (25, 50, 75)).tolist()
            rows.append((words, *quartiles, "" if name == "dropped" else self.wins(name)))
        headings = ("far tokens", "lower quartile of R²", "median", "upper quartile")
        return Summary((*headings, "heads better than dropped"), rows)

    def notes(self) -> list[str]:
        medians = ", ".join(
            f"{words} {np.nanmedian(getattr(self, name)):.3g}"
            for words, name in (
                ("sharpness", "sharpness"), ("share between bands", "between_share"),
                ("weight of sinks", "sink_weight"), ("of recent tokens", "recent_weight"),
                ("effective tokens 1/S₂", "effective_tokens"), ("e^H", "entropy_tokens"),
            )
        )  # fmt: skip
        errors = ", ".join(f"{way} {value:.2f}" for way, value in self.entropy_errors.items())
        first, second, last, end = self.lengths[[0, 1, -2, -1]]
        return [
            f"The first {self.sinks} tokens and the last {self.recent} are kept; the others are "
            f"far, and their moments cost as much memory as {self.equivalent_tokens} tokens. One "
            f"query in {self.every} was measured, from {self.shortest} tokens on.",
            f"Medians over heads: {medians}.",
            f"Entropy of prompts of {last:.0f} to {end - 1:.0f} tokens predicted from those of "
            f"{first:.0f} to {second - 1:.0f}, mean absolute error over heads in nats: {errors}.",
            *(["Keys are taken after rotation: scores depend on distance."] if self.rotary else []),
        ]


class HeadReplacement(Result):
    """The output of a model as more and more of its heads are replaced by an approximation.

    Attributes:
        model: the name of the model.
        measure: "loss" for the loss in nats, or "cosine" for the cosine between the embeddings of a
            window with and without replaced heads.
        window: the number of tokens of a prompt.
        sinks: the number of sinks in the approximation "sinks".
        windows_in_atlas: the number of windows that the atlas also used, if the atlas is of the
            same text.
        counts: the numbers of replaced heads, [n].
        curves: the measure for each count and window, [n, windows], by the name of the curve.
        baseline: a reference value: the loss of a uniform guess, or the mean cosine between
            embeddings of different windows.
    """

    model: str
    measure: str
    window: int
    sinks: int
    windows_in_atlas: int
    counts: np.ndarray = axis("count")
    curves: Mapping[str, np.ndarray] = variable("count", "window")
    baseline: float

    @property
    @derived()
    def is_cosine(self) -> bool:
        """Whether `measure` is "cosine"."""
        return self.measure == "cosine"

    def text(self) -> str:
        """Return the mean over windows of every curve, one row per number of heads."""
        rows = [
            [str(count), *(f"{values[place].mean():.4f}" for values in self.curves.values())]
            for place, count in enumerate(self.counts)
        ]
        prompts = next(iter(self.curves.values())).shape[1]
        return (
            f"heads replaced, {self.measure}; baseline {self.baseline:.3g}; {prompts} prompts, "
            f"{self.windows_in_atlas} of them also in the atlas\n"
            f"{aligned(['heads', *self.curves], rows)}"
        )


class HeadsReport(Result):
    """The atlases of a model on several texts, and its output with heads replaced.

    Attributes:
        texts: the atlas of each text, by the name of the text.
        replacement: the output on the first text as heads are replaced; None if not measured.
    """

    texts: Mapping[str, AbstractAtlas]
    replacement: HeadReplacement | None = None

    def _table(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return columns with one row per head and text."""
        tables = {name: atlas._table() for name, atlas in self.texts.items()}
        tables = {name: {**index, **columns} for name, (index, columns) in tables.items()}
        names = np.repeat(list(tables), [next(iter(x.values())).size for x in tables.values()])
        columns = zip(*(table.items() for table in tables.values()), strict=True)
        joined = {parts[0][0]: np.concatenate([x for _, x in parts]) for parts in columns}
        return {"text": names}, joined

    def text(self) -> str:
        """Return the tables of every text, and the table of replaced heads."""
        parts = [f"{name}: {atlas.text()}" for name, atlas in self.texts.items()]
        parts += [] if self.replacement is None else [self.replacement.text()]
        return "\n\n".join(parts)


def _cell(value: str | float | int, digits: int) -> str:  # noqa: PYI041 - run-time checks
    if isinstance(value, str | int):
        return str(value)
    return f"{value:.2f}" if digits == 2 else f"{value:.3g}"
