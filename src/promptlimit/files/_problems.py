"""Problems (attention, law of tokens, queries) read from named arrays in files, and examples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from promptlimit._inputs import require_choice
from promptlimit.attention import (
    AbstractAttention,
    Factored,
    Layer,
    LinearAttention,
    SoftmaxAttention,
    Stack,
)
from promptlimit.errors import ArgumentError
from promptlimit.measures import (
    AbstractMeasure,
    Empirical,
    Gaussian,
    Mixture,
    Rademacher,
    UniformCube,
    UniformSphere,
)
from promptlimit.storage import read_arrays

Arrays = Mapping[str, np.ndarray | str]
Queries = AbstractMeasure | np.ndarray

_PROMPTS = {
    "gaussian": ("mean", "cov"),
    "tokens": ("tokens", "weights"),
    "rademacher": ("half_widths",),
    "cube": ("half_widths",),
    "sphere": ("radius",),
}
_OF_PROMPTS = {name for names in _PROMPTS.values() for name in names}
_MERGED = ("key_query", "value")
_FACTORS = ("key_weight", "query_weight", "value_weight", "output", "scale")
_NAMES = sorted(
    {"prompt", "kernel", "residual", *_MERGED, *_FACTORS, *_OF_PROMPTS}
    | {"query", "queries", "query_mean", "query_cov"}
)
_VECTORS = {"mean", "weights", "half_widths", "query", "query_mean"}
_NUMBERS = {"scale", "radius"}
_KERNELS = {"softmax": SoftmaxAttention, "linear": LinearAttention}


@dataclass(frozen=True)
class AttentionProblem:
    """An attention, the law of its tokens and its queries.

    Attributes:
        attention: a head, or a stack of layers.
        law: the law of a token, or a finite prompt; None if it is given separately.
        queries: the law of the queries, or an array with one query per row.
    """

    attention: AbstractAttention
    law: AbstractMeasure | None
    queries: Queries

    @property
    def measure(self) -> AbstractMeasure:
        """The law of a token; raises an error if it was not given."""
        if self.law is None:
            raise ArgumentError("prompt", "must be described by `cov`, `tokens` or a named law.")
        return self.law

    @property
    def query(self) -> np.ndarray:
        """The query; raises an error unless there is exactly one."""
        if isinstance(self.queries, np.ndarray) and len(self.queries) == 1:
            return self.queries[0]
        count = "a law of them" if isinstance(self.queries, AbstractMeasure) else len(self.queries)
        raise ArgumentError("query", f"must be one query here, got {count}.")


def read_problem(
    sources: Sequence[str], *, prompt: str | None = None, kernel: str | None = None
) -> AttentionProblem:
    """Return the problem that the named arrays in some files describe.

    The arrays describe the attention in one of two ways:

    - `key_query` and `value`, with shape [d, d] for a head, and [layers, d, d] or
      [layers, heads, d, d] for a stack; optionally `kernel` and, for a stack, `residual`,
      [layers, d, d];
    - `key_weight`, `query_weight` and `value_weight`; optionally `output` and `scale`.

    The law of the tokens is optional. The arrays describe it in one of four ways:

    - `tokens`, optionally `weights`;
    - `cov`, optionally `mean`, of a Gaussian;
    - `half_widths`, and `prompt` equal to "rademacher" or "cube";
    - `radius`, and `prompt` equal to "sphere".

    The queries are `query`, or `queries` with one query per row, or Gaussian with covariance
    `query_cov` and optionally mean `query_mean`.

    Args:
        sources: the files, in the form that `storage.read_arrays` accepts. Arrays of later files
            replace arrays of the same name in earlier files.
        prompt: "gaussian", "tokens", "rademacher", "cube" or "sphere"; replaces `prompt` in the
            files.
        kernel: "softmax" or "linear"; replaces `kernel` in the files.
    """
    arrays: dict[str, np.ndarray | str] = {}
    for source in sources:
        arrays.update(read_arrays(source, _NAMES))
    chosen = {"prompt": prompt, "kernel": kernel}
    arrays |= {name: text for name, text in chosen.items() if text is not None}
    for name in arrays:
        require_choice("array", name, _NAMES)
    shaped = {name: _shaped(name, value) for name, value in arrays.items()}
    with jax.enable_x64(True):
        attention = _attention(shaped)
        law = _law(shaped, attention.token_dim) if {"prompt", *_OF_PROMPTS} & {*shaped} else None
        return AttentionProblem(attention, law, _queries(shaped, attention.query_dim))


def standard_problem(dim: int, sharpness: float) -> AttentionProblem:
    r"""Return a head with $U=\tau I$ and $V=I$, and tokens and queries $N(0,I)$.

    Args:
        dim: the dimension of tokens and queries.
        sharpness: $\tau$.
    """
    if not 0.0 < sharpness < np.inf:
        raise ArgumentError("sharpness", f"must be positive and finite, got {sharpness:g}.")
    with jax.enable_x64(True):
        eye = np.eye(dim)
        normal = Gaussian(np.zeros(dim), eye)
        return AttentionProblem(SoftmaxAttention(sharpness * eye, eye), normal, normal)


_COV = [[1.0, 0.4], [0.4, 0.5]]
_LAWS: dict[str, Callable[[], AbstractMeasure]] = {
    "gaussian": lambda: Gaussian([0.0, 0.0], _COV),
    "shifted": lambda: Gaussian([1.0, -0.5], _COV),
    "tokens": lambda: Empirical(Gaussian([0.0, 0.0], _COV).sample(64, key=jax.random.key(0))),
    "mixture": lambda: Mixture(
        [0.5, 0.5], [Gaussian([1.0, 0.0], _COV), Gaussian([-1.0, 0.0], _COV)]
    ),
    "rademacher": lambda: Rademacher([1.0, 1.0]),
    "cube": lambda: UniformCube([1.0, 1.0]),
    "sphere": lambda: UniformSphere(2, 1.0),
}
_STACKS = {
    "softmax": ("softmax", 1.0, "shifted"),
    "linear": ("linear", 1.0, "gaussian"),
    "sharp": ("softmax", 5.0, "shifted"),
    "mixture": ("softmax", 1.0, "mixture"),
}
"""The kernel, a factor on the scores, and the law of the tokens, by the name of the stack."""
_SCORES = np.array([[[0.2, 0.1], [-0.1, 0.1]], [[-0.1, 0.1], [0.0, 0.1]]])
_VALUES = np.array([[[0.4, 0.0], [0.1, 0.3]], [[0.2, -0.2], [0.1, 0.2]]])
_QUERY = np.array([[1.0, -0.5]])


def example_problem(name: str) -> AttentionProblem:
    """Return a built-in problem: one head and one query over the tokens of a law.

    Args:
        name: the name of the law: "gaussian", "shifted", "tokens", "mixture", "rademacher", "cube"
            or "sphere".
    """
    require_choice("name", name, _LAWS)
    with jax.enable_x64(True):
        attention = SoftmaxAttention([[0.8, 0.3], [-0.2, 0.5]], [[1.0, 0.0], [0.5, 1.0]])
        return AttentionProblem(attention, _LAWS[name](), _QUERY)


def example_stack(name: str) -> AttentionProblem:
    """Return a built-in stack of three layers with two heads each, and one query.

    Args:
        name: "softmax", "linear", "sharp" (too sharp for the expansion in 1/L) or "mixture"
            (tokens from a mixture of two Gaussians).
    """
    require_choice("name", name, _STACKS)
    kernel, factor, law = _STACKS[name]
    with jax.enable_x64(True):
        stack = _stack(kernel, np.array([factor * _SCORES] * 3), np.array([_VALUES] * 3), None)
        return AttentionProblem(stack, _LAWS[law](), _QUERY)


def _shaped(name: str, value: np.ndarray | str) -> np.ndarray | str:
    """Return an array in the shape that its name requires: a vector, a number or unchanged."""
    if isinstance(value, str):
        return value
    if name in _VECTORS and value.ndim == 2 and 1 in value.shape:
        return value.ravel()
    if name in _NUMBERS and value.size == 1:
        return value.reshape(())
    return value


def _needed(arrays: Arrays, name: str) -> np.ndarray:
    if name not in arrays:
        listing = ", ".join(f"`{other}`" for other in arrays) or "nothing"
        raise ArgumentError(name, f"must be given, got only {listing}.")
    value = arrays[name]
    if isinstance(value, str):
        raise ArgumentError(name, f"must be an array, got the text '{value}'.")
    return value


def _optional(arrays: Arrays, name: str) -> np.ndarray | None:
    return _needed(arrays, name) if name in arrays else None


def _attention(arrays: Arrays) -> AbstractAttention:
    """Return a head from merged matrices or factors, or a stack."""
    if not any(name in arrays for name in _FACTORS):
        kernel = require_choice("kernel", str(arrays.get("kernel", "softmax")), _KERNELS)
        scores, values = (_needed(arrays, name) for name in _MERGED)
        if scores.ndim < 3:
            return _KERNELS[kernel](scores, values)
        return _stack(kernel, scores, values, _optional(arrays, "residual"))
    if both := [name for name in _MERGED if name in arrays]:
        raise ArgumentError(
            both[0],
            "must not be given together with factors such as `key_weight`. "
            "Pass either the merged matrices or the factors.",
        )
    key, query, value = (_needed(arrays, name) for name in _FACTORS[:3])
    scale = _needed(arrays, "scale") if "scale" in arrays else np.ones(())
    if scale.ndim != 0:
        raise ArgumentError("scale", f"must be a number, got shape {scale.shape}.")
    output = _optional(arrays, "output")
    return Factored("softmax", key, query, value, output, scale=float(scale))


def _stack(
    kernel: str, scores: np.ndarray, values: np.ndarray, residual: np.ndarray | None
) -> Stack:
    """Return a stack from matrices [layers, d, d] or [layers, heads, d, d]."""
    shapes = []
    for name, matrices in zip(_MERGED, (scores, values), strict=True):
        if matrices.ndim not in (3, 4):
            raise ArgumentError(
                name,
                f"must have shape [layers, d, d] or [layers, heads, d, d], got {matrices.shape}.",
            )
        shapes.append(matrices.shape[:-2])
    if shapes[0] != shapes[1]:
        raise ArgumentError(
            "value",
            f"must have as many layers and heads as `key_query`, {shapes[0]}, got {shapes[1]}.",
        )
    if residual is not None and (residual.ndim != 3 or len(residual) != len(scores)):
        raise ArgumentError(
            "residual",
            f"must have shape [layers, d, d] with {len(scores)} layers, got {residual.shape}.",
        )
    if scores.ndim == 3:
        scores, values = scores[:, None], values[:, None]
    residuals = [None] * len(scores) if residual is None else list(residual)
    layers = [
        Layer([_KERNELS[kernel](u, v) for u, v in zip(us, vs, strict=True)], matrix)
        for us, vs, matrix in zip(scores, values, residuals, strict=True)
    ]
    return Stack(layers)


def _law(arrays: Arrays, dim: int) -> AbstractMeasure:
    """Return the law of a token, or the tokens of a prompt."""
    kind = _prompt_kind(arrays)
    if stray := sorted((_OF_PROMPTS - {*_PROMPTS[kind]}) & {*arrays}):
        raise ArgumentError(
            stray[0],
            f"must not be given for a prompt of kind '{kind}'. "
            "Leave it out, or name another prompt.",
        )
    if kind == "tokens":
        return Empirical(_needed(arrays, "tokens"), _optional(arrays, "weights"))
    if kind == "gaussian":
        mean = _needed(arrays, "mean") if "mean" in arrays else np.zeros(dim)
        return Gaussian(mean, _needed(arrays, "cov"))
    if kind == "sphere":
        return UniformSphere(dim, _needed(arrays, "radius"))
    half_widths = _needed(arrays, "half_widths")
    return Rademacher(half_widths) if kind == "rademacher" else UniformCube(half_widths)


def _prompt_kind(arrays: Arrays) -> str:
    if "prompt" in arrays:
        return require_choice("prompt", str(arrays["prompt"]), _PROMPTS)
    if "tokens" in arrays or "cov" in arrays:
        return "tokens" if "tokens" in arrays else "gaussian"
    raise ArgumentError(
        "prompt",
        f"must be one of {', '.join(map(repr, _PROMPTS))} if neither `tokens` nor `cov` is "
        "given, got none.",
    )


def _queries(arrays: Arrays, dim: int) -> Queries:
    """Return a law of queries, or an array with one query per row."""
    given = [name for name in ("query", "queries", "query_cov") if name in arrays]
    if len(given) != 1:
        listing = " and ".join(f"`{name}`" for name in given) or "none of the three"
        raise ArgumentError(
            "query",
            f"must be given, or `queries` one per row, or `query_cov` of Gaussian queries, got "
            f"{listing}.",
        )
    if "query_mean" in arrays and given != ["query_cov"]:
        raise ArgumentError("query_mean", "must be given together with `query_cov`.")
    if given != ["query_cov"]:
        array = _needed(arrays, given[0])
        return array[None] if given == ["query"] else array
    mean = _needed(arrays, "query_mean") if "query_mean" in arrays else np.zeros(dim)
    try:
        return Gaussian(mean, _needed(arrays, "query_cov"))
    except ArgumentError as refusal:
        raise refusal.renamed(mean="query_mean", cov="query_cov") from None
