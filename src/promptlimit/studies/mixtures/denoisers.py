r"""Claims on heads and layers that are the Bayes denoiser over infinite prompts.

A query is a token of a mixture of $N(m_k,\gamma^2I)$ with weights $\pi_k$, plus noise of variance
$\xi^2$. The code writes `g` for $\gamma^2$, `x` for $\xi^2$ and `s` for $s=\gamma^2+\xi^2$. The
excess of a predictor $f$ is its mean squared distance $E|f-f^*|^2$ from the Bayes denoiser $f^*$.
"""

import math
from collections.abc import Iterator, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from promptlimit.attention import AbstractAttention, Layer, MultiHead, SoftmaxAttention
from promptlimit.measures import Mixture
from promptlimit.studies import (
    Check,
    Setting,
    at_least,
    at_most,
    control_at_least,
    rejected,
    share_at_least,
)
from promptlimit.studies.mixtures import STUDY
from promptlimit.tasks import (
    Denoising,
    InContextDenoising,
    QueryPoints,
    bayes_excess,
    bayes_heads,
    bayes_layer,
    query_points,
)


def figure_law(within_variance: float = 1.0, noise_variance: float = 4.0) -> Denoising:
    """Return the law of Figure 2: means (3, 0) and (0, 3) with equal weights."""
    return Denoising(
        [[3.0, 0.0], [0.0, 3.0]],
        [0.5, 0.5],
        within_variance=within_variance,
        noise_variance=noise_variance,
    )


UNEQUAL = Denoising([[3, 0], [0, 2]], [0.5, 0.5], within_variance=1, noise_variance=4)
"""A law whose means have different norms."""


def random_law(
    rng: np.random.Generator, dim: int, components: int = 2, *, within: float | None = None
) -> Denoising:
    """Return a law whose means have random directions and equal norms, with random weights.

    The norm is between 1 and 3, and the first two means form an angle between 60 and 120 degrees.
    """
    means = rng.normal(size=(components, dim))
    axes, _ = np.linalg.qr(means[:2].T)
    angle = rng.uniform(np.pi / 3, 2 * np.pi / 3)
    means[0], means[1] = axes[:, 0], axes @ np.array([np.cos(angle), np.sin(angle)])
    means *= rng.uniform(1.0, 3.0) / np.linalg.norm(means, axis=1, keepdims=True)
    weights = rng.dirichlet(np.full(components, 4.0))
    return Denoising(
        means,
        weights / weights.sum(),
        within_variance=float(rng.uniform(0.5, 2.0)) if within is None else within,
        noise_variance=float(rng.uniform(0.5, 2.0)),
    )


def limit_excess(attention: AbstractAttention, task: Denoising | InContextDenoising) -> float:
    """Return E|f - f*|² for f = `attention` over an infinite prompt."""
    return float(bayes_excess(attention, task, math.inf).mse)


def least_gaps(task: Denoising) -> tuple[float, float]:
    """Return E|f - f*|² of the best linear and of the best affine map."""
    z, weights, bayes = query_points(task, 4096)
    gaps = []
    for features in (z, np.column_stack([z, np.ones(len(z))])):
        matrix = np.linalg.solve((features.T * weights) @ features, (features.T * weights) @ bayes)
        gaps.append(float(weights @ np.sum((features @ matrix - bayes) ** 2, axis=1)))
    return gaps[0], gaps[1]


def fitted_excesses(
    task: Denoising, starts: int, rng: np.random.Generator, *, heads: int = 1, steps: int = 400
) -> list[float]:
    """Return the excesses of softmax heads fitted to the Bayes denoiser, one per random start."""
    from scipy.optimize import least_squares  # noqa: PLC0415  # takes a second to load

    points, law = query_points(task, 400).to_device(), task.token_law
    shape = (2, heads, task.token_dim, task.token_dim)
    fits = [
        least_squares(
            lambda theta: _residuals(theta.reshape(shape), law, points),
            0.5 * rng.normal(size=math.prod(shape)),
            jac=lambda theta: _jacobian(theta.reshape(shape), law, points).reshape(-1, theta.size),
            method="lm",
            xtol=1e-15,
            ftol=1e-15,
            gtol=1e-15,
            max_nfev=steps,
        )
        for _ in range(starts)
    ]
    return [2.0 * float(fit.cost) for fit in fits]


@eqx.filter_jit
def _residuals(theta: Array, law: Mixture, points: QueryPoints) -> Array:
    r"""Return $\sqrt{w_i}\,(f(z_i)-f^*(z_i))$ at quadrature nodes $z_i$ of weights $w_i$.

    `theta`, [2, head, d, d], contains the matrices $U$, then the matrices $V$, of the heads of $f$.
    """
    heads = MultiHead([SoftmaxAttention(u, v) for u, v in zip(*theta, strict=True)])
    outputs = jax.vmap(lambda z: heads.attend(law, z))(points.points)
    return (jnp.sqrt(points.weights)[:, None] * (outputs - points.bayes)).ravel()


_jacobian = eqx.filter_jit(jax.jacfwd(_residuals))


_QUERIES = 20
_STEP = 1e-30


def random_task(rng: np.random.Generator, within: float, noise: float) -> Denoising:
    """Return a law in three dimensions whose means have norms 1, 2, 1/2 and random directions."""
    weights = np.array([0.5, 0.3, 0.2])
    means = rng.normal(size=(3, 3))
    means *= np.array([[1.0], [2.0], [0.5]]) / np.linalg.norm(means, axis=1, keepdims=True)
    return Denoising(means, weights, within_variance=within, noise_variance=noise)


def tweedie(task: Denoising, query: np.ndarray) -> np.ndarray:
    r"""Return $z+\xi^2\nabla\log p(z)$, with the density $p$ of the query.

    The gradient is a difference quotient with an imaginary step, which avoids cancellation.
    """
    s, slopes = task.query_variance, []
    for axis in np.eye(query.size):
        away = query + 1j * _STEP * axis - task.means
        logits = np.log(task.weights) - np.sum(away**2, axis=1) / (2 * s)
        top = logits.real.max()
        slopes.append(np.log(np.sum(np.exp(logits - top))).imag / _STEP)
    return query + task.noise_variance * np.array(slopes)


def without_offsets(task: Denoising, query: np.ndarray) -> np.ndarray:
    """Return a wrong predictor, whose gate omits the norms of the means."""
    g, x, s = task.within_variance, task.noise_variance, task.query_variance
    gate = task.weights * np.exp(task.means @ query / s)
    return g / s * query + x / s * (gate / gate.sum() @ task.means)


@STUDY.claim(14, reference="Equations 10 and 11, Appendix C.2")
def bayes_denoiser(setting: Setting) -> Iterator[Check]:
    r"""Let $z$ be a token of a mixture of $\mathcal{N}(m_k, \Gamma)$ with weights $\pi_k$, plus
    noise of variance $\xi^2$, and $S = \Gamma + \xi^2I$. The Bayes denoiser is $\Gamma S^{-1}z +
    \xi^2S^{-1}\sum_k\beta_km_k$, where $\beta$ is the softmax of $\log\pi_k + \langle m_k,
    S^{-1}z\rangle - \langle m_k, S^{-1}m_k\rangle/2$ over $k$. Tested for three components and
    $\Gamma = 0.8\,I$ in three dimensions.
    """
    # Queries have norms of at most 7, and the first query is 0. Its gate is (0.557, 0.184, 0.259).
    # Without offsets the gate is (0.5, 0.3, 0.2), a change of 0.057, 0.116 and 0.059. Since the
    # means have norms 1, 2 and 1/2 and random directions, the predictor without offsets differs by
    # at least (ξ²/s)(2 · 0.116 − 0.057 − 0.059/2) = 0.098.
    rng = np.random.default_rng(setting.seed)
    task = random_task(rng, 0.8, 1.7)
    queries = np.concatenate([np.zeros((1, 3)), rng.uniform(-4.0, 4.0, (_QUERIES - 1, 3))])

    def distance(law: Denoising, targets: Sequence[np.ndarray]) -> float:
        bayes = np.stack([np.asarray(law.bayes(z)) for z in queries])
        return float(np.abs(bayes - np.stack(targets)).max())

    little, much = random_task(rng, 0.8, 1e-9), random_task(rng, 0.8, 1e9)
    prior = much.weights @ much.means
    lost = distance(task, [without_offsets(task, z) for z in queries])
    yield at_most(
        r"largest distance from $z + \xi^2\nabla\log p(z)$, where $p$ is the density of the "
        "query",
        distance(task, [tweedie(task, z) for z in queries]),
        1e-10,
        basis="rounding error: $10^{-16}$ times numbers of at most 100; margin $10^4$",
    )
    yield at_most(
        r"$\xi^2 = 10^{-9}$: largest distance from the query",
        distance(little, list(queries)),
        2e-8,
        basis=r"theory: $(\xi^2/s)\,{|m - z|}$, at most $1.25 \times 10^{-9} \cdot 9$; "
        "margin 1.8",
    )
    yield at_most(
        r"$\xi^2 = 10^9$: largest distance from the prior mean",
        distance(much, [prior] * _QUERIES),
        1e-7,
        basis=r"theory: $(0.8 \cdot 7 + 2 \cdot 2 \cdot (14 + 2)) \cdot 10^{-9}$, at most "
        r"$7 \times 10^{-8}$",
    )
    yield control_at_least(
        r"gate without the terms $\langle m_k, S^{-1}m_k\rangle/2$: largest distance",
        lost,
        0.05,
        basis="theory: at least 0.098 in norm, 0.056 in some coordinate",
    )


def plane_heads(task: Denoising) -> MultiHead:
    """Return the two heads of Appendix C.5 for means in the plane."""
    g, x, s = task.within_variance, task.noise_variance, task.query_variance
    first, second = task.means
    delta, heads = first - second, []
    for own, other in ((first, second), (second, first)):
        onto = np.linalg.solve(np.stack([own, other]), np.array([1.0, 0.0]))
        tilt = g * np.eye(2) + (x - g) * np.outer(other, delta) / (other @ delta)
        heads.append(SoftmaxAttention(tilt / (x * s), x / s * np.outer(own, onto)))
    return MultiHead(heads)


def distance(attention: AbstractAttention, task: Denoising) -> float:
    """Return the largest distance of an output from the Bayes denoiser at a few queries."""
    law, (queries, _, bayes) = task.token_law, query_points(task, 16)
    outputs = np.stack([np.asarray(attention(law, z)) for z in queries])
    return float(np.abs(outputs - bayes).max())


@STUDY.claim(15, reference="Theorem 4.1, Appendix C.5")
def two_heads(setting: Setting) -> Iterator[Check]:
    r"""For two components whose means have equal norms, there are two softmax heads whose sum over
    an infinite prompt is the Bayes denoiser.
    """
    rng = np.random.default_rng(setting.seed)
    laws = [figure_law(), *(random_law(rng, dim) for dim in (2, 3, 5))]
    opposite = [
        Denoising([m, -m], [0.3, 0.7], within_variance=1.3, noise_variance=0.6)
        for m in (law.means[0] for law in laws[1:3])
    ]
    excess = max(limit_excess(bayes_heads(law), law) for law in (*laws, *opposite))
    ours = figure_law()
    largest = max(distance(heads, ours) for heads in (bayes_heads(ours), plane_heads(ours)))
    rounding = "rounding error: outputs of at most 10 to $10^{-14}$"
    yield at_most(
        "law of Figure 2, heads of the library and as written in Appendix C.5: largest distance "
        "from the Bayes denoiser",
        largest,
        1e-9,
        basis=f"{rounding}; margin $10^4$",
    )
    yield at_most(
        "means that span a plane, $d = 2, 3, 5$, and opposite means, $d = 2, 3$: largest excess",
        excess,
        1e-20,
        basis=f"{rounding}, squared; margin $10^6$",
    )
    yield control_at_least(
        "norms 3 and 2: excess of the construction",
        limit_excess(plane_heads(UNEQUAL), UNEQUAL),
        1e-2,
        basis="stated margin: far above rounding error",
    )
    if not setting.quick:
        yield control_at_least(
            "norms 3 and 2: least excess of six fits",
            min(fitted_excesses(UNEQUAL, 6, rng, heads=2)),
            1e-3,
            basis=r"the least of 16 other fits is $5.4 \times 10^{-3}$; margin 5",
        )


_OTHERS = ((1.0, 4.0), (4.0, 1.0), (2.2, 1.8), (1.5, 2.5))
_FITS = 12
_ZERO = 1e-20


def _bayes_fits(name: str, excesses: Sequence[float]) -> Check:
    """Return a check that three quarters of the fits end at an excess of 0."""
    found = [excess <= _ZERO for excess in excesses]
    return share_at_least(f"{name}: fits that reach an excess of 0", found, 0.75)


@STUDY.claim(16, reference="Theorem 4.1")
def one_head(setting: Setting) -> Iterator[Check]:
    r"""For two components of equal norm, with variance $\gamma^2 > 0$ within components and noise
    variance $\xi^2$, one softmax head can be the Bayes denoiser if and only if $\gamma = \xi$.
    """
    rng = np.random.default_rng(setting.seed)
    starts, others = (3, _OTHERS[:3]) if setting.quick else (8, _OTHERS)
    equal = figure_law(2.0, 2.0)
    head = SoftmaxAttention(np.eye(2) / 4.0, 0.5 * np.eye(2))
    least = min(min(fitted_excesses(figure_law(g, x), starts, rng)) for g, x in others)
    unequal = Denoising([[3, 0], [0, 2]], [0.5, 0.5], within_variance=2, noise_variance=2)
    missed = _bayes_fits(r"$\gamma = \xi$, norms 3 and 2", fitted_excesses(unequal, _FITS, rng))
    yield at_most(
        r"$\gamma = \xi$: excess of the head $U = I/s$, $V = I/2$",
        limit_excess(head, equal),
        _ZERO,
        basis="rounding error, squared: outputs of at most 10 to $10^{-14}$; margin $10^6$",
    )
    yield _bayes_fits(r"$\gamma = \xi$", fitted_excesses(equal, _FITS, rng))
    yield at_least(
        rf"$\gamma \ne \xi$, {len(others)} ratios: least excess of all fits",
        least,
        1e-4,
        basis=r"the least of 90 other fits is $7 \times 10^{-4}$, at $\gamma^2 = 2.2$ and "
        r"$\xi^2 = 1.8$; margin 7",
    )
    yield rejected(missed)


def opposite_head(task: Denoising) -> SoftmaxAttention:
    r"""Return the Bayes head of the points $\pm m$: $U=(e+n)e^\top/\xi^2$, $V=e(e-n)^\top$.

    Here $e=m/|m|$, and $n$ is a unit vector perpendicular to $e$.
    """
    e = task.means[0] / np.linalg.norm(task.means[0])
    n = np.linalg.svd(e[None])[2][-1]
    return SoftmaxAttention(np.outer(e + n, e) / task.noise_variance, np.outer(e, e - n))


def roomy_head(task: Denoising) -> SoftmaxAttention:
    r"""Return the Bayes head of two points of equal norm in three dimensions or more.

    Let $\delta=m_1-m_2$, and let $n$ be a unit vector perpendicular to both means. Then
    $U=(\delta+n)\delta^\top/(\xi^2|\delta|^2)$, and $V$ maps each mean to itself and $n$ to
    $-\delta$, so that $VU=0$.
    """
    delta = task.means[0] - task.means[1]
    axes = np.linalg.svd(task.means)[2]
    plane, n = axes[:2], axes[2]
    tilt = np.outer(delta + n, delta) / (task.noise_variance * delta @ delta)
    return SoftmaxAttention(tilt, plane.T @ plane - np.outer(delta, n))


@STUDY.claim(18, reference="Remark 4.2")
def degenerate_mixture(setting: Setting) -> Iterator[Check]:
    r"""Consider two components of equal norm without variance within components ($\gamma = 0$). The
    sum of two softmax heads can be the Bayes denoiser. In the plane, one head can be the Bayes
    denoiser only for opposite means. In three dimensions or more, one head always can (derived
    here), because it can use a direction perpendicular to the means.
    """
    rng = np.random.default_rng(setting.seed)
    starts = 3 if setting.quick else 8
    laws = [figure_law(0.0, 4.0), *(random_law(rng, dim, within=0.0) for dim in (2, 3))]
    two = max(limit_excess(bayes_heads(law), law) for law in laws)
    opposite, spread = (
        Denoising([[1, 2], [-1, -2]], [0.4, 0.6], within_variance=g, noise_variance=3)
        for g in (0, 1)
    )
    one = limit_excess(opposite_head(opposite), opposite)
    rooms = [random_law(rng, dim, within=0.0) for dim in (3, 4, 6)]
    roomy = max(limit_excess(roomy_head(law), law) for law in rooms)
    missed = limit_excess(opposite_head(opposite), spread)
    rounding = "rounding error, squared: outputs of at most 10 to $10^{-14}$; margin $10^6$"
    yield at_most(
        r"$\gamma = 0$, two heads: largest excess",
        two,
        1e-20,
        basis=rounding,
    )
    yield at_most(
        r"$\gamma = 0$, opposite means in the plane, one head: excess",
        one,
        1e-20,
        basis=rounding,
    )
    yield at_least(
        r"$\gamma = 0$, other means in the plane: least excess of fits of one head",
        min(fitted_excesses(laws[0], starts, rng)),
        1e-2,
        basis="the least of 30 other fits is 0.109; margin 10",
    )
    yield at_most(
        r"$\gamma = 0$, $d = 3, 4, 6$, one head: largest excess",
        roomy,
        1e-20,
        basis=rounding,
    )
    yield control_at_least(
        r"$\gamma = 1$, opposite means in the plane: excess of the head that is Bayes at "
        r"$\gamma = 0$",
        missed,
        1e-2,
        basis="stated margin: far above rounding error",
    )


def paper_layer(within: float, noise: float, dim: int) -> Layer:
    r"""Return the layer $(1-2a)z+aA(z)$ of Proposition 4.4, $a=\xi^2/s$, for any means."""
    s, eye = within + noise, np.eye(dim)
    return Layer(SoftmaxAttention(eye / s, noise / s * eye), (1 - 2 * noise / s) * eye)


@STUDY.claim(20, reference="Proposition 4.4")
def one_layer_for_all(setting: Setting) -> Iterator[Check]:
    r"""A softmax head with $U = I/s$, where $s = \gamma^2 + \xi^2$, plus a multiple of the query is
    the Bayes denoiser of every mixture whose means have equal norms. Its matrices do not depend on
    the means, which enter through the prompt.
    """
    rng = np.random.default_rng(setting.seed)
    largest = 0.0
    for dim, components in ((2, 2), (2, 3), (3, 2), (5, 3), (10, 2)):
        for _ in range(2 if setting.quick else 10):
            law = random_law(rng, dim, components)
            layer = paper_layer(law.within_variance, law.noise_variance, dim)
            largest = max(largest, limit_excess(layer, law))
    law = random_law(rng, 3)
    settings = {"within_variance": law.within_variance, "noise_variance": law.noise_variance}
    turned = InContextDenoising(law.means, law.weights, **settings)
    in_context = limit_excess(bayes_layer(turned), turned)
    yield at_most(
        "random mixtures, $d$ from 2 to 10: largest excess",
        largest,
        1e-20,
        basis="rounding error, squared: outputs of at most 10 to $10^{-14}$; margin $10^6$",
    )
    yield at_most(
        "means rotated for each prompt: excess",
        in_context,
        1e-20,
        basis="as above",
    )
    yield control_at_least(
        "norms 3 and 2: excess",
        limit_excess(paper_layer(1.0, 4.0, 2), UNEQUAL),
        1e-2,
        basis="stated margin: far above rounding error",
    )
