"""What a user asks for, checked: an attention, a measure, a query, lengths and a kind."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from promptlimit._inputs import float_array, require_choice, require_shape
from promptlimit.attention import AbstractAttention
from promptlimit.finite._array_types import Array, ArrayLike
from promptlimit.finite._heads import Head, merged
from promptlimit.finite._lengths import checked_lengths
from promptlimit.finite._precision import in_double
from promptlimit.finite._simulation import Simulation
from promptlimit.measures import AbstractMeasure, require_measure
from promptlimit.results import Kind

KINDS = ("auto", "exact", "asymptotic", "estimate")


@dataclasses.dataclass(frozen=True)
class Request:
    """One attention at one query, over prompts of several lengths from one measure.

    Attributes:
        attention: what reads the prompts.
        measure: the law of a token.
        query: the query, [query_dim].
        length: the lengths, [n].
        shape: the shape in which the user gave them.
        including_query: whether the query is itself a token of the prompt.
        head: the attention as one head, or None when it is not one.
    """

    attention: AbstractAttention
    measure: AbstractMeasure
    query: Array
    length: Array
    shape: tuple[int, ...]
    including_query: bool
    head: Head | None

    @property
    def own_token(self) -> Array | None:
        """The query where it is a token of the prompt."""
        return self.query if self.including_query else None

    @property
    def subject(self) -> str:
        """The attention and the measure in words."""
        inside = ", query inside" if self.including_query else ""
        attention, measure = type(self.attention).__name__, type(self.measure).__name__
        return f"{attention} over {measure} tokens{inside}"

    def simulation(self, key: PRNGKeyArray) -> Simulation:
        """Return what to simulate, in double precision; call inside `enable_x64`."""
        attention, measure = in_double(self.attention), in_double(self.measure)
        return Simulation(attention, measure, jnp.asarray(self.query), self.including_query, key)


def checked_request(
    attention: AbstractAttention,
    measure: AbstractMeasure,
    query: ArrayLike,
    length: ArrayLike,
    *,
    including_query: bool,
) -> Request:
    """Return the request with its arrays in double precision, or say what does not fit."""
    require_fitting(attention, measure)
    with jax.enable_x64(True):
        point = float_array("query", query, rank=1)
        reason = "what the attention's parameters take"
        require_shape("query", point, (attention.query_dim,), reason)
        host = np.asarray(point, dtype=np.float64)
    require_queries_are_tokens(attention, including_query=including_query)
    lengths = checked_lengths(length)
    head = merged(attention)
    at_query = None if head is None else head.at(host)
    return Request(
        attention, measure, host, lengths.ravel(), lengths.shape, including_query, at_query
    )


def require_fitting(attention: AbstractAttention, measure: AbstractMeasure) -> None:
    """Refuse what is no attention, no measure, or a measure of tokens of another dimension."""
    if not isinstance(attention, AbstractAttention):
        raise ValueError(f"`attention` must be an attention, got {type(attention).__name__}.")
    require_measure("measure", measure)
    if measure.dim != attention.token_dim:
        raise ValueError(
            f"`measure` must have tokens of dimension {attention.token_dim} (what the attention's "
            f"parameters take), got {measure.dim}."
        )


def require_queries_are_tokens(attention: AbstractAttention, *, including_query: bool) -> None:
    """Refuse to count a query among the tokens when it is not one."""
    if including_query and attention.query_dim != attention.token_dim:
        raise ValueError(
            f"`including_query` must be False when queries (dimension {attention.query_dim}) are "
            f"not tokens (dimension {attention.token_dim}), got True."
        )


def require_key_to_simulate(kind: str, key: object) -> None:
    """Refuse to simulate prompts without randomness."""
    if kind == "estimate" and key is None:
        raise ValueError(
            "`key` must be given for kind='estimate', got None. "
            "Pass key=jax.random.key(0) to simulate prompts."
        )


def chosen_kind(request: Request, kind: str, key: object, possible: tuple[Kind, ...]) -> Kind:
    """Return the kind to compute: the one asked for, or the best of those possible.

    No kind is replaced by another in silence: what cannot be had is an error that says what can.
    """
    require_choice("kind", kind, KINDS)
    if request.length.size and np.isinf(request.length).all() and kind != "estimate":
        return "limit"
    if kind == "auto":
        if "exact" in possible:
            return "exact"
        if key is None:
            leading = ", or kind='asymptotic' for the leading order in 1/L"
            raise ValueError(
                f"`key` must be given for {request.subject}, which has no exact moments here, got "
                "None. Pass key=jax.random.key(0) to simulate prompts"
                f"{leading if 'asymptotic' in possible else ''}."
            )
        return "estimate"
    if kind not in possible:
        allowed = " or ".join(f"'{each}'" for each in possible)
        raise ValueError(f"`kind` must be {allowed} for {request.subject}, got '{kind}'.")
    require_key_to_simulate(kind, key)
    return kind  # pyright: ignore[reportReturnType]
