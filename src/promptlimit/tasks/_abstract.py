"""What every in-context task promises, and what more it may know of itself."""

import abc
import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from promptlimit._inputs import Number
from promptlimit.attention import AbstractAttention
from promptlimit.measures import AbstractMeasure
from promptlimit.tasks._capabilities import (
    AbstractExactRisk,
    AbstractObjective,
    Averaged,
    Batches,
    BatchGradient,
)


class AbstractTask(eqx.Module):
    r"""An in-context task: a law over prompts $\mu$, and what is asked of each.

    The risk of an attention $T$ is $R_L=E_\mu\,E_{z_1,\dots,z_L\sim\mu}\,E_{z\sim\nu_\mu}\,
    \ell(T[\hat\mu_L](\text{masked }z),\,z)$ (section 4 of the paper, where $\nu_\mu=\mu$; other
    query laws are its Remark 4.1).

    **Your own task** takes four methods. Here each prompt has its own hidden mean, tokens scatter
    about it, and the attention, which sees nothing of the query, should guess that mean:

    >>> import jax, jax.numpy as jnp, promptlimit as pl
    >>> class HiddenMean(pl.AbstractTask):
    ...     scatter: jax.Array
    ...
    ...     @property
    ...     def token_dim(self):
    ...         return self.scatter.shape[0]
    ...
    ...     def draw(self, *, key):
    ...         mean = jax.random.normal(key, (self.token_dim,), self.scatter.dtype)
    ...         return pl.Gaussian(mean, self.scatter), pl.Gaussian(mean, 0.0 * self.scatter)
    ...
    ...     def masked(self, token):
    ...         return 0.0 * token
    ...
    ...     def loss(self, output, token):
    ...         return 0.5 * jnp.sum((output - token) ** 2)
    >>> task = HiddenMean(jnp.eye(2))
    >>> mean_of_tokens = pl.SoftmaxAttention(key_query=0 * jnp.eye(2), value=jnp.eye(2))
    >>> found = pl.risk(mean_of_tokens, task, 10, key=jax.random.key(0))
    >>> print(found.kind, abs(found.value - 0.1) < 4 * found.error)
    estimate True

    **What more it knows** it says through the methods that return None by default. One formula,
    `closed_risk`, makes its risks, their gradients, flows and the records of `sgd` exact:

    >>> class KnownMean(HiddenMean):
    ...     def closed_risk(self, attention, length):
    ...         head = attention.single_head()
    ...         if head is None or head.kernel != "softmax":
    ...             return None
    ...         V, missed = head.value, head.value - jnp.eye(self.token_dim)
    ...         return 0.5 * (jnp.sum(V @ self.scatter * V) / length + jnp.sum(missed**2))
    >>> found = pl.risk(mean_of_tokens, KnownMean(jnp.eye(2)), 10)
    >>> print(found.kind, round(found.value, 12))
    exact 0.1
    """

    @property
    @abc.abstractmethod
    def token_dim(self) -> int:
        """The dimension of a token."""

    @property
    def query_dim(self) -> int:
        """The dimension of a query: what `masked` leaves of a token."""
        token = jax.ShapeDtypeStruct((self.token_dim,), jnp.result_type(float))
        return jax.eval_shape(self.masked, token).shape[0]

    @abc.abstractmethod
    def draw(self, *, key: PRNGKeyArray) -> tuple[AbstractMeasure, AbstractMeasure]:
        r"""Return a random prompt $\mu$, and the law $\nu_\mu$ of the token asked about."""

    @abc.abstractmethod
    def masked(self, token: Float[Array, " token_dim"]) -> Float[Array, " query_dim"]:
        """Return the query: what the attention is shown of the token asked about."""

    @abc.abstractmethod
    def loss(
        self, output: Float[Array, " output_dim"], token: Float[Array, " token_dim"]
    ) -> Float[Array, ""]:
        r"""Return $\ell(\text{output}, z)$, with the whole token $z$ in view."""

    def closed_risk(
        self,
        attention: AbstractAttention,  # noqa: ARG002
        length: Float[Array, ""],  # noqa: ARG002
    ) -> Float[Array, ""] | None:
        r"""Return $R_L$ by a formula, differentiable in the attention; None where there is none.

        Args:
            attention: whose risk; read it through `attention.single_head()`.
            length: $L$, traced, so that one program serves all: divide by it, also by infinity.
        """
        return None

    def exact_risk(self, attention: AbstractAttention, length: Number) -> AbstractExactRisk | None:
        r"""Return the risk over prompts of L tokens without simulating them; None if not known.

        By default it is `closed_risk`. Tasks whose risk is a mean over points of quadrature return
        a class of their own.

        Args:
            attention: whose risk.
            length: $L$, which may be infinite.
        """
        formula = eqx.filter_eval_shape(self.closed_risk, attention, jnp.asarray(float(length)))
        return None if formula is None else _ClosedRisk(self, float(length))

    def least_risk(self, length: Number, *, points: int) -> Averaged | None:  # noqa: ARG002
        """Return the risk that no predictor beats, for `bayes_risk`; None if not known.

        Args:
            length: $L$, which may be infinite.
            points: of quadrature in one set, where there is no closed form.
        """
        return None

    def batch_gradient(self, batches: Batches) -> BatchGradient | None:  # noqa: ARG002
        r"""Return the gradient that `sgd` descends, by prompts drawn in a way of the task's own.

        None: prompts are drawn by `draw`, and not in law.

        Args:
            batches: which prompts, and for which heads.
        """
        return None


class _ClosedObjective(AbstractObjective):
    """The formula of a task at one length."""

    task: AbstractTask
    length: Float[Array, ""]

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        """Return the formula's value."""
        found = self.task.closed_risk(attention, self.length)
        if found is None:
            raise ValueError(
                f"`closed_risk` of {type(self.task).__name__} must return a risk at every length "
                "or at none, got None. Override `exact_risk` to choose by the length."
            )
        return found


@dataclasses.dataclass(frozen=True)
class _ClosedRisk(AbstractExactRisk):
    """The exact risk of a task that has a formula for it."""

    task: AbstractTask
    length: float

    @property
    def is_closed_form(self) -> bool:
        return True

    def objective(self, *, points: int, replicate: int, max_sharpness: float) -> AbstractObjective:  # noqa: ARG002
        return _ClosedObjective(self.task, jnp.asarray(self.length, jnp.float64))
