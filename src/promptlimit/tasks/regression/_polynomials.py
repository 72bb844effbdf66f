r"""Averages over $(w, x_q)$ that are polynomials in the parameters of a head, in closed form.

Given $w$, tokens are $N(0,\Gamma_w)$. With $t=U(x_q,0)$, v the last row of V and $y=\langle w,x_q
\rangle$, the risks are functions of $c=v^\top\Gamma_wt$, the prediction over an infinite prompt,
$\sigma^2=t^\top\Gamma_wt$ and $v^\top\Gamma_wv$. Derived in docs/tasks.md.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from promptlimit._inputs import to_device
from promptlimit.tasks.regression._task import LinearRegression


class _Law(NamedTuple):
    """A regression as an argument of compiled programs."""

    S: Array
    H: Array
    prior: float | Array
    noise: float | Array

    @classmethod
    def of(cls, task: LinearRegression) -> "_Law":
        S, H = to_device(task.covariance), to_device(task.query_covariance)
        return cls(S, H, task.prior_variance, task.noise_variance)

    @property
    def n1(self) -> Array:
        r"""$E\,n$."""
        return self.prior * jnp.trace(self.S) + self.noise

    @property
    def n2(self) -> Array:
        r"""$E\,n^2$."""
        return self.n1**2 + 2 * self.prior**2 * jnp.sum(self.S * self.S)


class _QueryForm(NamedTuple):
    r"""One form $\langle a+Bw+n\,m,\ x_q\rangle$ or many, n as in `averages`."""

    a: Float[Array, "*many d"]
    B: Float[Array, "*many d d"]
    m: Float[Array, "*many d"]

    def less_label(self) -> "_QueryForm":
        r"""Return the form minus $y=\langle w,x_q\rangle$."""
        return self._replace(B=self.B - jnp.eye(self.B.shape[-1], dtype=self.B.dtype))


class _Blocks(NamedTuple):
    r"""The blocks of $U=\begin{pmatrix}A&*\\u^\top&*\end{pmatrix}$ and $v=(v_1,b)$ of each head."""

    A: Float[Array, "heads d d"]
    u: Float[Array, "heads d"]
    v1: Float[Array, "heads d"]
    b: Float[Array, " heads"]

    @classmethod
    def of(cls, key_query: Array, value_row: Array) -> "_Blocks":
        A, u = key_query[:, :-1, :-1], key_query[:, -1, :-1]
        return cls(A, u, value_row[:, :-1], value_row[:, -1])

    def reads(self, law: _Law) -> _QueryForm:
        r"""Return $c_{hg}$: $a=A_g^\top Sv_h$, $B=b_hA_g^\top S+u_gv_h^\top S$ and $m=b_hu_g$."""
        (A, u, v1, b), S = self, law.S
        Sv = v1 @ S
        return _QueryForm(
            a=jnp.einsum("gij,hi->hgj", A, Sv),
            B=jnp.einsum("h,gij,ik->hgjk", b, A, S) + jnp.einsum("gj,hk->hgjk", u, Sv),
            m=jnp.einsum("h,gj->hgj", b, u),
        )


class Averages(NamedTuple):
    r"""Means over $w\sim N(0,\tau^2I)$ and $x_q\sim N(0,\Sigma_q)$.

    Attributes:
        square: $E\,c^2$.
        cross: $E\,cy$.
        value: $E\,v^\top\Gamma_wv$.
        product: $E\,v^\top\Gamma_wv\;\sigma^2$.
        misfit: $E(c-y)^2=E\,c^2-2E\,cy+E\,y^2$, as a sum of squares.
        sharpness: $E\,\sigma^2$.
        square_sharpness: $E\,c^2\sigma^2$.
        cross_sharpness: $E\,cy\,\sigma^2$.
    """

    square: Float[Array, ""]
    cross: Float[Array, ""]
    value: Float[Array, ""]
    product: Float[Array, ""]
    misfit: Float[Array, ""]
    sharpness: Float[Array, ""]
    square_sharpness: Float[Array, ""]
    cross_sharpness: Float[Array, ""]


def averages(
    task: LinearRegression,
    key_query: Float[Array, "tokens tokens"],
    value_row: Float[Array, " tokens"],
) -> Averages:
    r"""Return the averages for $U=\begin{pmatrix}A&*\\u^\top&*\end{pmatrix}$ and $v=(v_1,b)$.

    $c=\langle k,x_q\rangle$ with $k=a+Bw+bn\,u$, where $a=A^\top Sv_1$, $B=bA^\top S+uv_1^\top S$
    and $n=w^\top Sw+s^2$, $E\,n=\tau^2\mathrm{tr}S+s^2$, $E\,n^2=(E\,n)^2+2\tau^4\mathrm{tr}S^2$.
    Odd moments of w vanish, so with $H=\Sigma_q$

    $$E\,c^2=a^\top Ha+2b\,E n\,a^\top Hu+b^2E n^2\,u^\top Hu+\tau^2\mathrm{tr}B^\top HB,\qquad
    E\,cy=\tau^2\mathrm{tr}HB,$$

    and $E(c-y)^2$ has $B-I$ in place of B. With $\sigma^2$ averaged over $x_q$,
    $\beta+2g^\top Sw+\gamma n$, $\beta=\mathrm{tr}SAHA^\top$, $g=AHu$, $\gamma=u^\top Hu$, and
    $v^\top\Gamma_wv=\alpha+2bv_1^\top Sw+b^2n$, $\alpha=v_1^\top Sv_1$:

    $$E\,v^\top\Gamma_wv\,\sigma^2=\alpha\beta+(\alpha\gamma+b^2\beta)E n+b^2\gamma E n^2
    +4b\tau^2g^\top S^2v_1 .$$
    """
    return _averages(_Law.of(task), key_query, value_row)


@jax.jit
def _averages(law: _Law, key_query: Array, value_row: Array) -> Averages:
    blocks = _Blocks.of(key_query[None], value_row[None])
    c = _QueryForm(*(part[0, 0] for part in blocks.reads(law)))
    misfit = c.less_label()
    return Averages(
        square=_mean_product(law, c, c),
        cross=law.prior * jnp.sum(law.H * c.B.T),
        value=jnp.sum(blocks.v1 @ law.S * blocks.v1) + blocks.b[0] ** 2 * law.n1,
        product=_mean_of_norms(law, blocks),
        misfit=_mean_product(law, misfit, misfit),
        **_sharpness_averages(law, key_query, value_row),
    )


def linear_risk(
    task: LinearRegression,
    length: float | Float[Array, ""],
    key_query: Float[Array, "heads tokens tokens"],
    value_row: Float[Array, "heads tokens"],
    residual_row: Float[Array, " tokens"] | None = None,
) -> Float[Array, ""]:
    r"""Return the risk of $\langle r,q\rangle+\sum_hv_h^\top\hat\Gamma U_hq$ at $q=(x_q,0)$.

    For linear heads and a residual with last row r; at infinite length for softmax heads too. With
    $t_h=U_hq$ and $c_{hg}=v_h^\top\Gamma_wt_g$ the mean prediction over prompts is
    $c=\langle r,q\rangle+\sum_hc_{hh}$, and by Isserlis' theorem (derived here)

    $$2R_L=s^2+E(c-y)^2+\frac1L\sum_{h,g}E\big[c_{hg}c_{gh}
    +v_h^\top\Gamma_wv_g\;t_h^\top\Gamma_wt_g\big],$$

    a polynomial in (U, v); at $L=\infty$ it is the $R_\infty$ of section 5.
    """
    return _linear_risk(_Law.of(task), length, key_query, value_row, residual_row)


@jax.jit
def _linear_risk(
    law: _Law,
    length: float | Array,
    key_query: Array,
    value_row: Array,
    residual_row: Array | None,
) -> Array:
    blocks = _Blocks.of(key_query, value_row)
    reads = blocks.reads(law)
    crossed = _QueryForm(*(jnp.swapaxes(part, 0, 1) for part in reads))
    misfit = _QueryForm(*(jnp.einsum("hh...->...", part) for part in reads)).less_label()
    if residual_row is not None:
        misfit = misfit._replace(a=misfit.a + residual_row[:-1])
    finite = _mean_product(law, reads, crossed) + _mean_of_norms(law, blocks)
    return 0.5 * (law.noise + _mean_product(law, misfit, misfit) + finite / length)


def _mean_product(law: _Law, f: _QueryForm, g: _QueryForm) -> Array:
    """Return the mean of the product of two forms, summed over all axes before the last."""

    def weighed(one: Array, other: Array) -> Array:
        return jnp.einsum("...i,ij,...j->", one, law.H, other)

    total = weighed(f.a, g.a) + law.n1 * (weighed(f.a, g.m) + weighed(f.m, g.a))
    total += law.n2 * weighed(f.m, g.m)
    return total + law.prior * weighed(jnp.swapaxes(f.B, -1, -2), jnp.swapaxes(g.B, -1, -2))


def _mean_of_norms(law: _Law, blocks: _Blocks) -> Array:
    r"""Return $\sum_{hg}E\,v_h^\top\Gamma_wv_g\;t_h^\top\Gamma_wt_g$.

    As `Averages.product`, with $\alpha_{hg}=v_h^\top Sv_g$, $\beta_{hg}=\mathrm{tr}SA_gHA_h^\top$,
    $\gamma_{hg}=u_h^\top Hu_g$; the terms odd in w are $(b_gv_h+b_hv_g)^\top Sw$ and
    $(A_hHu_g+A_gHu_h)^\top Sw$.
    """
    (S, H, prior, _), (A, u, v1, b) = law, blocks
    alpha, gamma, bb = v1 @ S @ v1.T, u @ H @ u.T, b[:, None] * b[None, :]
    beta = jnp.einsum("hij,ik,gkl,jl->hg", A, S, A, H)
    value, tilt = jnp.einsum("g,hi->hgi", b, v1), jnp.einsum("hij,jk,gk->hgi", A, H, u)
    value, tilt = (odd + jnp.swapaxes(odd, 0, 1) for odd in (value, tilt))
    even = alpha * beta + (alpha * gamma + bb * beta) * law.n1 + bb * gamma * law.n2
    return jnp.sum(even) + prior * jnp.sum((value @ S) * (tilt @ S))


class QueryAverages(NamedTuple):
    r"""Means over w alone, given each query: of $c^2$, $cy$, $\sigma^2$ and $v^\top\Gamma_wv$."""

    square: Float[Array, " points"]
    cross: Float[Array, " points"]
    sharpness: Float[Array, " points"]
    value: Float[Array, ""]


def query_averages(  # noqa: PLR0917 - a head at its queries
    task: LinearRegression,
    root: Float[Array, "d d"],
    value_row: Float[Array, " tokens"],
    seen: Float[Array, "d points"],
    scored: Float[Array, "d points"],
    label: Float[Array, " points"],
) -> QueryAverages:
    r"""Return the means over w, symbols as in `averages`.

    $E_wc^2=\langle a,x\rangle^2+2b\,E n\langle a,x\rangle\langle u,x\rangle
    +b^2E n^2\langle u,x\rangle^2+\tau^2|B^\top x|^2$, $E_wcy=\tau^2x^\top Bx$ and
    $E_w\sigma^2=|CAx|^2+E n\,\langle u,x\rangle^2$.

    Args:
        task: the regression.
        root: C with $C^\top C=S$ and $CC^\top$ diagonal.
        value_row: v.
        seen: $Cx$.
        scored: $CAx$.
        label: $\langle u,x\rangle$.
    """
    law = _Law.of(task)
    prior, n1, n2 = law.prior, law.n1, law.n2
    v1, b = root @ value_row[:-1], value_row[-1]
    variances = jnp.sum(root * root, axis=1)
    ax, Bx = jnp.sum(v1[:, None] * scored, axis=0), b * scored + v1[:, None] * label[None]
    square = ax * ax + (2 * b * n1 * ax + b**2 * n2 * label) * label
    square = square + prior * jnp.sum(variances[:, None] * Bx * Bx, axis=0)
    sharpness = jnp.sum(scored * scored, axis=0) + n1 * label * label
    cross = prior * jnp.sum(Bx * seen, axis=0)
    return QueryAverages(square, cross, sharpness, v1 @ v1 + b**2 * n1)


def _sharpness_averages(law: _Law, key_query: Array, value_row: Array) -> dict[str, Array]:
    r"""Return $E\,\sigma^2$, $E\,c^2\sigma^2$ and $E\,cy\,\sigma^2$, symbols as in `averages`.

    Given w, $\sigma^2=x_q^\top Gx_q$ with $G=A^\top SA+A^\top Swu^\top+uw^\top SA+n\,uu^\top$, and
    $E\,c^2\sigma^2=k^\top Hk\,\mathrm{tr}GH+2\,k^\top HGHk$, $E\,cy\,\sigma^2=k^\top Hw\,
    \mathrm{tr}GH+2\,k^\top HGHw$. Over w, Stein's identity gives $W=E\,n\,ww^\top=\tau^2(n_1I+
    2\tau^2S)$ and $n_3=E\,n^3=s^2n_2+\tau^2\mathrm{tr}S(n_2I+4SW)$.
    """
    (S, H, prior, noise), n1, n2 = law, law.n1, law.n2
    A, u, v1, b = key_query[:-1, :-1], key_query[-1, :-1], value_row[:-1], value_row[-1]
    W = prior * (n1 * jnp.eye(u.size, dtype=S.dtype) + 2 * prior * S)
    n3 = noise * n2 + prior * (n2 * jnp.trace(S) + 4 * jnp.sum(S * (S @ W)))
    Sv = S @ v1
    a, B = A.T @ Sv, b * (A.T @ S) + u[:, None] * Sv[None]
    Ha, Hu, HB, SAH = H @ a, H @ u, H @ B, S @ A @ H
    SAHB, ASAH, BHB, Sg, Bu = SAH @ B, A.T @ SAH, B.T @ HB, SAH @ u, HB.T @ u
    au, beta, gamma = a @ Hu, jnp.sum(A * SAH), u @ Hu

    # k'Hk tr(GH): products of even parts, then of odd parts.
    square = (a @ Ha) * (beta + gamma * n1)
    square += beta * prior * jnp.trace(BHB) + gamma * jnp.sum(BHB * W)
    square += b**2 * gamma * (beta * n2 + gamma * n3) + 2 * b * au * (beta * n1 + gamma * n2)
    square += 4 * prior * (Ha @ (B @ Sg)) + 4 * b * (Bu @ (W @ Sg))
    # k'HGHk: the terms of G in order.
    along = Ha @ (ASAH @ a) + 2 * b * n1 * (Hu @ (ASAH @ a))
    along += b**2 * n2 * (Hu @ (ASAH @ u)) + prior * jnp.sum(HB * (ASAH @ B))
    along += 2 * prior * ((SAH @ a) @ Bu + au * jnp.trace(SAHB))
    along += 2 * b * (gamma * jnp.sum(SAHB * W) + Sg @ (W @ Bu))
    along += n1 * au**2 + Bu @ (W @ Bu) + b**2 * gamma**2 * n3 + 2 * b * gamma * au * n2
    # k'Hw tr(GH), in the same order, and k'HGHw.
    cross = beta * prior * jnp.trace(HB) + gamma * jnp.sum(HB * W)
    cross += 2 * prior * (Ha @ Sg) + 2 * b * (Hu @ (W @ Sg))
    cross_along = prior * jnp.sum(HB * ASAH) + prior * ((SAH @ a) @ Hu) + b * (Sg @ (W @ Hu))
    cross_along += au * prior * jnp.trace(SAH) + b * gamma * jnp.sum(SAH * W) + Bu @ (W @ Hu)
    return {
        "sharpness": beta + gamma * n1,
        "square_sharpness": square + 2 * along,
        "cross_sharpness": cross + 2 * cross_along,
    }
