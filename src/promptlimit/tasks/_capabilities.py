"""What a task may know beyond its prompts: exact risks, and batches drawn in a way of its own."""

import abc
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from promptlimit._inputs import ArrayLike, Number
from promptlimit.attention import AbstractAttention, AbstractHead, KernelName

Lengths: TypeAlias = Number | ArrayLike
"""One prompt length, or many."""

REPLICATES = 8
"""Independent point sets; their spread is the error."""

USUAL_POINTS = 4096
SHARPNESS_RANGES = (16.0, 40.0)
"""How far weight statistics are tabulated: as a rule, and when that is not enough."""


class Averaged(NamedTuple):
    """A mean over points: its value, its error, and how many points it took, 0 in closed form."""

    value: float
    error: float
    points: int


class AbstractObjective(eqx.Module):
    r"""A risk $R_L$ as a function of the attention: what gradients and flows descend.

    An argument of compiled programs: keep as arrays what changes from call to call, such as $L$.
    """

    @abc.abstractmethod
    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        r"""Return $R_L$, differentiable in the arrays of the attention; NaN where not known."""

    @property
    def reads_kernel(self) -> bool:
        """Whether it reads more than U and V; where not, one program serves both kernels."""
        return True

    def sharpness(self, attention: AbstractAttention) -> float:  # noqa: ARG002
        """Return the largest sharpness that tables are asked for, 0 without tables."""
        return 0.0


class AbstractExactRisk(abc.ABC):
    """The risk of an attention on a task at one length, had without simulating prompts.

    Cheap to make: what takes time is done by the methods.
    """

    @property
    @abc.abstractmethod
    def is_closed_form(self) -> bool:
        """Whether it is without error, and no points are needed."""

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
    ) -> Sequence[AbstractObjective]:
        """Return the risk near one attention, over each of the independent point sets."""
        sets = range(1 if self.is_closed_form else REPLICATES)
        widest = SHARPNESS_RANGES[-1]
        return [
            self.objective(points=points, replicate=replicate, max_sharpness=widest)
            for replicate in sets
        ]

    def value(
        self,
        attention: AbstractAttention,
        *,
        tolerance: float,  # noqa: ARG002
        points: int | None,
    ) -> Averaged:
        """Return the risk of one attention; the spread over point sets is its error.

        Args:
            attention: what predicts.
            tolerance: the relative error at which points are enough.
            points: in one set, in place of the tolerance.
        """
        count = USUAL_POINTS if points is None else points
        values = [float(risk(attention)) for risk in self.replicates(attention, count)]
        if self.is_closed_form:
            return Averaged(values[0], 0.0, 0)
        return Averaged(float(np.mean(values)), spread(np.array(values)), count * len(values))

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
        raise ValueError(
            f"`attention` must be one head, as its `single_head` says, got "
            f"{type(attention).__name__}."
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
