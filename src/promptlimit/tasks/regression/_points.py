r"""Points for averages over the weights and the query of a regression.

A point $(x_q,W)$ consists of the covariates of a query and the hidden weights, one row w of W per
label.

- `node_sets` yields scrambled Sobol' points from the law of $(x_q,W)$. These points are used for
  many heads, such as those along a flow.
- `tail_node_sets` yields points for one head. For large L the risk over prompts of L tokens depends
  on rare points whose sharpness $\sigma$ reaches $\sqrt{2\log L}$. Points from the law of $(x_q,W)$
  can miss them.

Both functions yield each point with W and with $-W$. The gradient of the risk in the zero blocks of
a block head is odd in W, so the average of this gradient over the points is exactly zero.
"""

import dataclasses
import math
from collections.abc import Iterator

import equinox as eqx
import numpy as np
from numpy.typing import NDArray

from promptlimit._quadrature import sobol_sets, stretched_radii
from promptlimit.tasks.regression._task import LinearRegression

_SEED = 20_251_211
_LABEL_SCALES = 64
_STRETCH = 1.8
_SHARES = (0.5, 0.25, 0.125, 0.125)
_BEYOND = 8.0
_LARGEST_TILT = 0.95
_SMALLEST = 1e-12
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)


class Nodes(eqx.Module):
    r"""Points $(x_q, W)$ for averages, where W has one row of weights per label.

    Attributes:
        query: the covariates $x_q$ of the queries, [d, points].
        root: the matrix C of `covariance_factor`, with $C^\top C=\Sigma$, [d, d].
        weights: the vectors $Cw$ for each row w of W, [m, d, points].
        label: the labels $Wx_q$ without noise, [m, points].
        mass: the importance weights, [points]. The mean over the points of mass times a function F
            of $(x_q,W)$ approximates $E\,F$.
        distinct: the number n of distinct pairs of a query and a mass. Point i + n has the query
            and the mass of point i, and a different W.
    """

    query: NDArray[np.float64]
    root: NDArray[np.float64]
    weights: NDArray[np.float64]
    label: NDArray[np.float64]
    mass: NDArray[np.float64]
    distinct: int = eqx.field(static=True)


def covariance_factor(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return C with $C^\top C=\Sigma$; its rows are orthogonal eigenvectors, longest first."""
    variances, axes = np.linalg.eigh(covariance)
    return (np.sqrt(np.maximum(variances, 0.0)) * axes).T[::-1]


def node_sets(task: LinearRegression, points: int, replicate: int) -> Iterator[Nodes]:
    r"""Yield consecutive sets of points from the law of $(x_q, W)$.

    The query is $\chi_d\,\Sigma_q^{1/2}\theta$ with a random direction $\theta$. The first
    coordinate of the Sobol' sequence, which is the most even, determines the radius $\chi_d$,
    because the risk of an isotropic head depends on the query only through $\chi_d$. Each query is
    combined with 4md matrices W: the axes of a random orthonormal frame of $\mathbb R^{md}$, with
    both signs and two sizes. The second moment of these matrices is exactly that of the law of W.
    If scores do not depend on labels, the risk depends on W only through this moment.

    Args:
        task: the regression.
        points: the approximate size of one set; the number of queries is a power of two.
        replicate: the index of an independent scrambling of the sequence.
    """
    from scipy.special import ndtri  # noqa: PLC0415  # scipy loads slowly

    dim = task.covariance.shape[0]
    entries = task.label_dim * dim
    queries = 2 ** max(1, round(math.log2(points / (4 * entries))))
    query_root, root = covariance_factor(task.query_covariance), covariance_factor(task.covariance)
    place = np.random.default_rng([_SEED, replicate, 2]).random()
    for uniforms in sobol_sets(dim + entries + 2, queries, _SEED, replicate):
        uniform, normals = uniforms[:, 0], ndtri(uniforms[:, 1:].T)
        radius, mass = stretched_radii(dim, uniform, place)
        query = query_root.T @ (radius * _directions(normals[:dim]))
        sizes, shares = _size_pairs(entries, normals[dim])
        # The columns of a Householder reflection are an orthonormal frame.
        mirror = _directions(normals[dim + 1 :])
        frame = np.eye(entries)[:, :, None] - 2.0 * mirror[:, None] * mirror[None]
        frame = math.sqrt(task.prior_variance) * frame[:, None] * sizes[:, None]
        frame = frame.reshape(task.label_dim, dim, -1)
        weights = np.concatenate([frame, -frame], axis=-1)
        masses = np.repeat(2.0 * shares * mass, entries, axis=0).ravel()
        query = np.tile(query, 4 * entries)
        distinct = 2 * entries * queries
        yield _nodes(query, root, weights, np.tile(masses, 2), distinct)


def _nodes(
    query: NDArray[np.float64],
    root: NDArray[np.float64],
    weights: NDArray[np.float64],
    mass: NDArray[np.float64],
    distinct: int,
) -> Nodes:
    """Return the points for matrices W = `weights`, [m, d, points]."""
    label = np.sum(query * weights, axis=1)
    return Nodes(query, root, root @ weights, label, mass, distinct)


def _size_pairs(
    dim: int, normal: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Return pairs $a<b$ of norms of normal vectors and their probabilities, both [2, points].

    A pair solves $P(a<\chi_d<b)=s$ and $E[\chi_d^2;a<\chi_d<b]=d\,s$, where s is the normal
    distribution function at `normal`. The second equation holds if $x\,e^{-x/d}$ has equal values
    at $a^2$ and $b^2$. With the returned probabilities of a and b, the mean square of the pair is
    d. If s is uniform, the pairs have the law of $\chi_d$.
    """
    from scipy.special import gammainc, lambertw, ndtr  # noqa: PLC0415  # scipy loads slowly

    depth = np.concatenate([np.geomspace(1e-12, 1e-2, 400), np.geomspace(1e-2, 60.0, 4000)])
    level = -np.exp(-1.0 - depth)
    low, high = (-dim * lambertw(level, branch).real for branch in (0, -1))
    inside = gammainc(0.5 * dim, 0.5 * high) - gammainc(0.5 * dim, 0.5 * low)
    a, b = (np.interp(ndtr(normal), inside, one) for one in (low, high))
    share = (b - dim) / (b - a)
    return np.sqrt([a, b]), np.stack([share, 1.0 - share])


def _directions(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return vectors / np.linalg.norm(vectors, axis=0)


def tail_node_sets(
    task: LinearRegression,
    key_query: NDArray[np.float64],
    length: float,
    points: int,
    replicate: int,
) -> Iterator[Nodes]:
    r"""Yield consecutive sets of points that reach the large values of the sharpness of one head.

    Let A and u be the blocks of U with $U(x_q,0)=(Ax_q,ux_q)$. Write $x_q=R^\top z$ with
    $R^\top R=\Sigma_q$, and $z=E\hat t+z_\perp$, where the columns of $E$ are an orthonormal basis
    of the image of $Ru^\top$ and $z_\perp$ is orthogonal to them. Let $t_2=ux_q=uR^\top E\hat t$
    and $p=C(Ax_q+W^\top t_2)$ with $C^\top C=\Sigma$, so that $\sigma^2=|p|^2+s^2|t_2|^2$. Given
    $\hat t$, p is normal: with $M=CAR^\top$,

    $$p\sim N(ME\hat t,\ K),\qquad K=M(I-EE^\top)M^\top+|t_2|^2\tau^2CC^\top .$$

    The points p come from a mixture of the normal laws $e^{\beta|p|^2/2}N(p;ME\hat t,K)/Z_\beta$
    for several $\beta$. The first coordinate of $\hat t$, along which $t_2$ is largest, is
    stretched. Half of the points have $\beta=0$, so no mass exceeds twice the mass of $\hat t$.
    With the largest $\beta$, points reach $\sigma^2=2\log L$. The masses depend only on $|p|^2$ and
    $\hat t$. The other components of $(x_q,W)$ move with their conditional mean given p.

    Args:
        task: the regression.
        key_query: the matrix $U$ of the head.
        length: the prompt length L, which must be finite.
        points: the size of one set, a power of two.
        replicate: the index of an independent scrambling.
    """
    from scipy.special import ndtri  # noqa: PLC0415  # scipy loads slowly

    dim, prior = task.covariance.shape[0], task.prior_variance
    query_root, root = covariance_factor(task.query_covariance), covariance_factor(task.covariance)
    A, u = key_query[:dim, :dim], key_query[dim:, :dim]
    M = root @ A @ query_root.T
    E, reads = _label_axes(query_root @ u.T)
    labelled = E.shape[1] > 0
    scales = max(1, min(_LABEL_SCALES, points // 64)) if labelled else 1
    shifts = np.random.default_rng([_SEED, replicate, 1]).random(max(1, E.shape[1]))
    across = np.eye(dim) - E @ E.T
    spread, noisy = M @ across @ M.T, prior * (root @ root.T)
    dims = 1 + dim + task.label_dim * dim
    for number, uniforms in enumerate(sobol_sets(dims, points // 2, _SEED, replicate)):
        uniform, normals = uniforms[:, 0], ndtri(uniforms[:, 1:].T)
        place = np.minimum((uniform * scales).astype(int), scales - 1)
        within = uniform * scales - place
        component = np.minimum(np.searchsorted(np.cumsum(_SHARES), within, side="right"), 3)
        t, label_mass = _label_levels(scales, shifts + number * _GOLDEN, E.shape[1])
        label = reads @ t
        tilted = _tilts(
            spread + np.sum(label**2, axis=0)[:, None, None] * noisy, (M @ E @ t).T, length
        )
        z, read = across @ normals[:dim], label[:, None, place]
        w = math.sqrt(prior) * normals[dim:].reshape(task.label_dim, dim, -1)
        parts = []
        for sign in (1.0, -1.0):
            first = M @ z + root @ np.sum(read * (sign * w), axis=0)
            moved = tilted.moves(place, component, first)
            query = query_root.T @ (E @ t[:, place] + z + across @ (M.T @ moved))
            weights = sign * w + prior * read * (root.T @ moved)
            p = root @ (A @ query + np.sum(read * weights, axis=0))
            mass = label_mass[place] * tilted.masses(place, np.sum(p * p, axis=0))
            parts.append((query, weights, mass))
        query, weights, mass = (np.concatenate(part, axis=-1) for part in zip(*parts, strict=True))
        yield _nodes(query, root, weights, mass, points if labelled else points // 2)


def _label_axes(
    along: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Return $E$, [d, r], and $uR^\top E$, [m, r], for `along` = $Ru^\top$; largest first."""
    axes, sizes, _ = np.linalg.svd(along, full_matrices=False)
    axes = axes[:, sizes > _SMALLEST * sizes[0]]
    reads = along.T @ axes
    signs = np.sign(reads[np.argmax(np.abs(reads), axis=0), np.arange(reads.shape[1])])
    return axes * signs, reads * signs


def _label_levels(
    count: int, shifts: NDArray[np.float64], rank: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Return values of $\hat t$, [r, count], with the first coordinate stretched, and masses."""
    from scipy.special import ndtri  # noqa: PLC0415  # scipy loads slowly

    if rank == 0:
        return np.zeros((0, 1)), np.ones(1)
    # The first coordinate is evenly spaced. Steps of the others are roots of primes, modulo 1.
    number = np.arange(count)
    steps = np.sqrt(np.array(_PRIMES)[np.arange(rank - 1) % len(_PRIMES)])
    levels = np.stack(
        [
            (number + shifts[0] % 1.0) / count,
            *((number * step + shift) % 1.0 for step, shift in zip(steps, shifts[1:], strict=True)),
        ]
    )
    t = ndtri(np.clip(levels, 1e-12, 1 - 1e-12))
    t[0] *= _STRETCH
    return t, _STRETCH * np.exp(-0.5 * t[0] ** 2 * (1.0 - _STRETCH**-2))


@dataclasses.dataclass(frozen=True)
class _Tilts:
    r"""Tilted laws $e^{\beta|p|^2/2}N(p;\mu,K)/Z_\beta$ for several pairs $(\mu,K)$, called laws.

    Each law has one component per value of $\beta$. An affine map moves a draw $p_0$ from
    $N(\mu,K)$ to a draw p from the tilted law. So $K^+(p-p_0)$, with the pseudo-inverse $K^+$, is
    affine in $p_0-\mu$.

    Attributes:
        beta: the parameters $\beta$, [laws, components].
        log_norm: the logarithms $\log Z_\beta$, [laws, components].
        turn: the matrices of $K^+(p-p_0)$ as a function of $p_0-\mu$, [laws, components, d, d].
        shift: the values of $K^+(p-p_0)$ at $p_0=\mu$, [laws, components, d].
    """

    beta: NDArray[np.float64]
    log_norm: NDArray[np.float64]
    turn: NDArray[np.float64]
    shift: NDArray[np.float64]

    def moves(
        self, law: NDArray[np.int_], component: NDArray[np.int_], first: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        r"""Return $K^+(p-p_0)$ for draws with $p_0-\mu$ = `first`, [d, draws]."""
        laws, components = self.beta.shape
        group = law * components + component
        order = np.argsort(group, kind="stable")
        ends = np.searchsorted(group[order], np.arange(laws * components + 1))
        sorted_first, moved = first[:, order], np.empty_like(first)
        turn, shift = (
            self.turn.reshape(-1, *self.turn.shape[2:]),
            self.shift.reshape(len(ends) - 1, -1),
        )
        for number in range(laws * components):
            own = slice(ends[number], ends[number + 1])
            moved[:, order[own]] = turn[number] @ sorted_first[:, own] + shift[number][:, None]
        return moved

    def masses(self, law: NDArray[np.int_], square: NDArray[np.float64]) -> NDArray[np.float64]:
        r"""Return the ratio of the density of $N(\mu,K)$ to that of the mixture, at $|p|^2$."""
        exponents = 0.5 * self.beta[law] * square[:, None] - self.log_norm[law]
        with np.errstate(over="ignore"):
            return 1.0 / (np.exp(exponents) @ np.array(_SHARES))


def _tilts(covariance: NDArray[np.float64], mean: NDArray[np.float64], length: float) -> _Tilts:
    """Return the tilted laws of these means and covariances; the first component has beta = 0."""
    k, axes = np.linalg.eigh(covariance)
    k = np.maximum(k, 0.0)
    longest = np.maximum(k[:, -1], _SMALLEST)
    least = np.clip(longest / (2.0 * math.log(length) + _BEYOND), 1.0 - _LARGEST_TILT, 1.0)
    powers = np.arange(len(_SHARES)) / (len(_SHARES) - 1)
    beta = (1.0 - least[:, None] ** powers) / longest[:, None]
    kept = 1.0 - beta[:, :, None] * k[:, None]
    inside = np.einsum("lij,li->lj", axes, mean)[:, None]
    log_norm = 0.5 * (-np.log(kept) + beta[:, :, None] * inside**2 / kept).sum(axis=-1)
    # This is (kept^(-1/2) - 1) / k in a form that is also valid for k = 0.
    turn = beta[:, :, None] / (kept + np.sqrt(kept))
    turned = np.einsum("lai,lci,lbi->lcab", axes, turn, axes)
    shift = np.einsum("lai,lci->lca", axes, beta[:, :, None] * inside / kept)
    return _Tilts(beta, log_norm, turned, shift)
