"""One step of training on linear regression: predictions, losses and gradients."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from promptlimit.tasks._batches import EXACT, from_normals, questions, stream, to_normals
from promptlimit.tasks._capabilities import Batches, BatchGradient
from promptlimit.tasks._law_sums import law_sums
from promptlimit.tasks._packed_sums import packed_sums
from promptlimit.tasks._regression import LinearRegression
from promptlimit.tasks._token_sums import token_sums


def regression_gradient(task: LinearRegression, batches: Batches) -> BatchGradient:
    r"""Return the gradient in $U$ and $V$ of the mean squared error of a batch.

    With the query $(x_q,0)$, scores are $\langle q,z\rangle$, $q=U(x_q,0)$, and values
    $\langle v,z\rangle$, v the last row of V. From the prediction $T$ and its derivatives $T_q$ and
    $T_v$, the loss is the mean of $(T-y)^2$, with gradients the means of
    $2(T-y)\,T_q(x_q,0)^\top$ and $2(T-y)\,T_v$.

    Args:
        task: the regression.
        batches: which prompts, and for which heads.
    """
    prompts = stream(task, batches.lengths, batches.size, batches.keys)
    sums = law_sums if batches.sampling == "law" else token_sums
    if len(batches.lengths) > 1:
        sums = packed_sums

    def gradient(
        step: UInt32[Array, ""],
        key_query: Float[Array, "members heads dim dim"],
        value: Float[Array, "members heads outputs dim"],
    ) -> tuple[Array, Array]:
        asked = questions(task, prompts, step)
        weights = asked.weights[:, None]
        tilt = jnp.einsum("mhij,mbj->mhbi", key_query[..., :-1], asked.query, precision=EXACT)
        row = jnp.broadcast_to(value[:, :, -1:], tilt.shape)
        along = to_normals(task, weights, row)
        found = sums(prompts, batches.kernels, step, to_normals(task, weights, tilt), along)
        misfit = jnp.sum(along * found.by_value, axis=-1) - asked.target[:, None]
        scaled = np.float32(2.0 / prompts.batch) * misfit[..., None]
        by_tilt = scaled * from_normals(task, weights, found.by_score)
        by_query = jnp.einsum("mhbi,mbj->mhij", by_tilt, asked.query, precision=EXACT)
        slope = jnp.concatenate([by_query, jnp.zeros_like(by_query[..., :1])], axis=-1)
        by_row = jnp.sum(scaled * from_normals(task, weights, found.by_value), axis=2)
        return slope, jnp.zeros_like(value).at[:, :, -1].set(by_row)

    return gradient
