"""What a user asks, checked: an attention over tokens from a law, at queries, for some lengths."""

import contextlib
import dataclasses
from collections.abc import Iterator
from functools import cached_property
from numbers import Real

import jax
import numpy as np

from promptlimit._arrays import Array, ArrayLike, doubles
from promptlimit._inputs import float_array, require_choice, require_shape
from promptlimit.attention import AbstractAttention, KernelName
from promptlimit.finite._accuracy import AccuracyError, KindUnavailableError, NotAnalyticError
from promptlimit.finite._precision import in_double
from promptlimit.finite._prompts import AbstractScoreLaw
from promptlimit.finite._queries import Queries, checked_queries
from promptlimit.finite._ray_law import score_law
from promptlimit.measures import AbstractMeasure, GaussianParts, require_measure


@dataclasses.dataclass(frozen=True)
class Head:
    r"""One head at one query: $V\,r(\mu,t)$, $t=Uz$.

    Attributes:
        kernel: "softmax" or "linear".
        tilt: $t$, [token_dim].
        value: $V$, [output_dim, token_dim].
    """

    kernel: KernelName
    tilt: Array
    value: Array


@dataclasses.dataclass(frozen=True)
class Reading:
    r"""What is compared between prompts, of one head: its output, or a parameter's gradient.

    The squared distance between two prompts at query z is $|Fz|^2$ (or `constant`) times that of
    $Vr$, or of $KCV^\top$ for a score matrix, $C=\partial r/\partial t$.

    Attributes:
        kernel: "softmax" or "linear".
        key_query: $U$, [token_dim, query_dim].
        value: $V$, [output_dim, token_dim].
        left: $K$ for a score matrix, [k, token_dim]; None otherwise.
        constant: what multiplies the distance when it does not depend on the query...
        factor: ... and $F$ when it does, [f, query_dim].
    """

    kernel: KernelName
    key_query: Array
    value: Array
    left: Array | None = None
    constant: float = 1.0
    factor: Array | None = None

    def at(self, query: Array) -> Head:
        """Return the head at a query."""
        return Head(self.kernel, self.key_query @ query, self.value)

    def size(self, query: Array) -> float:
        """Return what multiplies the squared distance at a query."""
        if self.factor is None:
            return self.constant
        return float(np.sum((self.factor @ query) ** 2))


@dataclasses.dataclass(frozen=True)
class Problem:
    """An attention over tokens from a law, at queries, for some lengths.

    What an attention or a law knows of itself is asked of it here, in double precision, and
    nowhere else.

    Attributes:
        attention: what reads the prompts.
        measure: the law of a token.
        queries: one query, several, or their law.
        lengths: how many tokens a prompt has, [n].
        wrt: the parameter whose gradient is compared; None for outputs.
        including_query: whether the query is itself a token of the prompt.
        sub_gaussian: the constant of the tokens' tails, where the user gave one.
    """

    attention: AbstractAttention
    measure: AbstractMeasure
    queries: Queries
    lengths: Array
    wrt: str | None = None
    including_query: bool = False
    sub_gaussian: float | None = None
    _laws: dict[bytes, AbstractScoreLaw] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def subject(self) -> str:
        """What is asked, in words."""
        attention, measure = type(self.attention).__name__, type(self.measure).__name__
        where = "" if self.queries.is_one else f" at {self.queries.name}"
        inside = ", query inside" if self.including_query else ""
        what = "" if self.wrt is None else f" (gradient in {self.wrt})"
        return f"{attention} over {measure} tokens{where}{inside}{what}"

    @property
    def query(self) -> Array:
        """The query, where there is one."""
        return self.queries.points[0]

    @property
    def own_token(self) -> Array | None:
        """The query where it is a token of the prompt."""
        return self.query if self.including_query else None

    def at(self, query: Array) -> "Problem":
        """Return the same at one query."""
        return dataclasses.replace(self, queries=Queries.one(query))

    @cached_property
    def heads(self) -> tuple[Reading, ...] | None:
        """The outputs of the heads that the attention is the sum of, if it says so."""
        with jax.enable_x64(True):
            heads = in_double(self.attention).heads_read()
        if not heads:
            return None
        return tuple(
            Reading(head.kernel, doubles(head.key_query), doubles(head.value)) for head in heads
        )

    @cached_property
    def reading(self) -> Reading | None:
        """What is compared, where it is of one head and the attention says so."""
        if self.wrt is None:
            return self.heads[0] if self.heads is not None and len(self.heads) == 1 else None
        with jax.enable_x64(True):
            found = in_double(self.attention).gradient_reading(self.wrt)
        if found is None:
            return None
        head = found.head
        return Reading(
            head.kernel,
            doubles(head.key_query),
            doubles(head.value),
            None if found.left is None else doubles(found.left),
            float(found.constant),
            None if found.factor is None else doubles(found.factor),
        )

    @property
    def is_linear(self) -> bool:
        """Whether what is compared is of one head of linear attention."""
        return self.reading is not None and self.reading.kernel == "linear"

    @cached_property
    def parts(self) -> GaussianParts | None:
        """The Gaussians and atoms the law is made of, if it says so."""
        return self.measure.gaussian_parts()

    @property
    def gaussian(self) -> GaussianParts | None:
        """The same where it is one Gaussian."""
        return self.parts if self.parts is not None and self.parts.is_gaussian else None

    @cached_property
    def tail_constant(self) -> float | None:
        """The sub-Gaussian constant of the tokens: the user's, or what the law knows."""
        if self.sub_gaussian is not None:
            return self.sub_gaussian
        proxy = self.measure.variance_proxy()
        return None if proxy is None else proxy.constant

    def heads_at_query(self) -> tuple[Head, ...]:
        """Return the heads at the query, those of one kernel and one tilt merged; if known."""
        merged: dict[tuple[str, bytes], Head] = {}
        for head in self.heads or ():
            here = head.at(self.query)
            place = (here.kernel, (here.tilt + 0.0).tobytes())  # -0.0 is 0.0
            if place in merged:
                here = dataclasses.replace(here, value=here.value + merged[place].value)
            merged[place] = here
        return tuple(merged.values())

    def head(self) -> Head | None:
        """Return what is compared at the query, where it is of one head."""
        if self.wrt is not None:
            return None if self.reading is None else self.reading.at(self.query)
        heads = self.heads_at_query()
        return heads[0] if len(heads) == 1 else None

    def limit(self) -> Array:
        r"""Return $T[\mu](z)$ at the query."""
        with jax.enable_x64(True):
            attention, measure = in_double(self.attention), in_double(self.measure)
            return doubles(attention(measure, self.query))

    def law_along(self, tilt: Array) -> AbstractScoreLaw:
        """Return the law of a token along a tilt, or raise `NotAnalyticError`; once a tilt."""
        place = tilt.tobytes()
        if place not in self._laws:
            self._laws[place] = score_law(self.measure, tilt)
        return self._laws[place]

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Say of what a law is not analytic, or moments are not exact."""
        try:
            yield
        except NotAnalyticError as error:
            raise KindUnavailableError(
                f"`kind` must be 'estimate' for {self.subject}, got 'exact': {error}."
            ) from error
        except AccuracyError as error:
            raise AccuracyError(f"For {self.subject}, {error}") from error

    def law_obstacle(self, tilt: Array) -> str | None:
        """Return why there is no law along a tilt; None if there is one."""
        try:
            self.law_along(tilt)
        except NotAnalyticError as error:
            return f"of {type(self.measure).__name__} tokens {error}"
        return None


def checked_problem(
    attention: AbstractAttention,
    measure: AbstractMeasure,
    queries: AbstractMeasure | ArrayLike,
    lengths: Array,
    *,
    wrt: str | None = None,
    including_query: bool = False,
    sub_gaussian: float | None = None,
) -> Problem:
    """Return the problem, or say what does not fit."""
    require_fitting(attention, measure)
    if sub_gaussian is not None and not (
        isinstance(sub_gaussian, Real) and 0.0 < sub_gaussian < np.inf
    ):
        raise ValueError(
            f"`sub_gaussian` must be a positive number, got {sub_gaussian!r}. It is a scale, as a "
            "standard deviation is."
        )
    if not isinstance(including_query, bool | np.bool_):
        raise ValueError(f"`including_query` must be True or False, got {including_query!r}.")
    if including_query and attention.query_dim != attention.token_dim:
        raise ValueError(
            f"`including_query` must be False when queries (dimension {attention.query_dim}) are "
            f"not tokens (dimension {attention.token_dim}), got True."
        )
    if wrt is not None:
        require_choice("wrt", wrt, attention.matrices())
    taken_apart = checked_queries(queries, attention)
    constant = None if sub_gaussian is None else float(sub_gaussian)
    return Problem(attention, measure, taken_apart, lengths, wrt, including_query, constant)


def checked_query(query: ArrayLike, attention: AbstractAttention) -> Array:
    """Return one query as an array [1, query_dim] of queries, or say what does not fit."""
    with jax.enable_x64(True):
        point = float_array("query", query, rank=1)
        reason = "what the attention's parameters take"
        require_shape("query", point, (attention.query_dim,), reason)
        return doubles(point)[None]


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
