"""Prompts that consist of random tokens and known tokens."""

import math
from numbers import Real
from typing import TypeAlias

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from promptlimit._arrays import ArrayLike
from promptlimit._inputs import (
    float_array,
    type_name,
)
from promptlimit.errors import ArgumentError
from promptlimit.measures import AbstractMeasure
from promptlimit.prompts._abstract import AbstractPrompt

_SCORES_THAT_COUNT = 45.0
"""Early positions are left out if their total weight is below e to the minus this number."""


class Prompt(eqx.Module):
    r"""L random tokens, and known tokens that are in every prompt.

    The softmax weights at the tilt t are proportional to $e^s$. A random token z at distance j from
    the end has the score $s=\langle t,z\rangle+o-mj$ with the `offset` o and the `slope` m. A known
    token has the score $\langle t,z\rangle$. A sink has a score from `sinks` and the value zero.

    Args:
        law: the law of the random tokens: a measure, or a law of prompts such as `MarkovChain`.
        fixed: the known tokens, such as a first token or a needle, shape `[k, d]`.
        sinks: the score of each sink, a vector.
        offset: a number that is added to the scores of random tokens.
        slope: the decrease of the scores per position (ALiBi), at least 0.

    >>> import promptlimit as pl
    >>> head = pl.SoftmaxAttention([[1.0]], [[1.0]])
    >>> prompt = pl.Prompt(pl.Gaussian([0.0], [[1.0]]), fixed=[[3.0]])
    >>> moments = pl.prompt_moments(head, prompt, [1.0], [10, 1000])
    >>> print(moments.mean[:, 0].round(4), moments.fixed_weights[:, 0].round(4))
    [2.0895 1.0215] [0.5653 0.0121]
    """

    law: AbstractMeasure | AbstractPrompt
    fixed: Float[Array, "k d"] | None
    sinks: Float[Array, " j"] | None
    offset: float
    slope: float

    def __init__(
        self,
        law: AbstractMeasure | AbstractPrompt,
        *,
        fixed: ArrayLike | None = None,
        sinks: ArrayLike | None = None,
        offset: float = 0.0,
        slope: float = 0.0,
    ):
        if not isinstance(law, AbstractMeasure | AbstractPrompt):
            raise ArgumentError(
                "law",
                f"must be a measure or a prompt such as MarkovChain, got {type_name(law)}. "
                "Wrap an array of tokens as promptlimit.Empirical(tokens).",
            )
        self.law = law
        self.fixed = None if fixed is None else float_array("fixed", fixed, rank=2)
        if self.fixed is not None and (self.fixed.shape[1] != law.dim or not len(self.fixed)):
            raise ArgumentError(
                "fixed",
                f"must have shape [k, {law.dim}] with k of at least 1 (the dimension of a token), "
                f"got {self.fixed.shape}.",
            )
        self.sinks = None if sinks is None else float_array("sinks", sinks, rank=1)
        if self.sinks is not None and not self.sinks.size:
            raise ArgumentError("sinks", "must contain at least one score, got none. Pass None.")
        self.offset, self.slope = _number("offset", offset), _number("slope", slope)
        if self.slope < 0.0:
            raise ArgumentError("slope", f"must be at least 0, got {slope}.")

    @property
    def dim(self) -> int:
        """The dimension of a token."""
        return self.law.dim

    @property
    def token_law(self) -> AbstractMeasure:
        """The law of a token in an infinite prompt."""
        return self.law if isinstance(self.law, AbstractMeasure) else self.law.token_law

    @property
    def process(self) -> AbstractPrompt | None:
        """The law of the random tokens if they are not independent; else None."""
        return self.law if isinstance(self.law, AbstractPrompt) else None

    @property
    def has_own_scores(self) -> bool:
        r"""Whether sinks, an offset or a slope change the scores $\langle t,z\rangle$."""
        return self.sinks is not None or self.offset != 0.0 or self.slope != 0.0

    @property
    def extras(self) -> str:
        """A list of known tokens, sinks, offset and slope as text; empty if there are none."""
        parts = {
            "known tokens": self.fixed is not None,
            "sinks": self.sinks is not None,
            "an offset": self.offset != 0.0,
            "a slope": self.slope != 0.0,
        }
        return ", ".join(part for part, present in parts.items() if present)

    @property
    def words(self) -> str:
        """A description of what differs from independent tokens; empty if nothing does."""
        process = f"tokens of a {type(self.law).__name__}" if self.process is not None else ""
        return ", ".join(filter(None, [process, self.extras]))

    @property
    def is_nested(self) -> bool:
        """Whether the first tokens of a prompt are a shorter prompt of the same law."""
        return self.process is None or self.process.is_nested

    def positions_that_count(self, lengths: np.ndarray) -> np.ndarray:
        """Return the numbers of last positions that count, for prompts of these lengths.

        Under a slope, early positions of total weight below $e^{-45}$ do not count.
        """
        if self.slope == 0.0:
            return lengths
        most = math.ceil((_SCORES_THAT_COUNT - math.log(min(self.slope, 1.0))) / self.slope) + 1.0
        return np.minimum(lengths, most)

    def sample(self, length: int, *, key: PRNGKeyArray) -> Float[Array, "length d"]:
        """Return the random tokens of one prompt."""
        return self.law.sample(length, key=key)

    def offsets(self, length: int) -> Float[Array, " length"]:
        """Return $o-mj$ for the random tokens; the last one has the distance $j=0$ from the end."""
        return self.offset - self.slope * jnp.arange(length - 1, -1, -1, dtype=float)


PromptLaw: TypeAlias = AbstractMeasure | AbstractPrompt | Prompt
"""A law of prompts: a measure if tokens are independent, or an object of this package."""


def as_prompt(name: str, law: object) -> Prompt:
    """Return a law of prompts as a `Prompt`; raise an error for other objects."""
    if isinstance(law, Prompt):
        return law
    if not isinstance(law, AbstractMeasure | AbstractPrompt):
        raise ArgumentError(
            name,
            f"must be a measure or a prompt, got {type_name(law)}. "
            "Wrap an array of tokens as promptlimit.Empirical(tokens).",
        )
    return Prompt(law)


def _number(name: str, value: object) -> float:
    if not (isinstance(value, Real) and math.isfinite(value)):
        raise ArgumentError(name, f"must be a finite number, got {value!r}.")
    return float(value)
