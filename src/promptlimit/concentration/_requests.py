"""What a user asks of a gap, checked: attention, tokens, queries, lengths, and a kind."""

import dataclasses
from numbers import Real

import jax
import jax.numpy as jnp
import numpy as np

from promptlimit._inputs import require_choice, require_random_key
from promptlimit.attention import AbstractAttention
from promptlimit.concentration._kinds import KindUnavailableError
from promptlimit.concentration._queries import Queries, checked_queries, points_for_squares
from promptlimit.concentration._sub_gaussian import sub_gaussian_constant
from promptlimit.finite import (
    Array,
    ArrayLike,
    Components,
    Readout,
    checked_lengths,
    doubles,
    gaussian_components,
    in_double,
    readout,
    require_fitting,
    require_key_to_simulate,
    require_queries_are_tokens,
)
from promptlimit.measures import AbstractMeasure
from promptlimit.results import Kind

KINDS = ("auto", "exact", "asymptotic", "bound", "estimate")


@dataclasses.dataclass(frozen=True)
class GapRequest:
    """One attention over tokens from one measure, at queries from a law.

    Attributes:
        attention: what reads the prompts.
        measure: the law of a token.
        components: the same as a mixture of Gaussians and atoms, or None when it is not one.
        queries: the law of the query.
        wrt: the parameter whose gradient is compared; None for outputs.
        including_query: whether the query is itself a token of the prompt.
        sub_gaussian: the constant of the tokens, for bounds; None when not known.
        read: what is compared, or None when the attention is not one head.
    """

    attention: AbstractAttention
    measure: AbstractMeasure
    components: Components | None
    queries: Queries
    wrt: str | None
    including_query: bool
    sub_gaussian: float | None
    read: Readout | None

    @property
    def subject(self) -> str:
        """What is asked, in words."""
        inside = ", query inside" if self.including_query else ""
        tokens = f"{type(self.attention).__name__} over {type(self.measure).__name__} tokens"
        what = "" if self.wrt is None else f" (gradient in {self.wrt})"
        return f"{tokens} at {self.queries.name}{inside}{what}"

    @property
    def has_gaussian_tokens(self) -> bool:
        """Whether tokens are Gaussian."""
        return self.components is not None and self.components.is_gaussian

    @property
    def is_linear(self) -> bool:
        """Whether the attention is one head of linear attention."""
        return self.read is not None and self.read.head.kernel == "linear"

    def possible(self) -> tuple[Kind, ...]:
        """Return the kinds that can be had, best first."""
        checks = {
            "exact": self._has_exact(),
            "estimate": True,
            "asymptotic": self._has_leading_order(),
            "bound": self._has_bound(),
        }
        return tuple(kind for kind, had in checks.items() if had)  # pyright: ignore[reportReturnType]

    def _has_exact(self) -> bool:
        if self.read is None or not (self.queries.is_known or self.is_linear):
            return False
        if self.is_linear:
            return self.queries.are_points or not self.including_query
        if not self.queries.are_points or self.read.left is not None:
            return self.has_gaussian_tokens and not self.including_query
        return self.components is not None

    def _has_leading_order(self) -> bool:
        if self.read is None:
            return False
        affine = self.is_linear or (self.queries.is_known and self.has_gaussian_tokens)
        return self.queries.are_points or (affine and not self.including_query)

    def _has_bound(self) -> bool:
        if self.read is None or self.is_linear or self.including_query:
            return False
        queries = self.queries
        averaged = self.read.left is None and not queries.is_known
        known = queries.is_known or (averaged and queries.sub_gaussian is not None)
        return known and self.sub_gaussian is not None

    def limit_square(self) -> float | None:
        r"""Return $E\|T\|^2$ over queries; None where it is not a finite sum."""
        if self.is_linear or self.has_gaussian_tokens:
            points, weights = points_for_squares(self.queries)
        elif self.queries.are_points:
            points, weights = self.queries.points, self.queries.weights
        else:
            return None
        with jax.enable_x64(True):
            attention, measure = in_double(self.attention), in_double(self.measure)

            def size(query: jax.Array) -> jax.Array:
                if self.wrt is None:
                    return (attention(measure, query) ** 2).sum()
                return (attention.jacobian(measure, query, wrt=self.wrt) ** 2).sum()

            return float(weights @ doubles(jax.vmap(size)(jnp.asarray(points))))


def checked_request(
    attention: AbstractAttention,
    measure: AbstractMeasure,
    queries: AbstractMeasure | ArrayLike,
    *,
    wrt: str | None = None,
    including_query: bool = False,
    sub_gaussian: float | None = None,
) -> GapRequest:
    """Return the request, or say what does not fit."""
    require_fitting(attention, measure)
    require_queries_are_tokens(attention, including_query=including_query)
    if wrt is not None:
        require_choice("wrt", wrt, attention.matrices())
    if sub_gaussian is not None and not (
        isinstance(sub_gaussian, Real) and 0.0 < sub_gaussian < np.inf
    ):
        raise ValueError(
            f"`sub_gaussian` must be a positive number, got {sub_gaussian!r}. It is a scale, as a "
            "standard deviation is."
        )
    constant = sub_gaussian_constant(measure) if sub_gaussian is None else float(sub_gaussian)
    return GapRequest(
        attention,
        measure,
        gaussian_components(measure),
        checked_queries(queries, attention),
        wrt,
        including_query,
        constant,
        readout(attention, wrt),
    )


def increasing_lengths(lengths: ArrayLike) -> Array:
    """Return one or several lengths as a vector, or refuse what does not increase."""
    if lengths is None:
        raise ValueError("`lengths` must be a list of numbers, got None.")
    values = np.atleast_1d(checked_lengths(lengths, name="lengths"))
    if values.ndim != 1 or not values.size:
        raise ValueError(
            f"`lengths` must be a list of numbers, got shape {values.shape}. Pass [10, 100, 1000]."
        )
    falls = np.flatnonzero(np.diff(values) <= 0)
    if falls.size:
        first, second = values[falls[0] : falls[0] + 2]
        raise ValueError(
            f"`lengths` must increase, got {second:g} after {first:g}. Sort them, each once."
        )
    return values


def chosen_kind(request: GapRequest, kind: str, key: object) -> Kind:
    """Return the kind to compute: the one asked for, or the best of those possible."""
    require_choice("kind", kind, KINDS)
    require_random_key(key)
    possible = request.possible()
    if kind == "auto":
        if "exact" in possible:
            return "exact"
        if key is None:
            others = [each for each in possible if each not in ("exact", "estimate")]
            words = " or ".join(f"kind='{each}'" for each in others)
            raise ValueError(
                f"`key` must be given for {request.subject}, which has no exact gap here, got "
                "None. Pass key=jax.random.key(0) to simulate prompts"
                f"{f', or {words}' if words else ''}."
            )
        return "estimate"
    if kind == "bound" and request.sub_gaussian is None:
        raise ValueError(
            "`sub_gaussian` must be given for kind='bound': no constant s with "
            "E exp<a, z - mean> <= exp(s^2 |a|^2 / 2) is known for "
            f"{type(request.measure).__name__} tokens. Pass sub_gaussian=s."
        )
    if kind not in possible:
        allowed = " or ".join(f"'{each}'" for each in possible)
        raise KindUnavailableError(f"`kind` must be {allowed} for {request.subject}, got '{kind}'.")
    require_key_to_simulate(kind, key)
    return kind  # pyright: ignore[reportReturnType]
