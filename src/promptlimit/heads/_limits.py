r"""The approximations of a head in `atlas`, and their errors over one prompt.

At each query, most approximations return $\sum_jw_jv_j$ over the tokens of the prompt, with values
$v_j$ and weights $w_j$ from `_weighing`. The approximation "corpus" is the affine map of the
Gaussian limit with the moments of other prompts, and "affine" is the affine map with the smallest
squared error. "gaussian_finite" and "corpus_finite" are "gaussian" and "corpus" with the linear
part multiplied by $1-E\,S_2$, the mean effect of a finite prompt. Here $S_2$ is the sum of squared
weights.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from promptlimit.heads._measure import SOFTMAX, Named, QueryRows
from promptlimit.heads._model import LayerHeads
from promptlimit.heads._prediction import Prediction
from promptlimit.heads._weighing import (
    gaussian_weights,
    inside_of,
    members,
    mixture_weights,
    sink_members,
    softmax_weights,
    uniform_weights,
)

EVERY = 8
"""The spacing of the queries from which the error at other lengths is predicted."""
MEANS = ("participation", "participation_predicted", "skewness", "kurtosis")
"""The statistics whose means over queries are in the atlas."""


class PerHead(NamedTuple):
    r"""The arguments of `Limits.rows` that differ between heads.

    Attributes:
        matrix: the matrix $M$ of the approximation "corpus", $q\mapsto m_v+Mq$.
        shift: the vector $m_v$ of this approximation.
        key: the random key of the clusters.
    """

    matrix: Float[Array, "heads e d"]
    shift: Float[Array, "heads e"]
    key: Key[Array, " heads"]


class Limits(NamedTuple):
    """The statistics and approximations of `atlas`; a `Measurement`.

    Attributes:
        causal: whether a query attends only to the tokens up to its own position.
        clusters: the number of Gaussians in the approximation "mixture".
        sinks: the number of tokens that the approximation "sinks" keeps as atoms.
    """

    causal: bool
    clusters: int
    sinks: int

    def rows(
        self, head: LayerHeads, scale: Array, prediction: Prediction, given: PerHead
    ) -> Callable[[Array, Array], tuple[Named, Named]]:
        """Return the function that `Measurement.rows` specifies."""
        length = head.keys.shape[0]
        clustered = members(head.queries, head.keys, self.clusters, given.key)
        parked = sink_members(head.queries, head.keys, scale, self.sinks)

        def rows(queries: Array, positions: Array) -> tuple[Named, Named]:
            scores = scale * (queries @ head.keys.T)
            inside = inside_of(positions, length, causal=self.causal)
            weights = {
                SOFTMAX: softmax_weights(scores, inside),
                "uniform": uniform_weights(scores, inside),
                "gaussian": gaussian_weights(scores, inside),
                "sinks": mixture_weights(scores, inside, parked),
                "mixture": mixture_weights(scores, inside, clustered),
            }
            outputs = {name: weight @ head.values for name, weight in weights.items()}
            uniform, mean = weights["uniform"], outputs["uniform"]
            centred = jnp.where(inside, scores - (uniform * scores).sum(axis=1, keepdims=True), 0.0)
            variance, third, fourth = (
                (uniform * centred**power).sum(axis=1) for power in (2, 3, 4)
            )
            safe = jnp.maximum(variance, 1e-12)
            spread = uniform @ (head.values**2).sum(axis=1) - (mean**2).sum(axis=1)
            spread = jnp.maximum(spread, 0.0)
            pull = outputs["gaussian"] - mean
            along = jnp.minimum((pull**2).sum(axis=1) / safe, spread)
            seen = positions + 1 if self.causal else jnp.full_like(positions, length)
            finite = prediction.at_own_length(variance, seen.astype(jnp.float32))
            left = (1.0 - finite.participation)[:, None]
            corpus = queries @ given.matrix.T
            statistics = {
                "variance": variance,
                "participation": (weights[SOFTMAX] ** 2).sum(axis=1),
                "participation_predicted": finite.participation,
                "skewness": third / safe**1.5,
                "kurtosis": fourth / safe**2 - 3.0,
                "spread": spread,
                "along": along,
                "predicted_error": gaussian_error(
                    along, spread, finite.participation, finite.score_error
                ),
            }
            return statistics, outputs | {
                "gaussian_finite": mean + left * pull,
                "corpus": given.shift[None] + corpus,
                "corpus_finite": given.shift[None] + left * corpus,
            }

        return rows


def gaussian_error(along: Any, spread: Any, participation: Any, score_error: Any) -> Any:
    r"""Return $E|T_L-T|^2$, the mean squared error of the Gaussian limit at a finite length.

    For Gaussian tokens it is $bE(A-\sigma)^2+(v-b)E\,S_2$ (docs/finite.md), where $\sigma$ is the
    sharpness, A the weighted mean of the standardised scores and $S_2$ the sum of squared weights.

    Args:
        along: $b=|C_{vk}t|^2/\sigma^2$, the part of the variance of the values that the scores
            explain, with $C_{vk}$ the covariance of values with keys and t the tilt.
        spread: $v$, the total variance of the values.
        participation: $E\,S_2$.
        score_error: $E(A-\sigma)^2$.
    """
    return along * score_error + (spread - along) * participation


def layer_sums(
    rows: QueryRows, queries: np.ndarray, lengths: np.ndarray, prediction: Prediction
) -> dict[str, Any]:
    r"""Return sums and means over the queries of one prompt, for the heads of a layer.

    Args:
        rows: the statistics and errors that `query_rows` returns for `Limits`.
        queries: the measured queries, [heads, queries, d].
        lengths: $L$, the length of the prompt of each query, [queries].
        prediction: the weight statistics of Gaussian tokens.

    Returns:
        A mapping with these entries, of shape [heads] unless stated otherwise:

        - `sharpness`: $\sigma$ at each query, [heads, queries];
        - `means`: the means of statistics over queries, by name; "linear" and "frozen" are the
          fractions of queries with $\sigma^2\le\frac23\ln L$ and with $\sigma^2>2\ln L$;
        - `errors`: the squared error of each approximation, by name;
        - `predicted_error`: the squared error that "gaussian" would have for Gaussian tokens;
        - `total`: the sum of squared deviations of the outputs from their mean;
        - `grid_error`: `predicted_error` at the lengths of `GRID`, [heads, lengths];
        - `grid_total`: the sum of squared deviations of the outputs of "gaussian" from their mean.
    """
    found = rows.statistics
    order = found["variance"] / np.log(lengths)
    means = {name: found[name].mean(axis=-1) for name in MEANS}
    means |= {"linear": (order <= 2 / 3).mean(axis=-1), "frozen": (order > 2).mean(axis=-1)}
    few = {name: found[name][:, ::EVERY] for name in ("variance", "along", "spread")}
    grid = gaussian_error(few["along"], few["spread"], *prediction.at_grid(few["variance"]))
    total = rows.totals[SOFTMAX]
    return {
        "sharpness": np.sqrt(found["variance"]),
        "means": means,
        "errors": {name: error.sum(axis=-1) for name, error in rows.errors.items()}
        | {"affine": _affine_error(queries, rows.outputs)},
        "predicted_error": found["predicted_error"].sum(axis=-1),
        "total": total,
        "grid_error": np.moveaxis(len(lengths) * grid.mean(axis=-1), 0, -1),
        "grid_total": rows.totals["gaussian"],
    }


def _affine_error(queries: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Return the squared error of the best affine map from queries to outputs, [heads]."""
    x, y = (np.asarray(part, np.float64) for part in (queries, outputs))
    x, y = (part - part.mean(axis=1, keepdims=True) for part in (x, y))
    variances, axes = np.linalg.eigh(np.swapaxes(x, 1, 2) @ x)
    kept = variances > 1e-6 * variances[:, -1:]
    along = np.swapaxes(axes, 1, 2) @ np.swapaxes(x, 1, 2) @ y
    removed = ((along**2).sum(axis=2) * kept / np.where(kept, variances, 1.0)).sum(axis=1)
    return np.maximum((y**2).sum(axis=(1, 2)) - removed, 0.0)
