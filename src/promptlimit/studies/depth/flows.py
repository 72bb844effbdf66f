r"""Claims on continuous depth: the flow of Gaussian tokens under softmax attention.

Tokens have the covariance $G(t)$ at depth $t$, with $G(0)=G_0$. A head has the key-query matrix $U$
and the value matrix $V$, and $C=\sqrt{G_0}(U+U^\top)\sqrt{G_0}$.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from promptlimit.attention import Layer, SoftmaxAttention, Stack
from promptlimit.depth import depth_flow
from promptlimit.measures import Empirical, Gaussian
from promptlimit.reporting import FAINT, LIMIT, plot_series, shades
from promptlimit.results import DepthFlow
from promptlimit.studies import Check, Setting, at_most, control_at_least, control_at_most
from promptlimit.studies.depth import STUDY

Matrix = NDArray[np.float64]


def random_covariance(rng: np.random.Generator, dim: int) -> Matrix:
    """Return a covariance with eigenvalues between a half and two."""
    return random_symmetric(rng, rng.uniform(0.5, 2.0, dim))


def random_symmetric(rng: np.random.Generator, eigenvalues: Matrix) -> Matrix:
    """Return a symmetric matrix with these eigenvalues and random axes."""
    axes, _ = np.linalg.qr(rng.normal(size=(len(eigenvalues),) * 2))
    return (axes * eigenvalues) @ axes.T


def random_head(rng: np.random.Generator, dim: int) -> tuple[Matrix, Matrix]:
    r"""Return U and a covariance $G_0$ whose flow blows up at depth 1.

    One eigenvalue of $C=\sqrt{G_0}(U+U^\top)\sqrt{G_0}$ is 1, and the other eigenvalues are between
    -1 and 1/2. U also has an antisymmetric part, on which the flow does not depend if V = I.
    """
    G = random_covariance(rng, dim)
    rates = random_symmetric(rng, np.append(rng.uniform(-1.0, 0.5, dim - 1), 1.0))
    inverse = np.linalg.inv(root_of(G))
    skew = rng.normal(size=(dim, dim)) / dim
    return 0.5 * inverse @ rates @ inverse + skew - skew.T, G


def root_of(covariance: Matrix) -> Matrix:
    """Return the symmetric square root of a covariance."""
    variances, axes = np.linalg.eigh(covariance)
    return (axes * np.sqrt(np.maximum(variances, 0.0))) @ axes.T


def flow(
    key_query: Matrix,
    covariance: Matrix,
    times: list[float],
    *,
    value: Matrix | None = None,
    method: str = "auto",
) -> DepthFlow:
    """Return the flow of centred Gaussian tokens under one softmax head, by default with V = I."""
    eye = np.eye(len(covariance))
    head = SoftmaxAttention(key_query, eye if value is None else value)
    return depth_flow(head, Gaussian(np.zeros(len(eye)), covariance), times, method=method)


def closed_form(key_query: Matrix, covariance: Matrix, time: float) -> Matrix:
    r"""Return $G(t)=G_0(I-t(U+U^\top)G_0)^{-1}$, the closed form for V = I."""
    symmetric = key_query + key_query.T
    return covariance @ np.linalg.inv(np.eye(len(covariance)) - time * symmetric @ covariance)


def distance(one: NDArray[np.inexact], other: NDArray[np.inexact]) -> float:
    """Return the distance of two matrices, relative to the norm of the second."""
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


@STUDY.claim(1, reference="Castin et al. 2025, the Gaussian flow")
def closed_covariance(setting: Setting) -> Iterator[Check]:
    r"""When Gaussian tokens of covariance $G_0$ pass through one softmax head with $V = I$ in
    continuous depth, their covariance at depth $t$ is $G(t) = G_0\,(I - t\,(U + U^\top)\,G_0)^{-1}$
    (derived here from the equation of Castin et al.).
    """
    # For V = −I the formula holds with −U in place of U. In one dimension, the variance is then
    # (1 − t)/(1 + t) times the variance for V = I, so their relative distance at t = 0.3 is 6/13.
    rng = np.random.default_rng(setting.seed)
    apart, other = [], []
    times = [0.3, 0.6, 0.9]
    for dim in (1, 2, 3) if setting.quick else (1, 2, 3, 5, 8):
        U, G = random_head(rng, dim)
        solved = flow(U, G, times, method="ode").cov
        apart += [distance(solved[i], closed_form(U, G, t)) for i, t in enumerate(times)]
        moved = flow(U, G, times[:1], value=-np.eye(dim), method="ode").cov[0]
        other.append(distance(moved, closed_form(U, G, times[0])))
    yield at_most(
        "largest distance of the solved flow from the formula, up to 0.9 of the blow-up time",
        max(apart),
        1e-6,
        basis="solver: tolerance $10^{-9}$, and errors grow by $1/(1 - 0.9)$ along the "
        "flow; margin 100",
    )
    yield control_at_least(
        "$V = {-I}$, $d = 1$: distance of the solved flow from the formula for $V = I$, at "
        "$t = 0.3$",
        other[0],
        0.4,
        basis="closed form: $6/13$",
    )


_LEFT = 1e-6


@STUDY.claim(2, reference="Castin et al. 2025, finite-time blow-up")
def blow_up(setting: Setting) -> Iterator[Check]:
    r"""Let $V = I$, let $G_0$ be the covariance at $t = 0$ and $C = \sqrt{G_0}\,(U +
    U^\top)\sqrt{G_0}$. The covariance $G(t)$ blows up at $t^* = 1/\lambda_{\max}(C)$ if
    $\lambda_{\max}(C) > 0$, and never otherwise; $(t^* - t)\,G(t)$ tends to the rank-one matrix
    $\sqrt{G_0}\,ee^\top\sqrt{G_0}/\lambda_{\max}(C)$, where $e$ is the leading eigenvector of $C$
    (derived here).
    """
    # One eigenvalue of C is 1, and the others are at most 1/2. Eigenvalues of G₀ are between 1/2
    # and 2. At t = 1 − ε all eigenvalues of (I − tC)⁻¹ except the largest are at most 2. The bounds
    # follow from these values.
    rng = np.random.default_rng(setting.seed)
    early, directions, seconds, grown = [], [], [], []
    dims = (2, 3) if setting.quick else (2, 3, 4, 6)
    for dim in dims:
        U, G = random_head(rng, dim)
        A = root_of(G)
        rates, axes = np.linalg.eigh(A @ (U + U.T) @ A)
        expected = float(1 / rates[-1])
        solved = flow(U, G, [0.5 * expected, 2 * expected], method="ode")
        early.append(abs((solved.blow_up or np.inf) / expected - 1))
        last = flow(U, G, [expected - _LEFT]).cov[0]
        line = A @ axes[:, -1]
        directions.append(distance(_LEFT * last, np.outer(line, line) / rates[-1]))
        spectrum = np.linalg.eigvalsh(last)
        seconds.append(spectrum[-2] / spectrum[-1])
        falling = flow(-random_covariance(rng, dim), G, [1000.0], method="ode")
        grown.append(np.linalg.eigvalsh(falling.cov[0])[-1])
    yield at_most(
        "largest relative difference between the blow-up time of the solved flow and "
        r"$t^* = 1/\lambda_{\max}(C)$",
        max(early),
        1e-6,
        basis="solver: about a hundred steps with tolerance $10^{-9}$; margin 10",
    )
    yield at_most(
        r"largest distance of $(t^* - t)\,G(t)$ from its limit, at $t = t^* - 10^{-6}$",
        max(directions),
        8e-6 * (max(dims) - 1) ** 0.5,
        basis=r"theory: at most $10^{-6} \cdot 2 \cdot 2\sqrt{d - 1}$ over $1/2$",
    )
    yield at_most(
        "largest ratio of the second eigenvalue of $G(t)$ to the first, at $t = t^* - 10^{-6}$",
        max(seconds),
        8e-6,
        basis=r"theory: at most $2 \cdot 2$ over $10^6/2$",
    )
    yield control_at_most(
        r"$U + U^\top$ negative definite: largest variance of the solved flow at $t = 1000$",
        max(grown),
        2e-3,
        basis=r"theory: $t\,G(t) \le ({-U} - U^\top)^{-1}$, whose eigenvalues are at most "
        "1; margin 2",
    )


_LATE = 1e8


@STUDY.claim(3, reference="Castin et al. 2025, low-rank limits")
def low_rank_limits(setting: Setting) -> Iterator[Check]:
    r"""Let $V = I$, let the covariance $G_0$ at $t = 0$ be invertible, and let $B = U + U^\top$ be
    negative semidefinite. The covariance $G(t)$ tends to $\sqrt{G_0}\,P\sqrt{G_0}$, where $P$
    projects on the kernel of $\sqrt{G_0}\,B\sqrt{G_0}$; its rank is $d - \mathrm{rank}(B)$, which
    is $\lceil d/2 \rceil$ if $U = K^\top Q$ with $K = {-Q}$ of rank $\lfloor d/2 \rfloor$. If $B$
    is negative definite, then $t\,G(t)$ tends to $({-B})^{-1}$ for every such $G_0$ (derived here).
    """
    # Singular values of Q and eigenvalues of G₀ are between 1/2 and 2, so the nonzero eigenvalues λ
    # of √G₀B√G₀ are at most -1/4. At t = 10⁸ the eigenvalues (1 - tλ)⁻¹ in
    # G(t) = √G₀(I - t√G₀B√G₀)⁻¹√G₀ are therefore at most 4e-8.
    rng = np.random.default_rng(setting.seed)
    wrong, apart, inverses, missed = 0.0, [], [], []
    for dim in (3, 4) if setting.quick else (3, 4, 5, 6):
        Q, G = random_covariance(rng, dim // 2), random_covariance(rng, dim)
        Q = Q @ np.linalg.qr(rng.normal(size=(dim, dim)))[0][: dim // 2]
        U, A = -Q.T @ Q, root_of(G)
        late = flow(U, G, [_LATE])
        wrong += float(late.ranks(1e-4)[0] != dim - dim // 2)
        _, _, rows = np.linalg.svd(Q @ A)
        kernel = rows[dim // 2 :]
        projected = A @ kernel.T @ kernel @ A
        apart.append(distance(late.cov[0], projected))
        full = -random_covariance(rng, dim)
        far = _LATE * flow(full, G, [_LATE]).cov[0]
        inverses.append(distance(far, np.linalg.inv(-2 * full)))
        soon = flow(-U, G, [0.9 / float(np.linalg.eigvalsh(-2 * A @ U @ A)[-1])])
        missed.append(distance(soon.cov[0], projected))
    yield at_most(
        r"number of flows whose rank at $t = 10^8$ differs from $\lceil d/2 \rceil$",
        wrong,
        0.0,
        basis=r"a count; eigenvalues are above $1/2$ or below $8 \times 10^{-8}$, and a cut "
        "at $10^{-4}$ separates them",
    )
    yield at_most(
        r"largest distance of the covariance from $\sqrt{G_0}\,P\sqrt{G_0}$",
        max(apart),
        1e-6,
        basis=r"theory: $4 \times 10^{-8} \cdot 2\sqrt{d/2}$ over $1/2$, at most "
        r"$3 \times 10^{-7}$, and rounding error of $10^{-8}$; margin 3",
    )
    yield at_most(
        r"$B$ negative definite: largest distance of $t\,G(t)$ from $({-B})^{-1}$",
        max(inverses),
        1e-6,
        basis=r"theory: ${\|G_0^{-1}\|}\,{\|B^{-1}\|}\,10^{-8}\sqrt{d}$, at most "
        r"$5 \times 10^{-8}$; margin 20",
    )
    yield control_at_least(
        "$K = Q$, near the blow-up: smallest distance of the covariance from "
        r"$\sqrt{G_0}\,P\sqrt{G_0}$",
        min(missed),
        0.5,
        basis=r"theory: $10 \cdot 1/2$ over $2\sqrt{\lceil d/2 \rceil}$, at least 1.4",
    )


@STUDY.claim(4, reference="Alcalde, Ji and Zuazua 2026, abstract")
def constant_rank(setting: Setting) -> Iterator[Check]:
    r"""The covariance of the tokens has the same rank at every finite depth of the flow."""
    # U and V have norm 1, and the nonzero eigenvalues of G₀ are between 1/2 and 2. Since
    # ‖G‖' ≤ 2‖G‖², ‖G‖ stays below 3.4 until t = 0.1. The least nonzero eigenvalue stays above
    # e^(−0.68)/2 = 0.25, which is at least 0.07 times the largest eigenvalue.
    rng = np.random.default_rng(setting.seed)
    changed = 0.0
    for dim, rank in ((3, 2), (4, 1)) if setting.quick else ((3, 2), (4, 1), (5, 3), (6, 5)):
        U, V = (matrix / np.linalg.norm(matrix, 2) for matrix in rng.normal(size=(2, dim, dim)))
        spectrum = np.append(rng.uniform(0.5, 2.0, rank), np.zeros(dim - rank))
        G = random_symmetric(rng, spectrum)
        times = [0.0, 0.05, 0.1]
        ranks = flow(U, G, times, value=V, method="ode").ranks(1e-6)
        changed += float((ranks != rank).sum())
    direction = rng.normal(size=3)
    direction /= np.linalg.norm(direction)
    layer = Layer(SoftmaxAttention(np.outer(direction, direction), -np.eye(3)))
    image = layer.push_forward(Gaussian(np.zeros(3), np.eye(3)))
    left = np.linalg.matrix_rank(np.asarray(image.cov), tol=1e-9)
    yield at_most(
        "number of depths at which the rank differs from that at the start",
        changed,
        0.0,
        basis="a count; a cut at $10^{-6}$ of the largest eigenvalue separates 0.07 from "
        "the solver's $10^{-9}$",
    )
    yield control_at_least(
        "a layer with $I + VGU$ singular: ranks lost, of 3",
        3.0 - left,
        1.0,
        basis=r"a count; in closed form the layer is $I - uu^\top$, which has one rank less",
    )


def _errors(
    key_query: np.ndarray, cov: np.ndarray, time: float, counts: Sequence[int]
) -> np.ndarray:
    """Return the distance of the covariance after `count` thin layers from the flow, [count]."""
    target, law = flow(key_query, cov, [time]).cov[0], Gaussian(np.zeros(len(cov)), cov)
    errors = []
    for count in counts:
        thin = Layer(SoftmaxAttention(key_query, time / count * np.eye(len(cov))))
        image = Stack([thin] * count).push_forward(law)
        errors.append(np.linalg.norm(np.asarray(image.cov) - target))
    return np.array(errors)


@STUDY.claim(5, reference="Euler's method; Castin et al. 2025 for the equation")
def thin_layers(setting: Setting) -> Iterator[Check]:
    r"""A stack of $K$ residual layers of step $T/K$ approximates the flow at depth $T$ with an
    error of order $1/K$.
    """
    # With B = U + U', a step of size h has the error h²(GBGBG − GUGU'G) to leading order. This can
    # vanish, but not for a symmetric U whose eigenvalue of largest modulus is 0.15.
    rng = np.random.default_rng(setting.seed)
    counts = (40, 80) if setting.quick else (40, 80, 160)
    ratios = []
    for dim in (1, 3):
        G = random_covariance(rng, dim)
        U = random_symmetric(rng, np.append(rng.uniform(-0.15, 0.15, dim - 1), 0.15))
        errors = _errors(U, G, 0.5, counts)
        ratios.append(errors[:-1] / errors[1:])
    thick = Layer(SoftmaxAttention(U, 0.005 * np.eye(dim)))
    law = Gaussian(np.zeros(dim), G)
    few, many = (np.asarray(Stack([thick] * n).push_forward(law).cov) for n in counts[:2])
    target = flow(U, G, [0.005 * counts[0]]).cov[0]
    kept = float(np.linalg.norm(many - target) / np.linalg.norm(few - target))
    yield at_most(
        "ratio of the error with $K$ layers to that with $2K$ layers: largest distance from 2",
        max(float(np.abs(ratio - 2).max()) for ratio in ratios),
        0.1,
        basis="theory: the next order has relative size $1/K$, 0.05 in the ratio; margin 2",
    )
    yield control_at_least(
        "step $0.005$ for every $K$: ratio of the error with $2K$ layers to that with $K$ layers",
        kept,
        1.5,
        basis="theory: the depth doubles, so an error of order 1 is divided by one of order $1/K$",
    )


@STUDY.claim(6, reference="Castin et al. 2025, blow-up of the limit")
def no_finite_blow_up(setting: Setting) -> Iterator[Check]:
    r"""At depth $t$ no token is larger than $e^{{\|V\|}t}$ times the largest token at $t = 0$,
    because attention returns a point of the convex hull of the values. The tokens of a finite
    prompt are therefore finite at every depth, also from the depth $t^*$ on at which the
    infinite-prompt limit diverges (derived here). Tested for $d = 1$.
    """
    rng = np.random.default_rng(setting.seed)
    lengths = (20, 100) if setting.quick else (50, 500)
    reached, finite = [], []
    head = SoftmaxAttention([[0.5]], [[1.0]])
    for length in lengths:
        tokens = rng.normal(size=(length, 1))
        past = depth_flow(head, Empirical(tokens), [2.0], rtol=1e-6)
        bound = math.exp(2.0) * np.abs(tokens).max()
        reached.append(float(np.abs(np.asarray(past.tokens)).max() / bound))
        finite.append(float(past.cov[0, 0, 0] / bound**2))
    law = depth_flow(head, Gaussian([0.0], [[1.0]]), [0.9999])
    yield at_most(
        r"largest token at $t = 2t^*$, divided by $e^{{\|V\|}t}$ times the largest at $t = 0$",
        max(reached),
        1.0 + 1e-5,
        basis="theory: 1; the solver's $10^{-6}$, margin 10",
    )
    yield at_most(
        r"variance of the tokens at $t = 2t^*$, divided by the square of $e^{{\|V\|}t}$ times "
        "the largest token at $t = 0$",
        max(finite),
        1.0 + 1e-5,
        basis="theory: 1, since no token is larger; the solver's $10^{-6}$, margin 10",
    )
    yield control_at_least(
        r"variance of the limit at $0.9999\,t^*$",
        law.cov[0, 0, 0],
        9_000.0,
        basis="closed form: $1/(1 - 0.9999) = 10^4$",
    )


@STUDY.figure(
    "The limit blows up, no prompt does",
    reference="Castin et al. 2025, finite-time blow-up",
    name="blow_up",
)
def blow_up_curves(setting: Setting) -> dict[str, np.ndarray]:
    r"""Variance of the tokens in continuous depth $t$ under softmax attention, $d = 1$, $U = 1/2$,
    $V = 1$. The infinite-prompt limit $1/(1 - t)$ diverges at $t = 1$ (vertical line). Over finite
    prompts the variance is finite at every depth. It agrees with the limit up to a depth that grows
    with the length, but is less than 1.
    """
    rng = np.random.default_rng(setting.seed)
    lengths = np.array([20, 100]) if setting.quick else np.array([50, 200, 800])
    times = np.linspace(0.0, 2.0, 41)
    head = SoftmaxAttention([[0.5]], [[1.0]])
    limit = depth_flow(head, Gaussian([0.0], [[1.0]]), times)
    variances = []
    for length in lengths.tolist():
        setting.report(f"{length} tokens through depth")
        tokens = Empirical(rng.normal(size=(length, 1)))
        variances.append(depth_flow(head, tokens, times, rtol=1e-4).cov[:, 0, 0])
    return {
        "times": times,
        "lengths": lengths,
        "variances": np.array(variances),
        "limit": limit.cov[:, 0, 0],
        "blow_up": np.array(limit.blow_up),
    }


@blow_up_curves.drawing
def draw_blow_up(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    for place, colour in enumerate(shades(data["lengths"].size)):
        label = f"L = {data['lengths'][place]:g}"
        plot_series(axis, data["times"], data["variances"][place], label, color=colour)
    known = np.isfinite(data["limit"])
    limit = data["times"][known], data["limit"][known]
    plot_series(axis, *limit, "limit", color=LIMIT, dashes=(4, 2))
    axis.axvline(float(data["blow_up"]), color=FAINT, linewidth=0.8)
    axis.set(yscale="log")
    axis.set_xlabel("depth $t$")
    axis.set_ylabel("variance of the tokens")
    axis.legend(loc="upper left")
    return figure
