r"""Tasks of a user's own: each prompt hides a mean $m\sim N(0,I)$, and tokens are $N(m,S)$.

The query says nothing, so softmax attention returns $V\bar z$ whatever its U, and
$R_L(V)=\frac12\{\mathrm{tr}\,VSV^\top/L+\|V-I\|^2\}$. The posterior mean is
$(I+S/L)^{-1}\bar z$: some V attains the least risk there is.
"""

import contextlib
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import promptlimit as pl
from promptlimit.tasks import BATCH_GRADIENT, OBJECTIVE, AbstractObjective, Objectives, on

SCATTER = np.array([[1.5, 0.4], [0.4, 0.6]])
VALUE = np.array([[0.7, -0.2], [0.3, 0.5]])


class HiddenMean(pl.AbstractTask):
    """The four required methods and no optional one."""

    scatter: jax.Array = eqx.field(converter=jnp.asarray)

    @property
    def token_dim(self):
        return self.scatter.shape[0]

    def draw(self, *, key):
        mean = jax.random.normal(key, (self.token_dim,), self.scatter.dtype)
        return pl.Gaussian(mean, self.scatter), pl.Gaussian(mean, 0.0 * self.scatter)

    def query_of(self, token):
        return 0.0 * token

    def loss(self, output, token):
        return 0.5 * jnp.sum((output - token) ** 2)


class KnownMean(HiddenMean):
    """The same with formulas for its risks and its Bayes risk, and a rule that draws in law."""

    def closed_risk(self, attention, length):
        head = attention.single_head()
        if head is None or head.kernel != "softmax":
            return None
        V, missed = head.value, head.value - jnp.eye(self.token_dim)
        return 0.5 * (jnp.sum(V @ self.scatter * V) / length + jnp.sum(missed**2))

    def bayes_risk(self, length):
        spread = np.asarray(self.scatter, np.float64) / length
        return 0.5 * np.trace(spread @ np.linalg.inv(np.eye(2) + spread))


def _not_in_law(problem):
    in_law = set(problem.kernels) == {"softmax"} and problem.sampling == "law"
    return None if in_law else "tokens are drawn, or a head is linear"


@BATCH_GRADIENT.rule(
    kind="estimate",
    scope="`KnownMean`",
    method="means of L tokens in law",
    obstacle=on(KnownMean, obstacle=_not_in_law),
)
def _gradient_in_law(problem, _effort):
    """Return slopes over means of L tokens, $N(m,S/L)$, without tokens."""
    root = jnp.asarray(np.linalg.cholesky(problem.task.scatter), jnp.float32)
    scale = jnp.asarray(problem.lengths, jnp.float32)[:, None, None] ** -0.5

    def gradient(step, key_query, value):
        drawn = [
            jax.random.normal(jax.random.fold_in(key, step), (2, problem.size, 2), jnp.float32)
            for key in problem.keys
        ]
        hidden, noise = jnp.stack(drawn, axis=1)  # [members, batch, 2]
        mean = hidden + scale * jnp.einsum("ij,mbj->mbi", root, noise)
        missed = jnp.einsum("mhij,mbj->mhbi", value, mean) - hidden[:, None]
        slope = 2.0 / problem.size * jnp.einsum("mhbi,mbj->mhij", missed, mean)
        return jnp.zeros_like(key_query), slope

    return gradient


class _Pointed(AbstractObjective):
    means: jax.Array
    scatter: jax.Array
    length: jax.Array

    def __call__(self, attention):
        head = attention.single_head()
        assert head is not None
        V = head.value
        missed = self.means @ (V - jnp.eye(2)).T
        return 0.5 * (jnp.sum(V @ self.scatter * V) / self.length + jnp.mean(missed**2) * 2)


class PointedMean(HiddenMean):
    """The task whose exact risk is a mean over points, inside `pointed_rule`."""


def _pointed(problem, effort):
    def objectives(length):
        def make(max_sharpness, replicate):
            means = np.random.default_rng(replicate).normal(size=(effort.points, 2))
            return _Pointed(jnp.asarray(means), problem.task.scatter, jnp.asarray(length))

        return Objectives(make)

    return [objectives(length) for length in problem.lengths.tolist()]


@contextlib.contextmanager
def pointed_rule():
    """Register the rule of `PointedMean`, for one test."""
    register = OBJECTIVE.rule(
        kind="exact",
        scope="`PointedMean`",
        method="hidden means averaged over points",
        obstacle=on(PointedMean),
    )
    register(_pointed)
    yield
    OBJECTIVE.remove(_pointed)


def textbook(matrix, length):
    """Return the risk of V and its gradient, in NumPy."""
    V = np.asarray(matrix)
    value = 0.5 * (np.trace(V @ SCATTER @ V.T) / length + np.sum((V - np.eye(2)) ** 2))
    return value, V @ SCATTER / length + V - np.eye(2)


def best(length):
    """Return the V of the posterior mean."""
    return np.eye(2) if math.isinf(length) else np.linalg.inv(np.eye(2) + SCATTER / length)
