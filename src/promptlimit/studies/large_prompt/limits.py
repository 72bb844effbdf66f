r"""Claims on infinite prompts: linear attention as a limit, and the law of large numbers.

A head has the key-query matrix $U$ and the value matrix $V$; $z$ is its query.
"""

from collections.abc import Iterator, Mapping, Sequence

import equinox as eqx
import jax
import matplotlib as mpl
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from promptlimit._inputs import to_device
from promptlimit._quadrature import normal_gauss, product_rule
from promptlimit.attention import AbstractAttention, LinearAttention, SoftmaxAttention
from promptlimit.finite import prompt_moments
from promptlimit.measures import (
    AbstractMeasure,
    Affine,
    Empirical,
    Gaussian,
    Rademacher,
    UniformSphere,
)
from promptlimit.reporting import CONTRAST, LIMIT
from promptlimit.studies import (
    Check,
    Setting,
    at_most,
    beyond_errors,
    control_at_least,
    distance_in_errors,
    within_errors,
)
from promptlimit.studies.large_prompt import STUDY
from promptlimit.studies.large_prompt._ensembles import (
    beginning,
    generic_problem,
    random_gaussian,
    random_parameters,
    relative_error,
)

_PROBLEMS = 20
_DIM = 3
_EXACT = 1e-10
_SHARPEST = 3.0
"""The standard deviation of scores up to which 40 quadrature nodes are exact up to rounding."""


def _tokens(prompt: Gaussian, standard: np.ndarray) -> np.ndarray:
    variances, axes = np.linalg.eigh(np.asarray(prompt.covariance))
    return np.asarray(prompt.location) + (standard * np.sqrt(np.maximum(variances, 0))) @ axes.T


def _integral(prompt: Gaussian, u: np.ndarray, v: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return softmax attention by its definition, a ratio of two integrals over tokens."""
    standard, mass = product_rule([normal_gauss(40)] * _DIM)
    tokens = _tokens(prompt, standard)
    scores = tokens @ (u @ z)
    weights = mass * np.exp(scores - scores.max())
    return v @ (weights @ tokens) / weights.sum()


def _affine_errors(rng: np.random.Generator, rank: int) -> tuple[float, float]:
    r"""Return the largest relative errors of the library and of the definition's integral.

    Both are compared with $Vm+V\Gamma Uz$.
    """
    library, definition = 0.0, 0.0
    for _ in range(_PROBLEMS):
        u, v = random_parameters(rng, _DIM)
        prompt, z = random_gaussian(rng, _DIM, rank=rank), rng.normal(size=_DIM)
        mean, cov = np.asarray(prompt.location), np.asarray(prompt.covariance)
        sharpness = np.sqrt(z @ u.T @ cov @ u @ z)
        z = z * min(1.0, _SHARPEST / sharpness)
        formula = v @ mean + v @ cov @ u @ z
        size = np.linalg.norm(v, 2) * (np.linalg.norm(mean) + np.linalg.norm(cov @ u @ z))
        outputs = SoftmaxAttention(u, v)(prompt, z), _integral(prompt, u, v, z)
        errors = [float(np.linalg.norm(np.asarray(one) - formula) / size) for one in outputs]
        library, definition = max(library, errors[0]), max(definition, errors[1])
    return library, definition


def _image_error(rng: np.random.Generator) -> float:
    """Return the largest relative error of `push_forward`'s mean and covariance."""
    standard, mass = product_rule([normal_gauss(3)] * _DIM)  # exact for quadratic integrands
    worst = 0.0
    for _ in range(_PROBLEMS):
        u, v = random_parameters(rng, _DIM)
        prompt, attention = random_gaussian(rng, _DIM), SoftmaxAttention(u, v)
        queries = to_device(_tokens(prompt, standard))
        outputs = np.asarray(jax.vmap(attention, in_axes=(None, 0))(prompt, queries))
        mean = mass @ outputs
        cov = (outputs - mean).T @ ((outputs - mean) * mass[:, None])
        image = attention.push_forward(prompt)
        worst = max(worst, relative_error(np.asarray(image.mean), mean))
        worst = max(worst, relative_error(np.asarray(image.cov), cov))
    return worst


def _rademacher_departure() -> float:
    r"""Return $|T-V\Gamma Uz|/|V\Gamma Uz|$ for the limit $T$ over two-valued tokens."""
    attention, law, z = generic_problem(1.0, _DIM)
    cov, U, V = (np.asarray(m) for m in (law.covariance, attention.key_query, attention.value))
    factor = np.linalg.cholesky(cov)
    prompt = Affine(Rademacher(np.ones(_DIM)), factor)
    return relative_error(np.asarray(attention(prompt, z)), V @ cov @ U @ z)


@STUDY.claim(1, reference="Lemma 2.1")
def gaussian_limit(setting: Setting) -> Iterator[Check]:
    r"""Over a Gaussian prompt $\mathcal{N}(m, \Gamma)$, singular or not, softmax attention with
    key-query matrix $U$ and value matrix $V$ is the affine map $z \mapsto Vm + V\Gamma Uz$. It maps
    the law of the prompt to $\mathcal{N}(V(I + \Gamma U)m,\ V\Gamma U\Gamma U^\top\Gamma V^\top)$.
    """
    seed = setting.seed
    rng = np.random.default_rng(seed)
    library, definition = _affine_errors(rng, rank=_DIM)
    singular_library, singular_definition = _affine_errors(rng, rank=1)
    what = f"worst of {_PROBLEMS} random problems"
    errors = {
        rf"gradient of the log-Laplace transform compared with $Vm + V\Gamma Uz$, {what}": library,
        rf"quadrature of the definition compared with $Vm + V\Gamma Uz$, {what}": definition,
        r"$\Gamma$ of rank one: gradient of the log-Laplace transform compared with "
        r"$Vm + V\Gamma Uz$": singular_library,
        r"$\Gamma$ of rank one: quadrature of the definition compared with "
        r"$Vm + V\Gamma Uz$": singular_definition,
        f"moments of the image compared with quadrature, {what}": _image_error(rng),
    }
    yield from (
        at_most(
            name,
            error,
            _EXACT,
            basis="rounding error, with a margin of $10^6$",
        )
        for name, error in errors.items()
    )
    yield control_at_least(
        "two-valued tokens with the same mean and covariance, sharpness 1: distance from "
        "the formula",
        _rademacher_departure(),
        0.01,
        basis="$10^8$ times the tolerance of the statement",
    )


def _difference(prompt: AbstractMeasure, u: np.ndarray, v: np.ndarray, z: np.ndarray) -> float:
    softmax = np.asarray(SoftmaxAttention(u, v)(prompt, z))
    linear = np.asarray(LinearAttention(u, v)(prompt, z))
    return float(np.linalg.norm(softmax - linear))


@STUDY.claim(3, reference="Section 2 and Appendix B.2")
def linear_is_the_limit(setting: Setting) -> Iterator[Check]:
    r"""For Gaussian tokens of mean $m$, the infinite-prompt limit of softmax attention equals
    linear attention at every query if and only if $Vm = 0$. In particular they are equal for
    centred tokens.
    """
    seed = setting.seed
    rng = np.random.default_rng(seed)
    absent, unread, read = 0.0, 0.0, 0.0
    for _ in range(_PROBLEMS):
        u, v = random_parameters(rng, _DIM)
        prompt, z = random_gaussian(rng, _DIM), rng.normal(size=_DIM)
        cov, mean = np.asarray(prompt.covariance), np.asarray(prompt.location)
        null = np.cross(v[0], v[1])
        absent = max(absent, _difference(Gaussian(np.zeros(_DIM), cov), u, v, z))
        unread = max(unread, _difference(Gaussian(null, cov), u, v, z))
        at_zero = _difference(prompt, u, v, np.zeros(_DIM))
        read = max(read, abs(at_zero - float(np.linalg.norm(v @ mean))))
    head, law, z = generic_problem(1.0, _DIM)
    u, v = np.asarray(head.key_query), np.asarray(head.value)
    two_valued = _difference(Rademacher(np.ones(_DIM)), u, v, z)
    with_mean = _difference(law, u, v, z)
    differences = {
        "$m = 0$: largest difference between softmax and linear attention, 20 problems": absent,
        r"$m \ne 0$ and $Vm = 0$: largest difference between softmax and linear attention": unread,
        r"$Vm \ne 0$: difference at $z = 0$ compared with ${|Vm|}$, largest error": read,
    }
    controls = {
        r"$Vm \ne 0$, sharpness 1: difference between softmax and linear attention": with_mean,
        "two-valued tokens, $m = 0$, sharpness 1: difference between softmax and linear "
        "attention": two_valued,
    }
    yield from (
        at_most(
            name,
            value,
            1e-10,
            basis="rounding error, with a margin of $10^5$",
        )
        for name, value in differences.items()
    )
    yield from (
        control_at_least(
            name,
            value,
            1e-2,
            basis="$10^8$ times that tolerance",
        )
        for name, value in controls.items()
    )


_GROWING, _FEW_GROWING = 24, 8
_LENGTHS, _FEW_LENGTHS = ([2**k for k in range(8, last)] for last in (18, 16))
_PROMPTS, _TOKENS = 4096, 256
_U = np.array([[0.8, 0.3], [-0.2, 0.5]])
_V = np.array([[1.0, 0.0], [0.5, 1.0]])
_QUERY = np.array([1.0, -0.5])


def _laws() -> dict[str, AbstractMeasure]:
    return {
        "Gaussian": Gaussian([0.5, -0.25], [[1.0, 0.4], [0.4, 0.5]]),
        "two-valued": Rademacher([1.0, 1.0]),
        "spherical": UniformSphere(2, 1.5),
    }


def _growing(
    law: AbstractMeasure, key: jax.Array, prompts: int, lengths: Sequence[int]
) -> np.ndarray:
    """Return the outputs over growing prompts at several lengths, [prompt, length, 2]."""
    attention, query = SoftmaxAttention(_U, _V), to_device(_QUERY)
    drawn = [law.sample(lengths[-1], key=own) for own in jax.random.split(key, prompts)]
    return np.array([[attention(beginning(tokens, n), query) for n in lengths] for tokens in drawn])


def _moment_distances(law: AbstractMeasure, key: jax.Array) -> np.ndarray:
    """Return the distances of simulated from exact moments, in standard errors, [3].

    The moments are both coordinates of the mean output, and the mean squared distance of the output
    from its limit.
    """
    attention, query = SoftmaxAttention(_U, _V), to_device(_QUERY)
    tokens = law.sample(_PROMPTS * _TOKENS, key=key).reshape(_PROMPTS, _TOKENS, -1)
    outputs = np.array(jax.lax.map(lambda own: attention(Empirical(own), query), tokens))
    exact = prompt_moments(attention, law, _QUERY, _TOKENS, kind="exact")
    limit = np.asarray(SoftmaxAttention(_U, _V)(law, _QUERY))
    rows = np.column_stack([outputs, ((outputs - limit) ** 2).sum(axis=1)])
    return distance_in_errors(rows, np.append(exact.mean, exact.mse))


def _predicted_variance(law: AbstractMeasure) -> float:
    r"""Return $\lim L\,E|T_L-T|^2$ by the delta method, from the log-Laplace transform alone."""
    tilt = to_device(_U @ _QUERY)
    growth = np.exp(float(law.log_laplace(2 * tilt) - 2 * law.log_laplace(tilt)))
    shift = np.asarray(law.tilted_mean(2 * tilt) - law.tilted_mean(tilt))
    second = growth * (np.asarray(law.tilted_cov(2 * tilt)) + np.outer(shift, shift))
    return float(np.trace(_V @ second @ _V.T))


@STUDY.claim(2, reference="Section 2")
def strong_law(setting: Setting) -> Iterator[Check]:
    r"""As a prompt grows token by token, the output of softmax attention converges almost surely to
    its output over the law of the tokens. Tested for three laws in two dimensions.
    """
    prompts, lengths = (_FEW_GROWING, _FEW_LENGTHS) if setting.quick else (_GROWING, _LENGTHS)
    late = lengths[len(lengths) // 2 :]
    strays, means, astray = [], [], 0.0
    for index, (name, law) in enumerate(_laws().items()):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(setting.seed), index))
        limit = np.asarray(SoftmaxAttention(_U, _V)(law, _QUERY))
        paths = _growing(law, keys[0], prompts, late)
        deviation = np.sqrt(_predicted_variance(law) / np.array(late))
        # For large r, the norm of a Gaussian vector of total variance 1 exceeds r at most as often
        # as the modulus of a scalar does.
        strays.append(np.linalg.norm(paths - limit, axis=2) / deviation)
        means.append(_moment_distances(law, keys[1]))
        if name == "two-valued":
            wrong = np.asarray(LinearAttention(_U, _V)(law, _QUERY))
            mean = paths[:, -1].mean(axis=0)
            astray = np.linalg.norm(mean - wrong) / deviation[-1] * prompts**0.5
    yield within_errors(
        f"{prompts} growing prompts from each of three laws, at {len(late)} lengths from "
        f"{late[0]:,} to {late[-1]:,} tokens, compared with the limit",
        np.concatenate([stray.ravel() for stray in strays]),
    )
    yield within_errors(
        f"means and mean squared errors of {_PROMPTS:,} prompts of {_TOKENS} tokens from "
        "three laws, compared with their exact values",
        np.concatenate(means),
    )
    yield beyond_errors(
        f"two-valued tokens, {late[-1]:,} in a prompt: mean of {prompts} prompts compared "
        "with the limit of linear attention",
        float(astray),
    )


LENGTHS = (10, 100, 1_000, 100_000)
_QUERIES = np.linspace(-3.0, 3.0, 121)


def _maps(law: AbstractMeasure, at: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Return the outputs at the queries `at`, over growing prompts and in both limits."""
    softmax, linear = SoftmaxAttention([[1.0]], [[1.0]]), LinearAttention([[1.0]], [[1.0]])
    queries = to_device(at)[:, None]
    tokens = law.sample(LENGTHS[-1], key=jax.random.key(seed))

    prompts = [beginning(tokens, length) for length in LENGTHS]
    return {
        "finite": np.stack([_outputs(softmax, prompt, queries)[:, 0] for prompt in prompts]),
        "limit": np.asarray(_outputs(softmax, law, queries)[:, 0]),
        "linear": np.asarray(_outputs(linear, law, queries)[:, 0]),
    }


@eqx.filter_jit
def _outputs(
    attention: AbstractAttention, prompt: AbstractMeasure, queries: Float[Array, "n 1"]
) -> Float[Array, "n 1"]:
    return jax.lax.map(lambda query: attention(prompt, query), queries)


@STUDY.figure("Attention over a growing prompt", reference="Lemma 2.1")
def growing_prompt(setting: Setting) -> dict[str, np.ndarray]:
    r"""Softmax attention over one growing prompt, as a function of the query. Over Gaussian tokens
    its limit is a straight line, which is linear attention. Over two-valued tokens with the same
    mean and variance its limit is $\tanh$.
    """
    seed, queries = setting.seed, _QUERIES[::4] if setting.quick else _QUERIES
    panels = {"gaussian": Gaussian([0.0], [[1.0]]), "two_valued": Rademacher([1.0])}
    arrays = {"queries": queries, "lengths": np.array(LENGTHS)}
    for index, (panel, law) in enumerate(panels.items()):
        curves = _maps(law, queries, seed + index)
        arrays |= {f"{panel}_{name}": curve for name, curve in curves.items()}
    return arrays


_PANELS = {
    "gaussian": "Gaussian tokens: the limit is linear attention",
    "two_valued": "tokens ±1: the limit is tanh",
}


@growing_prompt.drawing
def draw_growing_prompt(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the two panels."""
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    for axis, (panel, title) in zip(axes, _PANELS.items(), strict=True):
        _panel(axis, data, panel)
        axis.set_title(title)
    axes[0].set_ylabel("output $T[\\mu](z)$")
    axes[0].legend(loc="upper left", fontsize=9)
    return figure


def _panel(axis: Axes, data: Mapping[str, np.ndarray], panel: str) -> None:
    lengths, queries = data["lengths"], data["queries"]
    greys = mpl.colormaps["Greys"](np.linspace(0.3, 0.85, len(lengths)))
    for length, curve, grey in zip(lengths, data[f"{panel}_finite"], greys, strict=True):
        axis.plot(queries, curve, color=grey, label=f"{int(length):,} tokens", linewidth=1.2)
    axis.plot(queries, data[f"{panel}_linear"], color=CONTRAST, label="linear attention")
    axis.plot(
        queries, data[f"{panel}_limit"], color=LIMIT, label="softmax limit", dashes=(4, 2), zorder=5
    )
    axis.set_xlabel("query $z$")
    axis.set_ylim(-3.2, 3.2)
