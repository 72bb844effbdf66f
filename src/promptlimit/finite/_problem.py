"""A validated problem: attention, law of the prompt, queries and prompt lengths.

An *obstacle* is the reason why a rule does not apply to a problem. The functions that check a rule
return the obstacle, or None if the rule applies.
"""

import contextlib
import dataclasses
import math
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
    require_dimension,
    require_shape,
    type_name,
)
from promptlimit.attention import AbstractAttention, KernelName, require_matrix
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
)
from promptlimit.prompts import Prompt, PromptLaw, as_prompt
from promptlimit.weights import AbstractScoreLaw, KnownTokens, score_law

Result = TypeVar("Result")

_SEVERAL = "several heads need the joint law of their weights (their means add up)"
_SEVERAL_LAYERS = "it has more than one layer"
_NO_HEADS = "it does not implement `as_heads`"
_NO_GRADIENT = "it does not implement `gradient_structure`"


@dataclasses.dataclass(frozen=True)
class TiltedHead:
    r"""One head at one query z: $V\,r(\mu,t)$ with the kernel r and the tilt $t=Uz$.

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
    r"""One head whose output, or gradient in a parameter, is compared between two prompts.

    Let r and r' be the kernels of the head over the two prompts at the tilt t, and C and C' their
    derivatives in t. The squared distance at the query z is $w\,|V(r-r')|^2$ for an output or the
    gradient in a value matrix, and $w\,\|K(C-C')V^\top\|_F^2$ for the gradient in a score matrix.
    The factor w is 1 if `factor` is None, and $|Fz|^2$ otherwise.

    Attributes:
        kernel: "softmax" or "linear".
        key_query: $U$, [token_dim, query_dim].
        value: $V$, [output_dim, token_dim]; for a gradient, $\sqrt a\,V'$ of `GradientStructure`.
        left: $K$, [k, token_dim], for the gradient in a score matrix; None otherwise.
        factor: $F$, [f, query_dim], if $w=|Fz|^2$; None otherwise.
    """

    kernel: KernelName
    key_query: Array
    value: Array
    left: Array | None = None
    factor: Array | None = None

    def at(self, query: Array) -> TiltedHead:
        """Return the head at a query."""
        return TiltedHead(self.kernel, self.key_query @ query, self.value)

    def factor_at(self, query: Array) -> float:
        """Return the factor w at a query."""
        if self.factor is None:
            return 1.0
        return float(np.sum((self.factor @ query) ** 2))


@dataclasses.dataclass(frozen=True)
class KnownPart:
    """The tokens and sinks that are in every prompt.

    Attributes:
        tokens: the fixed tokens, then the query if it is a token of its prompt, [k, d].
        sinks: the scores of the sinks, whose values are zero, [j].
        offset: the number that is added to the scores of the random tokens.
    """

    tokens: Array
    sinks: Array
    offset: float = 0.0

    @staticmethod
    def of(tokens: Array) -> "KnownPart":
        """Return known tokens, [k, d], without sinks."""
        return KnownPart(tokens, np.zeros(0))

    @property
    def size(self) -> int:
        """The number of tokens and sinks."""
        return len(self.tokens) + self.sinks.size

    def along(self, law: AbstractScoreLaw, value: Array, limit: Array) -> KnownTokens:
        """Return the scores and values of the tokens, then of the sinks, along the tilt of `law`.

        The offsets of `law` and of the random tokens are subtracted from the scores, and `limit`
        is subtracted from the values.
        """
        scores = [law.score_of(token) for token in self.tokens]
        scores = np.array([*scores, *(self.sinks - law.offset)]) - self.offset
        sunk = np.zeros((self.sinks.size, limit.size))
        return KnownTokens(scores, np.concatenate([self.tokens @ value.T, sunk]) - limit)


@dataclasses.dataclass(frozen=True)
class Problem:
    """An attention over prompts at queries, for n lengths.

    Rules obtain the heads, the law of a token and the limit from this class. Heads and laws are
    computed once, in double precision.

    Attributes:
        attention: the attention over the prompts, in double precision.
        prompt: the law of a prompt, in double precision.
        queries: one query, several queries, or the law of the query.
        lengths: the numbers of random tokens, [n]; for a prompt with a slope, early tokens of
            negligible weight are not counted.
        wrt: the parameter whose gradient is compared; None for outputs.
        including_query: whether the query is itself a token of the prompt.
        sub_gaussian: the sub-Gaussian constant of the tokens, if the user passed one; else None.
        causal: whether each token of a stack attends only to itself and to earlier tokens.
    """

    attention: AbstractAttention
    prompt: Prompt
    queries: Queries
    lengths: Array
    wrt: str | None = None
    including_query: bool = False
    sub_gaussian: float | None = None
    causal: bool = False
    _cache: dict[object, Any] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Results that do not depend on the lengths; shared between copies of the problem."""

    @property
    def measure(self) -> AbstractMeasure:
        """The law of a token in an infinite prompt."""
        with jax.enable_x64(True):
            return self._cached("measure", lambda: self.prompt.token_law)

    @property
    def prompt_description(self) -> str:
        """How the prompt differs from independent tokens, as text; empty if it does not."""
        return self.prompt.words

    @property
    def subject(self) -> str:
        """The problem as text for messages."""
        attention, measure = type(self.attention).__name__, type(self.prompt.law).__name__
        where = "" if self.queries.is_one else f" at {self.queries.name}"
        inside = ", query inside" if self.including_query else ""
        mask = ", causal mask" if self.causal else ""
        what = "" if self.wrt is None else f" (gradient in {self.wrt})"
        extras = f" with {self.prompt.extras}" if self.prompt.extras else ""
        return f"{attention} over {measure} tokens{extras}{where}{inside}{mask}{what}"

    @property
    def query(self) -> Array:
        """The first query, for problems at one query."""
        return self.queries.points[0]

    @property
    def known(self) -> KnownPart:
        """The tokens and sinks in every prompt, with the query if `including_query` is true."""
        prompt, dim = self.prompt, self.prompt.dim
        fixed = np.zeros((0, dim)) if prompt.fixed is None else as_float64(prompt.fixed)
        sinks = np.zeros(0) if prompt.sinks is None else as_float64(prompt.sinks)
        own = self.queries.points[:1] if self.including_query else np.zeros((0, dim))
        return KnownPart(np.concatenate([fixed, own]), sinks, prompt.offset)

    def at(self, query: Array) -> "Problem":
        """Return the problem at one query."""
        return self._sharing(dataclasses.replace(self, queries=Queries.one(query)))

    def with_lengths(self, lengths: Array) -> "Problem":
        """Return the problem at other lengths."""
        return self._sharing(dataclasses.replace(self, lengths=lengths))

    def _sharing(self, other: "Problem") -> "Problem":
        object.__setattr__(other, "_cache", self._cache)
        return other

    def _cached(self, name: object, compute: Callable[[], Result]) -> Result:
        """Return a result from the cache; compute it first if it is missing."""
        if name not in self._cache:
            self._cache[name] = compute()
        return self._cache[name]

    @property
    def heads(self) -> tuple[HeadProblem, ...] | None:
        """The heads, whose sum is the output without the residual; None if not known."""
        return self._cached("heads", self._compute_heads)

    def _compute_heads(self) -> tuple[HeadProblem, ...] | None:
        with jax.enable_x64(True):
            heads = self.attention.as_heads()
        problems = (
            HeadProblem(h.kernel, as_float64(h.key_query), as_float64(h.value)) for h in heads or ()
        )
        return tuple(problems) or None

    @property
    def layers(self) -> tuple[AbstractAttention, ...] | None:
        """The layers of a stack of several layers; None for one layer."""
        layers = self.attention.as_layers()
        return None if layers is None or len(layers) == 1 else layers

    @property
    def residual_output(self) -> Array:
        """The residual matrix times the query, which does not depend on the prompt."""
        residual = self._cached("residual", self._compute_residual)
        return np.zeros(self.attention.output_dim) if residual is None else residual @ self.query

    def _compute_residual(self) -> Array | None:
        with jax.enable_x64(True):
            residual = self.attention.residual_matrix()
        return None if residual is None else as_float64(residual)

    @property
    def compared_head(self) -> HeadProblem | None:
        """The head whose output or gradient is compared; None for several or unknown heads."""
        if self.wrt is None:
            return self.heads[0] if self.heads is not None and len(self.heads) == 1 else None
        return self._cached("compared_head", self._compute_gradient)

    def _compute_gradient(self) -> HeadProblem | None:
        with jax.enable_x64(True):
            gradient = self.attention.gradient_structure(str(self.wrt))
        if gradient is None:
            return None
        left, factor = (
            None if matrix is None else as_float64(matrix)
            for matrix in (gradient.left, gradient.factor)
        )
        head = gradient.head
        constant = float(gradient.constant)
        if not constant >= 0.0:
            raise ArgumentError(
                "attention",
                "must have gradients whose constant is at least 0, "
                f"got {constant} for `{self.wrt}`.",
            )
        value = math.sqrt(constant) * as_float64(head.value)
        return HeadProblem(head.kernel, as_float64(head.key_query), value, left, factor)

    @property
    def is_linear(self) -> bool:
        """Whether `compared_head` is a head of linear attention."""
        return self.compared_head is not None and self.compared_head.kernel == "linear"

    @property
    def parts(self) -> GaussianParts | None:
        """The Gaussians and atoms of which the law of a token is a mixture; None if not known."""
        return self._cached("parts", self.measure.gaussian_parts)

    @property
    def gaussian(self) -> GaussianParts | None:
        """The law of a token if it is Gaussian; else None."""
        return self.parts if self.parts is not None and self.parts.is_gaussian else None

    @property
    def tail_constant(self) -> float | None:
        """The sub-Gaussian constant of the tokens, from the user or the law; None if not known."""
        if self.sub_gaussian is not None:
            return self.sub_gaussian
        proxy = self._cached("proxy", self.measure.variance_proxy)
        return None if proxy is None else proxy.constant

    @cached_property
    def tilted_heads(self) -> tuple[TiltedHead, ...]:
        """The heads at the query; heads with equal kernel and tilt are merged."""
        merged: dict[tuple[str, bytes], TiltedHead] = {}
        for head in self.heads or ():
            here = head.at(self.query)
            place = (here.kernel, (here.tilt + 0.0).tobytes())  # + 0.0 turns -0.0 into 0.0
            if place in merged:
                here = dataclasses.replace(here, value=here.value + merged[place].value)
            merged[place] = here
        return tuple(merged.values())

    @cached_property
    def head(self) -> TiltedHead | None:
        """The compared head at the query, after merging; None unless there is exactly one."""
        if self.wrt is not None:
            return None if self.compared_head is None else self.compared_head.at(self.query)
        return self.tilted_heads[0] if len(self.tilted_heads) == 1 else None

    @property
    def no_head_reason(self) -> str:
        """Why `head` is None."""
        if self.layers is not None:
            return _SEVERAL_LAYERS
        if self.heads is None:
            return _NO_HEADS
        return _SEVERAL if self.wrt is None or len(self.heads) > 1 else _NO_GRADIENT

    def limit(self) -> Array:
        r"""Return $T[\mu](z)$ at the query, or its gradient in `wrt`; raise if it is infinite."""
        with jax.enable_x64(True):
            limit = as_float64(self.limit_at(self.query))
        if not (np.isfinite(limit).all() or self.measure.finite_everywhere):
            raise OutsideDomainError(
                "query",
                f"must have a finite limit for {self.subject}, but the limit is infinite there. "
                "Scale the query or the key-query matrix down.",
            )
        return limit

    def limit_at(self, query: Array | JaxArray) -> JaxArray:
        """Return the limit, or its gradient in `wrt`, at a query; call inside `enable_x64`."""
        if self.wrt is None:
            return self.attention(self.limit_measure, query)
        return self.attention.jacobian(self.limit_measure, query, wrt=self.wrt)

    @property
    def limit_measure(self) -> AbstractMeasure:
        """The law of a token; for a stack, converted to `Gaussian` or `Empirical` if possible."""
        if self.layers is None or self.parts is None:
            return self.measure
        if self.parts.is_gaussian:
            return Gaussian(self.parts.means[0], self.parts.all_covs()[0])
        if self.parts.covs is None:
            return Empirical(self.parts.means, self.parts.weights)
        return self.measure

    def law_along(self, tilt: Array) -> AbstractScoreLaw:
        """Return the law of a token along a tilt; raise NotAnalyticError if it has none."""
        return self._cached(tilt.tobytes(), lambda: score_law(self.measure, tilt))

    def law_obstacle(self, tilt: Array) -> str | None:
        """Return why `law_along` raises NotAnalyticError; None if it does not."""
        try:
            self.law_along(tilt)
        except NotAnalyticError as error:
            return f"of {type(self.measure).__name__} tokens {error}"
        return None

    def leading_obstacle(self, tilt: Array) -> str | None:
        """Return why softmax at a tilt has no leading order in 1/L; None if it has one."""
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
        """Add the attention, the law and the query to errors raised in the context."""
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
    measure: PromptLaw,
    lengths: Array,
    *,
    query: ArrayLike | None = None,
    queries: AbstractMeasure | ArrayLike | None = None,
    wrt: str | None = None,
    including_query: bool = False,
    sub_gaussian: float | None = None,
    causal: bool = False,
    any_prompt: bool = False,
) -> Problem:
    """Return the validated problem at `query` or at `queries`.

    `measure` may be any law of prompts if `any_prompt` is true; otherwise it must be a measure.
    """
    prompt = as_prompt("measure", measure)
    _require_fitting(attention, prompt)
    if prompt.words and not any_prompt:
        raise ArgumentError(
            "measure",
            f"must be a measure here, got a prompt with {prompt.words}. `prompt_moments`, "
            "`gradient_moments`, `output_gap`, `gradient_gap` and `output_law` take prompts.",
        )
    _require_scores(attention, prompt, wrt)
    process = prompt.process
    if process is not None and lengths.size and lengths.max() > process.most_tokens:
        raise ArgumentError(
            "lengths",
            f"must be at most {process.most_tokens:g} for {type(process).__name__}, the number "
            f"of tokens to draw from, got {lengths.max():g}.",
        )
    if sub_gaussian is not None and not (
        isinstance(sub_gaussian, Real) and 0.0 < sub_gaussian < np.inf
    ):
        raise ArgumentError(
            "sub_gaussian",
            f"must be a positive number, got {sub_gaussian!r}. It is a scale, like a "
            "standard deviation.",
        )
    if not isinstance(including_query, bool | np.bool_):
        raise ArgumentError("including_query", f"must be True or False, got {including_query!r}.")
    if including_query and attention.query_dim != attention.token_dim:
        raise ArgumentError(
            "including_query",
            f"must be False when queries (dimension {attention.query_dim}) are "
            f"not tokens (dimension {attention.token_dim}), got True.",
        )
    _require_mask(attention, prompt, causal, including_query)
    if wrt is not None:
        require_matrix(attention, wrt)
    constant = None if sub_gaussian is None else float(sub_gaussian)
    with jax.enable_x64(True):
        if query is None:
            where = checked_queries(queries, attention.query_dim)
        else:
            point = float_array("query", query, rank=1)
            reason = "as the attention expects"
            require_shape("query", point, (attention.query_dim,), reason)
            where = Queries.one(as_float64(point))
        both = in_double(attention), in_double(prompt)
    lengths = prompt.positions_that_count(lengths)
    return Problem(*both, where, lengths, wrt, including_query, constant, causal)


def _require_scores(attention: AbstractAttention, prompt: Prompt, wrt: str | None) -> None:
    """Raise for a prompt with sinks, an offset or a slope if not all heads are softmax heads."""
    if not prompt.has_own_scores:
        return
    heads = attention.as_heads() if attention.as_layers() is None else None
    if not heads or any(head.kernel != "softmax" for head in heads):
        raise ArgumentError(
            "measure",
            "must have no sinks, offset or slope unless the attention is a sum of softmax heads, "
            f"got a prompt with {prompt.words} for {type(attention).__name__}.",
        )
    if wrt is not None:
        raise ArgumentError(
            "measure",
            f"must have no sinks, offset or slope for gradients, got a prompt with {prompt.words}.",
        )


def _require_mask(
    attention: AbstractAttention, prompt: Prompt, causal: bool, including_query: bool
) -> None:
    """Raise for a causal mask that does not apply to the attention or the prompt."""
    if not isinstance(causal, bool | np.bool_):
        raise ArgumentError("causal", f"must be True or False, got {causal!r}.")
    if causal and attention.as_layers() is None:
        raise ArgumentError(
            "causal",
            f"must be False for {type(attention).__name__}, got True: it is one layer, and its "
            "query attends to all tokens. Pass a promptlimit.Stack.",
        )
    if causal and prompt.fixed is not None:
        raise ArgumentError(
            "causal", "must be False for a prompt with known tokens, which have no position."
        )
    if causal and including_query:
        raise ArgumentError(
            "including_query",
            "must be False under a causal mask, got True. The query is at "
            "the end and attends to every token. Include it without the mask.",
        )


def _require_fitting(attention: AbstractAttention, prompt: Prompt) -> None:
    """Raise if the attention and the prompt have tokens of different dimensions."""
    if not isinstance(attention, AbstractAttention):
        raise ArgumentError("attention", f"must be an attention, got {type_name(attention)}.")
    for dimension in ("token_dim", "query_dim", "output_dim"):
        require_dimension(attention, dimension)
    require_dimension(prompt.law, "dim")
    if prompt.dim != attention.token_dim:
        raise ArgumentError(
            "measure",
            f"must have tokens of dimension {attention.token_dim} (as the "
            f"attention expects), got {prompt.dim}.",
        )


def first_obstacle(*reasons: tuple[bool, str]) -> str | None:
    """Return the reason of the first pair whose condition holds; None if none does."""
    return next((reason for holds, reason in reasons if holds), None)
