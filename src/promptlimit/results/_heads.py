"""What was measured of the heads of a trained transformer, and of replacing them."""

import abc
import csv
import io
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from promptlimit.results._result import (
    Result,
    Role,
    axes_for,
    axis,
    derived,
    plain,
    variable,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REGIMES = ("linear", "concentrating", "frozen")
SHARPNESS_UNIT = "standard deviation of the scores"
"""What `sharpness` is in a stored atlas; version 0.2 stored the variance under the same names."""
_QUANTILE_NAMES = ("q05", "q25", "median", "q75", "q95")


class AbstractAtlas(Result, abc.ABC):
    """A result with one row for each head of a model."""

    @property
    @abc.abstractmethod
    def value(self) -> np.ndarray:
        """The sharpness of every head, [layers, heads]."""

    @abc.abstractmethod
    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one flat record a head."""

    def to_csv(self) -> str:
        """Return a table with one line a head."""
        rows = list(self.rows())
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def plot(self, ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw the sharpness of every head as a map of layers and heads.

        Args:
            ax: matplotlib's axes; new ones when None.
            style: of the image, as for `ax.imshow`.
        """
        roles = self._roles()
        drawn = axes_for(ax, Role(label="head"), Role(label="layer"), np.arange(0.0))
        image_style: dict[str, Any] = {"origin": "lower", "aspect": "auto", **style}
        image = drawn.imshow(self.value, **image_style)
        drawn.figure.colorbar(image, ax=drawn, label=roles["value"].label)
        return drawn


class HeadAtlas(AbstractAtlas):
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

    def rows(self) -> Iterator[dict[str, float | int | str]]:
        """Yield one flat record a head."""
        regime = self.regime
        for layer, head in np.ndindex(self.linear.shape):
            here = (layer, head)
            quantiles = zip(_QUANTILE_NAMES, self.sharpness[here], strict=True)
            yield {
                "layer": layer,
                "head": head,
                "regime": str(regime[here]),
                **{f"sharpness_{name}": float(value) for name, value in quantiles},
                "linear_share": float(self.linear[here]),
                "frozen_share": float(self.frozen[here]),
                "effective_tokens": float(self.effective_tokens[here]),
                "effective_tokens_predicted": float(self.effective_tokens_predicted[here]),
                "skewness": float(self.skewness[here]),
                "kurtosis": float(self.kurtosis[here]),
                **{f"r2_{name}": float(value[here]) for name, value in self.r2.items()},
                "r2_gaussian_error": float(self.r2_error[here]),
                "error_predicted": float(self.error_predicted[here]),
                "length_needed": float(self.length_needed[here]),
                "exponent": float(self.exponent[here]),
            }

    def to_dict(self) -> dict[str, Any]:
        """Return settings, parity and one record a head; non-finite numbers become None."""
        settings = {**self._attributes(), "sharpness": SHARPNESS_UNIT, "parity": self.parity}
        return plain({**settings, "heads": list(self.rows())})


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
