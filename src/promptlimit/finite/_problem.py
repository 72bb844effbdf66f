"""What a user asks, checked: an attention over tokens from a law, at queries, for some lengths."""

import contextlib
import dataclasses
from collections.abc import Callable, Generator
from functools import cached_property
from numbers import Real
from typing import Any, TypeVar

import jax
import numpy as np
from jaxtyping import Array as JaxArray

from promptlimit._arrays import Array, ArrayLike, as_float64
from promptlimit._inputs import (
    float_array,
    in_double,
    require_choice,
    require_dimension,
    require_shape,
    type_name,
)
from promptlimit.attention import AbstractAttention, KernelName
from promptlimit.errors import (
    AccuracyError,
    ArgumentError,
    KindUnavailableError,
    NotAnalyticError,
    OutsideDomainError,
)
from promptlimit.finite._queries import Queries, checked_queries
from promptlimit.measures import (
    AbstractMeasure,
    Empirical,
    Gaussian,
    GaussianParts,
    require_in_domain,
    require_measure,
)
from promptlimit.weights import AbstractScoreLaw, score_law

Known = TypeVar("Known")

_SEVERAL = "several heads need the joint law of their weights (their means add up)"
_STACKED = "its upper layers read what the lower ones make of the prompt"
_SILENT = "it does not say which heads it is (write `as_heads`)"
_SILENT_GRADIENT = "it does not say what its gradients read (write `gradient_structure`)"


@dataclasses.dataclass(frozen=True)
class TiltedHead:
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
class HeadProblem:
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

    def at(self, query: Array) -> TiltedHead:
        """Return the head at a query."""
        return TiltedHead(self.kernel, self.key_query @ query, self.value)

    def size(self, query: Array) -> float:
        """Return what multiplies the squared distance at a query."""
        if self.factor is None:
            return self.constant
        return float(np.sum((self.factor @ query) ** 2))


@dataclasses.dataclass(frozen=True)
class Problem:
    """An attention over tokens from a law, at queries, for some lengths.

    What an attention or a law knows of itself is asked of it here, in double precision, once, and
    nowhere else.

    Attributes:
        attention: what reads the prompts, in double precision.
        measure: the law of a token, in double precision.
        queries: one query, several, or their law.
        lengths: how many tokens a prompt has, [n].
        wrt: the parameter whose gradient is compared; None for outputs.
        including_query: whether the query is itself a token of the prompt.
        sub_gaussian: the constant of the tokens' tails, where the user gave one.
        causal: whether the tokens of a stack see only those before them.
    """

    attention: AbstractAttention
    measure: AbstractMeasure
    queries: Queries
    lengths: Array
    wrt: str | None = None
    including_query: bool = False
    sub_gaussian: float | None = None
    causal: bool = False
    _known: dict[object, Any] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Results of methods of the attention and the law, shared by other queries and lengths."""

    @property
    def subject(self) -> str:
        """What is asked, in words."""
        attention, measure = type(self.attention).__name__, type(self.measure).__name__
        where = "" if self.queries.is_one else f" at {self.queries.name}"
        inside = ", query inside" if self.including_query else ""
        mask = ", causal mask" if self.causal else ""
        what = "" if self.wrt is None else f" (gradient in {self.wrt})"
        return f"{attention} over {measure} tokens{where}{inside}{mask}{what}"

    @property
    def query(self) -> Array:
        """The query, where there is one."""
        return self.queries.points[0]

    @property
    def own_token(self) -> Array | None:
        """The query where it is a token of the prompt."""
        return self.query if self.including_query else None

    def at(self, query: Array) -> "Problem":
        """Return the problem at one query."""
        return self._sharing(dataclasses.replace(self, queries=Queries.one(query)))

    def with_lengths(self, lengths: Array) -> "Problem":
        """Return the problem at other lengths."""
        return self._sharing(dataclasses.replace(self, lengths=lengths))

    def _sharing(self, other: "Problem") -> "Problem":
        """Return a problem of the same attention, law and `wrt`, with the results known here."""
        object.__setattr__(other, "_known", self._known)
        return other

    def _once(self, name: object, ask: Callable[[], Known]) -> Known:
        if name not in self._known:
            self._known[name] = ask()
        return self._known[name]

    @property
    def heads(self) -> tuple[HeadProblem, ...] | None:
        """The outputs of the heads that the attention is the sum of, if it says so."""
        return self._once("heads", self._ask_heads)

    def _ask_heads(self) -> tuple[HeadProblem, ...] | None:
        with jax.enable_x64(True):
            heads = self.attention.as_heads()
        readings = (
            HeadProblem(h.kernel, as_float64(h.key_query), as_float64(h.value)) for h in heads or ()
        )
        return tuple(readings) or None

    @property
    def layers(self) -> tuple[AbstractAttention, ...] | None:
        """The layers of a stack of several, if the attention says that it is one."""
        layers = self.attention.as_layers()
        return None if layers is None or len(layers) == 1 else layers

    @property
    def passed_by(self) -> Array:
        """What the attention adds to its heads at the query, whatever the prompt."""
        residual = self._once("residual", self._ask_residual)
        return np.zeros(self.attention.output_dim) if residual is None else residual @ self.query

    def _ask_residual(self) -> Array | None:
        with jax.enable_x64(True):
            residual = self.attention.residual_matrix()
        return None if residual is None else as_float64(residual)

    @property
    def reading(self) -> HeadProblem | None:
        """What is compared, where it is of one head and the attention says so."""
        if self.wrt is None:
            return self.heads[0] if self.heads is not None and len(self.heads) == 1 else None
        return self._once("reading", self._ask_gradient)

    def _ask_gradient(self) -> HeadProblem | None:
        with jax.enable_x64(True):
            gradient = self.attention.gradient_structure(str(self.wrt))
        if gradient is None:
            return None
        left, factor = (
            None if matrix is None else as_float64(matrix)
            for matrix in (gradient.left, gradient.factor)
        )
        matrices = as_float64(gradient.head.key_query), as_float64(gradient.head.value)
        return HeadProblem(gradient.head.kernel, *matrices, left, float(gradient.constant), factor)

    @property
    def is_linear(self) -> bool:
        """Whether what is compared is of one head of linear attention."""
        return self.reading is not None and self.reading.kernel == "linear"

    @property
    def parts(self) -> GaussianParts | None:
        """The Gaussians and atoms the law is made of, if it says so."""
        return self._once("parts", self.measure.gaussian_parts)

    @property
    def gaussian(self) -> GaussianParts | None:
        """The same where it is one Gaussian."""
        return self.parts if self.parts is not None and self.parts.is_gaussian else None

    @property
    def tail_constant(self) -> float | None:
        """The sub-Gaussian constant of the tokens: the user's, or what the law knows."""
        if self.sub_gaussian is not None:
            return self.sub_gaussian
        proxy = self._once("proxy", self.measure.variance_proxy)
        return None if proxy is None else proxy.constant

    @cached_property
    def tilted_heads(self) -> tuple[TiltedHead, ...]:
        """The heads at the query, those of one kernel and one tilt merged; none if not known."""
        merged: dict[tuple[str, bytes], TiltedHead] = {}
        for head in self.heads or ():
            here = head.at(self.query)
            place = (here.kernel, (here.tilt + 0.0).tobytes())  # -0.0 is 0.0
            if place in merged:
                here = dataclasses.replace(here, value=here.value + merged[place].value)
            merged[place] = here
        return tuple(merged.values())

    @cached_property
    def head(self) -> TiltedHead | None:
        """What is compared at the query, where it is of one head."""
        if self.wrt is not None:
            return None if self.reading is None else self.reading.at(self.query)
        return self.tilted_heads[0] if len(self.tilted_heads) == 1 else None

    @property
    def no_head_reason(self) -> str:
        """Why what is compared is not of one head, where it is not."""
        if self.layers is not None:
            return _STACKED
        if self.heads is None:
            return _SILENT
        return _SEVERAL if self.wrt is None or len(self.heads) > 1 else _SILENT_GRADIENT

    def limit(self) -> Array:
        r"""Return $T[\mu](z)$ at the query, or its gradient, where it is finite."""
        with jax.enable_x64(True):
            limit = as_float64(self.limit_at(self.query))
        if not (np.isfinite(limit).all() or self.measure.finite_everywhere):
            raise OutsideDomainError(
                "query",
                f"must have a finite limit for {self.subject}, got one where it is infinite. "
                "Scale the query or the key-query matrix down.",
            )
        return limit

    def limit_at(self, query: Array | JaxArray) -> JaxArray:
        """Return the same at any query; call inside `enable_x64`."""
        if self.wrt is None:
            return self.attention(self.prompt, query)
        return self.attention.jacobian(self.prompt, query, wrt=self.wrt)

    @property
    def prompt(self) -> AbstractMeasure:
        """The law as a prompt: for a stack one Gaussian or atoms, where it is that in disguise."""
        if self.layers is None or self.parts is None:
            return self.measure
        if self.parts.is_gaussian:
            return Gaussian(self.parts.means[0], self.parts.all_covs()[0])
        if self.parts.covs is None:
            return Empirical(self.parts.means, self.parts.weights)
        return self.measure

    def law_along(self, tilt: Array) -> AbstractScoreLaw:
        """Return the law of a token along a tilt, or raise `NotAnalyticError`."""
        return self._once(tilt.tobytes(), lambda: score_law(self.measure, tilt))

    def law_obstacle(self, tilt: Array) -> str | None:
        """Return why there is no law along a tilt; None if there is one."""
        try:
            self.law_along(tilt)
        except NotAnalyticError as error:
            return f"of {type(self.measure).__name__} tokens {error}"
        return None

    def leading_obstacle(self, tilt: Array) -> str | None:
        r"""Return why softmax at a tilt has no leading order in 1/L; None if it has.

        That order is made of the second moments of the weights, $e^{\Lambda(2t)}$.
        """
        with jax.enable_x64(True):
            require_in_domain(self.measure, tilt)
            try:
                require_in_domain(self.measure, 2.0 * tilt)
            except OutsideDomainError:
                return (
                    f"of {type(self.measure).__name__} tokens the weights have no second moment "
                    "(the log-Laplace transform is not finite at twice the tilt)"
                )
        return None

    @contextlib.contextmanager
    def add_context(self) -> Generator[None]:
        """Say of what a law is not analytic, or moments are not exact."""
        try:
            yield
        except NotAnalyticError as error:
            raise KindUnavailableError(
                "kind", f"must be 'estimate', with a key, for {self.subject}: {error}."
            ) from error
        except AccuracyError as error:
            raise AccuracyError(
                f"For {self.subject}, {error} Or pass kind='estimate' and a key to simulate "
                "prompts.",
                argument=error.argument,
            ) from error


def checked_problem(
    attention: AbstractAttention,
    measure: AbstractMeasure,
    lengths: Array,
    *,
    query: ArrayLike | None = None,
    queries: AbstractMeasure | ArrayLike | None = None,
    wrt: str | None = None,
    including_query: bool = False,
    sub_gaussian: float | None = None,
    causal: bool = False,
) -> Problem:
    """Return the problem at one query or at several, or say what does not fit."""
    _require_fitting(attention, measure)
    if sub_gaussian is not None and not (
        isinstance(sub_gaussian, Real) and 0.0 < sub_gaussian < np.inf
    ):
        raise ArgumentError(
            "sub_gaussian",
            f"must be a positive number, got {sub_gaussian!r}. It is a scale, as a "
            "standard deviation is.",
        )
    if not isinstance(including_query, bool | np.bool_):
        raise ArgumentError("including_query", f"must be True or False, got {including_query!r}.")
    if including_query and attention.query_dim != attention.token_dim:
        raise ArgumentError(
            "including_query",
            f"must be False when queries (dimension {attention.query_dim}) are "
            f"not tokens (dimension {attention.token_dim}), got True.",
        )
    _require_mask(attention, causal, including_query)
    if wrt is not None:
        require_choice("wrt", wrt, attention.matrices())
    constant = None if sub_gaussian is None else float(sub_gaussian)
    with jax.enable_x64(True):
        if query is None:
            where = checked_queries(queries, attention.query_dim)
        else:
            point = float_array("query", query, rank=1)
            reason = "what the attention's parameters take"
            require_shape("query", point, (attention.query_dim,), reason)
            where = Queries.one(as_float64(point))
        both = in_double(attention), in_double(measure)
    return Problem(*both, where, lengths, wrt, including_query, constant, causal)


def _require_mask(attention: AbstractAttention, causal: bool, including_query: bool) -> None:
    """Refuse a mask that is no truth value, over one layer, or with the query among the tokens."""
    if not isinstance(causal, bool | np.bool_):
        raise ArgumentError("causal", f"must be True or False, got {causal!r}.")
    if causal and attention.as_layers() is None:
        raise ArgumentError(
            "causal",
            f"must be False for {type(attention).__name__}, which is one layer: its query "
            "sees all tokens, got True. Pass a promptlimit.Stack.",
        )
    if causal and including_query:
        raise ArgumentError(
            "including_query",
            "must be False under a causal mask, got True. The query stands at "
            "the end and sees every token; let it be one of them without the mask.",
        )


def _require_fitting(attention: AbstractAttention, measure: AbstractMeasure) -> None:
    """Refuse what is no attention, no measure, or a measure of tokens of another dimension."""
    if not isinstance(attention, AbstractAttention):
        raise ArgumentError("attention", f"must be an attention, got {type_name(attention)}.")
    require_measure("measure", measure)
    for dimension in ("token_dim", "query_dim", "output_dim"):
        require_dimension(attention, dimension)
    require_dimension(measure, "dim")
    if measure.dim != attention.token_dim:
        raise ArgumentError(
            "measure",
            f"must have tokens of dimension {attention.token_dim} (what the attention's "
            f"parameters take), got {measure.dim}.",
        )


def first_obstacle(*reasons: tuple[bool, str]) -> str | None:
    """Return the reason of the first condition that holds."""
    return next((reason for holds, reason in reasons if holds), None)
