"""What every in-context task promises, and what more it may know of itself."""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from promptlimit._arrays import ArrayLike, Number
from promptlimit._errors import ArgumentError
from promptlimit._inputs import to_device
from promptlimit.attention import AbstractAttention, AbstractHead, KernelName
from promptlimit.measures import AbstractMeasure

Lengths: TypeAlias = Number | ArrayLike
"""One prompt length, or many."""

REPLICATES = 8
"""Independent point sets; their spread is the error."""

USUAL_POINTS = 4096
SHARPNESS_RANGES = (16.0, 40.0)
"""How far weight statistics are tabulated: as a rule, and when that is not enough."""


class Estimate(NamedTuple):
    """A mean over points: its value, its error, and how many points it took, 0 in closed form."""

    value: float
    error: float
    points: int


MatrixRisk: TypeAlias = Callable[
    [Float[Array, "token_dim query_dim"], Float[Array, "output_dim token_dim"]], Float[Array, ""]
]
"""A risk as a function of $U$ and $V$."""


class AbstractObjective(eqx.Module):
    r"""A risk $R_L$ as a function of the attention: what gradients and flows descend.

    An argument of compiled programs: keep as arrays what changes from call to call, such as $L$.
    """

    @abc.abstractmethod
    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        r"""Return $R_L$, differentiable in the arrays of the attention; NaN where not known."""

    @property
    def of_matrices(self) -> MatrixRisk | None:
        """The same as a function of U and V, where it reads no more; None, the default, where not.

        One compiled program then serves both kernels.
        """
        return None

    @property
    def lower_bound(self) -> float:
        """A number that no risk is below, 0 by default: losses are not negative."""
        return 0.0

    def sharpness(self, attention: AbstractAttention) -> float:  # noqa: ARG002
        """Return the largest sharpness that tables are asked for, 0 without tables."""
        return 0.0


class Replicates(NamedTuple):
    """A risk near one attention, in several versions.

    Attributes:
        sets: over independent point sets; their spread is the error of a mean.
        changed: over the first set, with tables off by as much as their error allows; the distance
            from the first is an error that all sets share.
    """

    sets: Sequence[AbstractObjective]
    changed: Sequence[AbstractObjective] = ()


class AbstractExactRisk(abc.ABC):
    """The risk of an attention on a task at one length, had without simulating prompts.

    Cheap to make: what takes time is done by the methods.
    """

    @property
    @abc.abstractmethod
    def is_closed_form(self) -> bool:
        """Whether it is without error, and no points are needed."""

    def is_smooth(self, attention: AbstractAttention) -> bool:  # noqa: ARG002
        """Return whether `objective` is known for this attention; values may be known alone."""
        return True

    @abc.abstractmethod
    def objective(self, *, points: int, replicate: int, max_sharpness: float) -> AbstractObjective:
        """Return the risk to descend.

        Args:
            points: of quadrature.
            replicate: which of the independent point sets.
            max_sharpness: how far tables of weight statistics go.
        """

    def replicates(
        self,
        attention: AbstractAttention,  # noqa: ARG002
        points: int,
    ) -> Replicates:
        """Return the risk near one attention, over each of the independent point sets."""
        sets = range(1 if self.is_closed_form else REPLICATES)
        widest = SHARPNESS_RANGES[-1]
        return Replicates(
            [
                self.objective(points=points, replicate=replicate, max_sharpness=widest)
                for replicate in sets
            ]
        )

    def value(
        self,
        attention: AbstractAttention,
        *,
        tolerance: float,  # noqa: ARG002
        points: int | None,
    ) -> Estimate:
        """Return the risk of one attention; the spread over point sets is its error.

        Args:
            attention: what predicts.
            tolerance: the relative error at which points are enough.
            points: in one set, in place of the tolerance.
        """
        count = USUAL_POINTS if points is None else points
        values = [float(risk(attention)) for risk in self.replicates(attention, count).sets]
        if self.is_closed_form:
            return Estimate(values[0], 0.0, 0)
        return Estimate(float(np.mean(values)), spread(np.array(values)), count * len(values))

    def excess(
        self,
        attention: AbstractAttention,  # noqa: ARG002
        *,
        tolerance: float,  # noqa: ARG002
        points: int | None,  # noqa: ARG002
    ) -> Estimate | None:
        """Return the risk less that of Bayes, not as a difference, for `bayes_excess`.

        None, the default, where it is not known so. The arguments are those of `value`.
        """
        return None

    def tabulate(  # noqa: B027  # there is nothing to prepare by default
        self, attention: AbstractAttention, lengths: Sequence[float], max_sharpness: float | None
    ) -> None:
        """Compute together what the same risk needs at all of these lengths; nothing by default.

        Args:
            attention: what predicts.
            lengths: finite ones.
            max_sharpness: how far tables must go; as far as this attention asks when None.
        """


def merged(attention: AbstractAttention) -> AbstractHead:
    """Return the one head that an attention is; differentiable."""
    head = attention.single_head()
    if head is None:
        raise ArgumentError(
            "attention",
            f"must be one head, as its `single_head` says, got {type(attention).__name__}.",
        )
    return head


def spread(values: np.ndarray) -> float:
    """Return twice the standard error of the mean of independent values."""
    return 2 * float(values.std(ddof=1)) / math.sqrt(values.size)


class Batches(NamedTuple):
    """What `sgd` trains at once: members with a length each, all with the same heads.

    Attributes:
        lengths: the number of tokens of a prompt, one a member.
        keys: randomness, one a member; step k's batch is a function of (key, length, k).
        size: how many prompts a batch has.
        kernels: "softmax" or "linear", one a head.
        sampling: "tokens", or "law" where prompts need not be realised.
    """

    lengths: tuple[int, ...]
    keys: tuple[PRNGKeyArray, ...]
    size: int
    kernels: tuple[KernelName, ...]
    sampling: Literal["tokens", "law"]


BatchGradient: TypeAlias = Callable[
    [
        UInt32[Array, ""],
        Float[Array, "members heads token_dim query_dim"],
        Float[Array, "members heads output_dim token_dim"],
    ],
    tuple[Array, Array],
]
r"""The gradient in $U$ and $V$ of twice the mean loss over a batch, at a step, $U$ and $V$."""


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
    ...     def query_of(self, token):
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
        """The dimension of a query: what `query_of` leaves of a token."""
        token = jax.ShapeDtypeStruct((self.token_dim,), jnp.result_type(float))
        return jax.eval_shape(self.query_of, token).shape[0]

    @abc.abstractmethod
    def draw(self, *, key: PRNGKeyArray) -> tuple[AbstractMeasure, AbstractMeasure]:
        r"""Return a random prompt $\mu$, and the law $\nu_\mu$ of the token asked about."""

    @abc.abstractmethod
    def query_of(self, token: Float[Array, " token_dim"]) -> Float[Array, " query_dim"]:
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
        formula = eqx.filter_eval_shape(self.closed_risk, attention, to_device(float(length)))
        return None if formula is None else ClosedRisk(self, float(length))

    def exact_risks(
        self, attention: AbstractAttention, lengths: Sequence[float]
    ) -> "list[AbstractExactRisk | None]":
        """Return `exact_risk` at several lengths; tasks that find them together override it.

        Args:
            attention: whose risks.
            lengths: which may be infinite.
        """
        return [self.exact_risk(attention, length) for length in lengths]

    def smooth_risk(self, attention: AbstractAttention, length: Number) -> AbstractExactRisk | None:
        """Return `exact_risk` where its objective is known too: what flows and slopes need."""
        exact = self.exact_risk(attention, length)
        return exact if exact is not None and exact.is_smooth(attention) else None

    def least_risk(self, length: Number, *, points: int) -> Estimate | None:  # noqa: ARG002
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
        risk = self.task.closed_risk(attention, self.length)
        if risk is None:
            raise ArgumentError(
                "closed_risk",
                f"of {type(self.task).__name__} must return a risk at every length "
                "or at none, got None. Override `exact_risk` to choose by the length.",
            )
        return risk


@dataclasses.dataclass(frozen=True)
class ClosedRisk(AbstractExactRisk):
    """The exact risk of a task that has a formula for it.

    Attributes:
        task: whose `closed_risk` it is.
        length: L.
    """

    task: AbstractTask
    length: float

    @property
    def is_closed_form(self) -> bool:
        """True: a formula has no points."""
        return True

    def objective(self, *, points: int, replicate: int, max_sharpness: float) -> AbstractObjective:  # noqa: ARG002
        """Return the formula at the length."""
        return _ClosedObjective(self.task, to_device(self.length, jnp.float64))
