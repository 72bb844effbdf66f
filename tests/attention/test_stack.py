"""Stacks of layers: on tokens as NumPy runs them, on Gaussians as their closed limit."""

import inspect
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.attention import _stack
from promptlimit.depth import GaussianStack, fluctuation_cov

HEADS = {"softmax": pl.SoftmaxAttention, "linear": pl.LinearAttention}


class Plain(NamedTuple):
    """A layer in NumPy: its residual, and heads (kernel, U, V)."""

    residual: np.ndarray
    heads: list[tuple[str, np.ndarray, np.ndarray]]

    def layer(self) -> pl.Layer:
        return pl.Layer([HEADS[kernel](u, v) for kernel, u, v in self.heads], self.residual)

    def read(self, tokens: np.ndarray, weights: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Return the output of the layer at one vector over weighted tokens."""
        output = self.residual @ z
        for kernel, u, v in self.heads:
            scores = tokens @ (u @ z)
            shares = weights * (np.exp(scores) if kernel == "softmax" else scores)
            if kernel == "softmax":
                shares = shares / shares.sum()
            output = output + v @ (shares @ tokens)
        return output


def plain_stack(layers, tokens, query, *, weights=None, causal=False) -> np.ndarray:
    """The stack as every paper draws it: all tokens through all layers, token by token."""
    length = len(tokens)
    equal = np.full(length, 1 / length) if weights is None else weights
    for layer in layers:
        images = []
        for place, token in enumerate(tokens):
            seen = (np.arange(length) <= place) / (place + 1) if causal else equal
            images.append(layer.read(tokens, seen, token))
        query = layer.read(tokens, equal, query)
        tokens = np.array(images)
    return query


def nested() -> dict[str, pl.AbstractAttention]:
    """Return sums whose parts have residuals, directly and through a stack of one layer."""
    rng = np.random.default_rng(5)
    U, V, C, D = 0.4 * rng.normal(size=(4, 2, 2))
    head, inner = pl.SoftmaxAttention(U, V), pl.Layer(pl.SoftmaxAttention(U.T, V), C)
    return {
        "sum": pl.MultiHead([head, inner]),
        "sum with an output matrix": pl.MultiHead([inner, inner, head], output=D[:1]),
        "layer": pl.Layer([inner, head], D),
        "stack": pl.Layer([pl.Stack([inner])]),
    }


@pytest.mark.parametrize("name", list(nested()))
def test_sums_of_layers_keep_the_residuals_of_their_parts(x64, name):
    attention, query = nested()[name], np.array([0.7, -1.2])
    tokens = np.random.default_rng(6).normal(size=(3, 2))
    heads, residual = attention.as_heads(), attention.residual_matrix()
    assert heads is not None
    assert residual is not None
    prompt = pl.Empirical(tokens)
    total = residual @ query + sum(head(prompt, query) for head in heads)
    np.testing.assert_allclose(total, attention(prompt, query), rtol=1e-12)
    assert attention.single_head() is None
    # All prompts of two tokens from a law on three points, by enumeration.
    pairs = [(a, b) for a in tokens for b in tokens]
    mean = np.mean([attention(pl.Empirical(np.array(pair)), query) for pair in pairs], axis=0)
    found = pl.prompt_moments(attention, prompt, query, 2, kind="exact")
    np.testing.assert_allclose(found.mean, mean, rtol=1e-9)


def plain_limit(layers, mean, cov, query) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return output, mean and covariance after all layers, over Gaussian tokens."""
    for layer in layers:
        m, c = np.array(layer.residual), np.zeros(len(layer.residual))
        for kernel, u, v in layer.heads:
            softmax = kernel == "softmax"
            m = m + v @ (cov if softmax else cov + np.outer(mean, mean)) @ u
            c = c + (v @ mean if softmax else 0.0)
        mean, cov, query = m @ mean + c, m @ cov @ m.T, m @ query + c
    return query, mean, cov


def matrices(*shapes: tuple[int, ...], seed: int = 0, size: float = 0.4) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [size * rng.normal(size=shape) for shape in shapes]


KINDS = [["softmax", "softmax"], ["softmax", "linear"], ["linear", "linear"], ["softmax"]]


def mixed_layers(dim: int = 3, last: int = 2) -> list[Plain]:
    """Softmax heads, both, linear heads, and a last layer that goes down to two outputs."""
    layers = []
    for place, kernels in enumerate(KINDS):
        rows = last if place == len(KINDS) - 1 else dim
        arrays = matrices((rows, dim), *[(dim, dim), (rows, dim)] * len(kernels), seed=place)
        pairs = zip(arrays[1::2], arrays[2::2], strict=True)
        residual = np.eye(rows, dim) + arrays[0]
        layers.append(
            Plain(residual, [(k, u, v) for k, (u, v) in zip(kernels, pairs, strict=True)])
        )
    return layers


def alike_layers(count: int, dim: int = 2) -> list[Plain]:
    """Layers of one shape, with numbers of their own."""
    layers = []
    for seed in range(count):
        u1, v1, u2, v2 = matrices(*[(dim, dim)] * 4, seed=seed)
        layers.append(Plain(np.eye(dim), [("softmax", u1, v1), ("linear", u2, v2)]))
    return layers


def stack_of(layers: list[Plain]) -> pl.Stack:
    return pl.Stack([layer.layer() for layer in layers])


TOKENS, QUERY = matrices((7, 3), (3,), seed=11, size=0.8)
WEIGHTS = np.array([0.3, 0.1, 0.05, 0.2, 0.0, 0.2, 0.15])


def test_a_stack_on_tokens_is_all_tokens_through_all_layers(precision: str) -> None:
    layers = mixed_layers()
    stack = stack_of(layers)
    atol = 40 * float(np.finfo(precision).eps)
    output = stack(pl.Empirical(TOKENS), QUERY)
    assert output.dtype == precision
    assert (stack.token_dim, stack.query_dim, stack.output_dim) == (3, 3, 2)
    np.testing.assert_allclose(output, plain_stack(layers, TOKENS, QUERY), rtol=0, atol=atol)
    weighted = stack(pl.Empirical(TOKENS, WEIGHTS), QUERY)
    want = plain_stack(layers, TOKENS, QUERY, weights=WEIGHTS)
    np.testing.assert_allclose(weighted, want, rtol=0, atol=atol)
    masked = stack.causal(pl.Empirical(TOKENS), QUERY)
    np.testing.assert_allclose(
        masked, plain_stack(layers, TOKENS, QUERY, causal=True), rtol=0, atol=atol
    )


def test_a_query_among_the_tokens_is_one_more_of_them(x64: None) -> None:
    layers = mixed_layers()
    inside = stack_of(layers)(pl.Empirical(TOKENS).including(QUERY), QUERY)
    want = plain_stack(layers, np.vstack([TOKENS, QUERY]), QUERY)
    np.testing.assert_allclose(inside, want, rtol=1e-13)


def test_layers_alike_are_one_loop_and_the_same_numbers(x64: None) -> None:
    layers, tokens, query = alike_layers(5), TOKENS[:, :2], QUERY[:2]
    stack = stack_of(layers)
    loops = str(jax.make_jaxpr(lambda prompt: stack(prompt, query))(pl.Empirical(tokens)))
    assert loops.count("scan[") == 1
    np.testing.assert_allclose(
        stack(pl.Empirical(tokens), query), plain_stack(layers, tokens, query), rtol=1e-13
    )
    mean, cov = np.array([0.3, -0.2]), np.array([[0.5, 0.2], [0.2, 0.4]])
    prompt = pl.Gaussian(mean, cov)
    output, mean, cov = plain_limit(layers, mean, cov, query)
    np.testing.assert_allclose(stack(prompt, query), output, rtol=1e-13)
    image = stack.push_forward(prompt)
    np.testing.assert_allclose(image.mean, mean, rtol=1e-13)
    np.testing.assert_allclose(image.cov, cov, rtol=1e-12)


def test_the_limit_over_gaussian_tokens_is_affine_layer_by_layer(precision: str) -> None:
    layers = mixed_layers()
    mean, factor = matrices((3,), (3, 3), seed=5)
    prompt = pl.Gaussian(mean, factor @ factor.T)
    stack = stack_of(layers)
    want = plain_limit(layers, mean, factor @ factor.T, QUERY)[0]
    rtol = 40 * float(np.finfo(precision).eps)
    np.testing.assert_allclose(stack(prompt, QUERY), want, rtol=rtol)
    matrix, shift = stack.affine_limit(prompt)
    np.testing.assert_allclose(
        np.asarray(matrix) @ QUERY.astype(precision) + shift, want, rtol=rtol
    )


ONE = np.eye(1)


def scalar_layers(*numbers: tuple[float, ...]) -> pl.Stack:
    """Return layers (r, u, v, u, v, ...) of softmax heads in one dimension."""
    return stack_of(
        [
            Plain(
                r * ONE,
                [("softmax", u * ONE, v * ONE) for u, v in zip(h[::2], h[1::2], strict=True)],
            )
            for r, *h in numbers
        ]
    )


ANCHORS = [
    (((1, 0.2, 0.6), (1, 0.25, 0.5)), 1.0, 0.0, 1.295616),
    (((1, 0.3, 0.5), (1, 0.3, 0.5)), 0.7, 0.5, 1.676785625),
    (((1, 0.2, 0.6), (1, 0.15, 0.5), (0.8, 0.2, 0.7)), 1.0, 0.0, 1.237885882810),
    (((1, 0.2, 0.6, -0.15, 0.4), (0.9, 0.2, 0.5, 0.1, -0.7)), 1.0, 0.3, 1.14624288),
    (
        ((1, 0.2, 0.3), (1, -0.15, 0.5), (0.8, 0.2, 0.3), (1, 0.1, 0.5)),
        *(1.0, 0.3, 1.627244043992),
    ),
]


@pytest.mark.parametrize(("layers", "query", "mean", "output"), ANCHORS)
def test_limits_in_one_dimension_are_those_worked_out_by_hand(
    layers, query, mean, output, x64: None
) -> None:
    prompt = pl.Gaussian([mean], ONE)
    np.testing.assert_allclose(scalar_layers(*layers)(prompt, [query]), [output], rtol=1e-12)


def test_softmax_and_linear_stacks_have_their_own_limits(x64: None) -> None:
    """Two layers in two dimensions, outputs worked out by hand."""
    u0, v0 = np.array([[0.2, -0.1], [0.1, 0.3]]), np.array([[0.5, 0.2], [-0.3, 0.4]])
    u1, v1 = np.array([[-0.2, 0.1], [0.2, 0.1]]), np.array([[0.6, 0.0], [0.2, -0.5]])
    prompt = pl.Gaussian([0.3, -0.4], [[1.0, 0.3], [0.3, 0.6]])
    wants = {
        "softmax": (0.812076013641, -0.353696837680),
        "linear": (0.5242362984, -0.636802960802),
    }
    for kernel, want in wants.items():
        plain = [Plain(np.eye(2), [(kernel, u0, v0)]), Plain(0.8 * np.eye(2), [(kernel, u1, v1)])]
        got = stack_of(plain)(prompt, [0.8, -0.6])
        np.testing.assert_allclose(got, want, rtol=1e-10)
    third = Plain(np.eye(2), [("softmax", u0, v1)])
    softmax = [
        Plain(np.eye(2), [("softmax", u0, v0)]),
        Plain(0.8 * np.eye(2), [("softmax", u1, v1)]),
    ]
    got = stack_of([*softmax, third])(prompt, [0.8, -0.6])
    np.testing.assert_allclose(got, (1.15787937, -0.1813208), rtol=1e-7)


def simulated_outputs(layers: list[Plain], tokens: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Return the outputs of many prompts [n, L, d] through softmax layers, in NumPy."""
    points = np.broadcast_to(query, (len(tokens), 1, query.size))
    for layer in layers:
        images = []
        for rows in (tokens, points):
            image = rows @ layer.residual.T
            for _, u, v in layer.heads:
                weights = np.exp(rows @ u.T @ tokens.swapaxes(1, 2))
                weights /= weights.sum(axis=2, keepdims=True)
                image = image + weights @ tokens @ v.T
            images.append(image)
        tokens, points = images
    return points[:, 0]


@pytest.mark.parametrize(
    ("length", "prompts"),
    [
        (160, 100),
        (640, 60),
    ],
)
def test_tokens_approach_the_limit_as_the_root_of_their_number(length, prompts, x64: None) -> None:
    """Three layers of two heads, d = 3, a mean that is read: L times the square error stays."""
    layers = []
    for seed in range(3):
        u1, v1, u2, v2 = matrices(*[(3, 3)] * 4, seed=seed + 40, size=0.2)
        layers.append(Plain(np.eye(3), [("softmax", u1, v1), ("softmax", u2, v2)]))
    mean, query = np.array([0.4, -0.3, 0.2]), np.array([0.5, 0.7, -0.6])
    limit = np.asarray(stack_of(layers)(pl.Gaussian(mean, np.eye(3)), query))
    tokens = mean + np.random.default_rng(1).normal(size=(prompts, length, 3))
    outputs = simulated_outputs(layers, tokens, query)
    one = stack_of(layers)(pl.Empirical(tokens[0]), query)
    np.testing.assert_allclose(one, outputs[0], rtol=1e-12)
    squares = length * np.sum((outputs - limit) ** 2, axis=1)
    spread = fluctuation_cov(GaussianStack.of(stack_of(layers).layers, mean, np.eye(3)), query)
    slack = 4 * squares.std() / np.sqrt(prompts) + 10 / length
    assert abs(squares.mean() - np.trace(spread)) < slack
    bias = outputs.mean(axis=0) - limit
    error = outputs.std(axis=0) / np.sqrt(prompts)
    assert (np.abs(bias) < 4 * error + 5 / length).all()


def test_rows_in_blocks_are_the_same_numbers_and_the_same_gradient(
    monkeypatch: pytest.MonkeyPatch, x64: None
) -> None:
    stack = stack_of([*mixed_layers()[:1], mixed_layers()[-1]])
    assert stack.scratch_size(7) == 3 * 49
    whole = _outputs_and_slopes(stack)
    monkeypatch.setattr(_stack, "_SCORES", 15)  # two rows at a time
    assert stack.scratch_size(7) == 3 * 14
    for block, expected in zip(_outputs_and_slopes(stack), whole, strict=True):
        np.testing.assert_allclose(block, expected, rtol=1e-12)


def _outputs_and_slopes(stack: pl.Stack) -> list[jax.Array]:
    """Return outputs without and with a mask, and the slopes of their sum in the tokens."""

    def outputs(tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        pair = [
            _stack.attend_through(
                stack.layers, pl.Empirical(tokens), jnp.asarray(QUERY), causal=causal
            )
            for causal in (False, True)
        ]
        return jnp.sum(jnp.stack(pair)), jnp.stack(pair)

    slopes, both = jax.jit(jax.grad(outputs, has_aux=True))(jnp.asarray(TOKENS))
    return [both, slopes]


@pytest.mark.parametrize("prompt", ["tokens", "masked tokens", "gaussian"])
def test_gradients_in_every_parameter_are_finite_differences(prompt: str, x64: None) -> None:
    stack = stack_of(mixed_layers()[1::2])
    law = pl.Gaussian([0.2, 0.1, -0.3], np.diag([0.5, 0.8, 0.3]))

    @eqx.filter_jit
    def total(stack: pl.Stack) -> jax.Array:
        if prompt == "masked tokens":
            return stack.causal(pl.Empirical(TOKENS), QUERY).sum()
        return stack(law if prompt == "gaussian" else pl.Empirical(TOKENS), QUERY).sum()

    slopes = eqx.filter_grad(total)(stack)
    leaves, structure = jax.tree.flatten(stack)
    rng = np.random.default_rng(3)
    direction = jax.tree.unflatten(structure, [rng.normal(size=leaf.shape) for leaf in leaves])

    def along(step: float) -> float:
        return float(total(jax.tree.map(lambda a, b: a + step * b, stack, direction)))

    h = 1e-3
    slope = (8 * (along(h) - along(-h)) - (along(2 * h) - along(-2 * h))) / (12 * h)
    parts = jax.tree.map(lambda a, b: jnp.sum(a * b), slopes, direction)
    np.testing.assert_allclose(sum(jax.tree.leaves(parts)), slope, rtol=1e-8)


def test_a_batch_of_queries_and_of_prompts_is_a_vmap(x64: None) -> None:
    layers, queries = mixed_layers(), np.stack([QUERY, -QUERY])
    stack, prompts = stack_of(layers), np.stack([TOKENS, 0.5 * TOKENS])
    batch = jax.jit(jax.vmap(lambda tokens, query: stack(pl.Empirical(tokens), query)))
    wants = [plain_stack(layers, *pair) for pair in zip(prompts, queries, strict=True)]
    np.testing.assert_allclose(batch(prompts, queries), wants, rtol=1e-13)


class Cubed(pl.AbstractAttention):
    """A user-defined layer without optional methods: the cubed mean of the tokens, plus z."""

    @property
    def token_dim(self) -> int:
        return 3

    @property
    def query_dim(self) -> int:
        return 3

    @property
    def output_dim(self) -> int:
        return 3

    def attend(self, prompt, query):
        return query + prompt.tilted_mean(query) ** 3


def test_layers_of_ones_own_and_bare_heads_are_layers(x64: None) -> None:
    u, v = matrices((3, 3), (3, 3), seed=8)
    head = pl.SoftmaxAttention(u, v)
    plain = Plain(np.zeros((3, 3)), [("softmax", u, v)])
    inner = pl.Stack([head, Cubed()])
    stack = pl.Stack([inner, pl.MultiHead([head])])
    assert len(stack.layers) == 3
    assert stack.as_layers() == stack.layers
    assert head.as_layers() is None

    def by_hand(causal: bool) -> np.ndarray:
        equal = np.full(7, 1 / 7)
        seen = [(np.arange(7) <= i) / (i + 1) if causal else equal for i in range(7)]
        tokens = np.array([plain.read(TOKENS, w, z) for w, z in zip(seen, TOKENS, strict=True)])
        query = plain.read(TOKENS, equal, QUERY)
        mean = Plain(np.zeros((3, 3)), [("softmax", np.eye(3), np.eye(3))])
        again = [z + mean.read(tokens, w, z) ** 3 for w, z in zip(seen, tokens, strict=True)]
        query = query + mean.read(tokens, equal, query) ** 3
        return plain.read(np.array(again), equal, query)

    np.testing.assert_allclose(stack(pl.Empirical(TOKENS), QUERY), by_hand(False), rtol=1e-13)
    np.testing.assert_allclose(stack.causal(pl.Empirical(TOKENS), QUERY), by_hand(True), rtol=1e-13)


def test_one_layer_takes_any_law_and_rectangular_heads(x64: None) -> None:
    u, v, z = matrices((3, 4), (2, 3), (4,), seed=9)
    head = pl.SoftmaxAttention(u, v)
    for law in (pl.Rademacher([1.0, 1.0, 1.0]), pl.Empirical(TOKENS)):
        np.testing.assert_array_equal(pl.Stack([head])(law, z), head(law, z))


PLAIN = pl.Layer(pl.SoftmaxAttention(np.eye(2), np.eye(2)))
PAIR = pl.Stack([PLAIN, PLAIN])
WIDE = pl.SoftmaxAttention(np.eye(3), np.eye(3))
OTHER_QUERIES = pl.SoftmaxAttention(np.ones((2, 3)), np.eye(2))
MASKED = "`prompt` must be tokens in order for a causal mask, got {}. Call the stack itself "
MASKED += "for a law: the mask does not change its limit."
UNCHECKED = inspect.unwrap(pl.Stack.__init__)  # as users call it: without the tests' types
BAD: dict[str, tuple[Callable[[], object], str]] = {
    "no layers": (lambda: pl.Stack([]), "`layers` must contain at least one layer, got none."),
    "a layer for layers": (
        lambda: UNCHECKED(object.__new__(pl.Stack), PLAIN),
        "`layers` must be a list of layers, got Layer. Pass [promptlimit.Layer(heads), ...].",
    ),
    "a number for layers": (
        lambda: UNCHECKED(object.__new__(pl.Stack), 3),
        "`layers` must be a list of layers, got int. Pass [promptlimit.Layer(heads), ...].",
    ),
    "layers that do not chain": (
        lambda: pl.Stack([PLAIN, pl.Layer(WIDE)]),
        "`layers[1]` must take tokens and queries of dimension 2, the output of `layers[0]`, got "
        "3 and 3.",
    ),
    "queries of another dimension than tokens": (
        lambda: pl.Stack([OTHER_QUERIES, PLAIN]),
        "`layers[0]` must take tokens and queries of the same dimension, because in all layers but "
        "the last tokens are also queries, got tokens of dimension 2 and queries of dimension 3.",
    ),
    "a law without a closed image": (
        lambda: PAIR(pl.Rademacher([1.0, 1.0]), [0.0, 0.0]),
        "`prompt` must be tokens or Gaussian for a stack of 2 layers, got Rademacher, whose "
        "image under a layer has no closed form. Call prompt_moments(stack, law, query, "
        "math.inf), or pass Empirical(law.sample(...)).",
    ),
    "a mask over weighted tokens": (
        lambda: PAIR.causal(pl.Empirical([[0.0, 1.0]], [1.0]), [0.0, 0.0]),
        MASKED.format("tokens with weights"),
    ),
    "a query of another dimension": (
        lambda: PAIR.causal(pl.Empirical([[0.0, 1.0]]), [0.0]),
        "`query` must have shape (2,) (as the attention expects), got (1,).",
    ),
    "tokens of another dimension": (
        lambda: PAIR.causal(pl.Empirical([[0.0]]), [0.0, 0.0]),
        "`prompt` must have tokens of dimension 2 (as the attention expects), got 1.",
    ),
    "the gradient in a matrix": (
        lambda: PAIR.jacobian(pl.Empirical([[0.0, 1.0]]), [0.0, 0.0], wrt="value"),
        "`wrt` must name a matrix of the attention, got 'value' for a Stack, which has none. Use "
        "one of its heads or layers instead.",
    ),
}


@pytest.mark.parametrize(("build", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_are_refused_in_one_sentence(build: Callable, message: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  # the whole message is compared
        build()
    assert str(refusal.value) == message
