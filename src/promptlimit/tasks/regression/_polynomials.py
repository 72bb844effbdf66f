r"""Averages over $(w, x_q)$ that are polynomials in the parameters of a head, in closed form.

Given $w$, tokens are $N(0,\Gamma_w)$. With $t=U(x_q,0)$, v the last row of V and $y=\langle w,x_q
\rangle$, every risk here is made of $c=v^\top\Gamma_wt$, the prediction over an infinite prompt,
$\sigma^2=t^\top\Gamma_wt$ and $v^\top\Gamma_wv$. Derived in docs/tasks.md.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from promptlimit._inputs import to_device
from promptlimit.tasks.regression._task import LinearRegression


class Averages(NamedTuple):
    r"""Means over $w\sim N(0,\tau^2I)$ and $x_q\sim N(0,\Sigma_q)$.

    Attributes:
        square: $E\,c^2$.
        cross: $E\,cy$.
        label: $E\,y^2$.
        value: $E\,v^\top\Gamma_wv$.
        product: $E\,v^\top\Gamma_wv\;\sigma^2$.
        misfit: $E(c-y)^2=E\,c^2-2E\,cy+E\,y^2$, as a sum of squares.
    """

    square: Float[Array, ""]
    cross: Float[Array, ""]
    label: Float[Array, ""]
    value: Float[Array, ""]
    product: Float[Array, ""]
    misfit: Float[Array, ""]


class _Law(NamedTuple):
    """What a regression is, as arguments of compiled programs: they serve every regression."""

    S: Array
    H: Array
    prior: float | Array
    noise: float | Array


def _law(task: LinearRegression) -> _Law:
    S, H = to_device(task.covariance), to_device(task.query_covariance)
    return _Law(S, H, task.prior_variance, task.noise_variance)


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
    return _averages(_law(task), key_query, value_row)


@jax.jit
def _averages(law: _Law, key_query: Array, value_row: Array) -> Averages:
    q = _forms(law, key_query, value_row)
    even = q.a @ q.Ha + 2 * q.b * q.n1 * q.au + q.b**2 * q.n2 * q.gamma
    M = q.B - jnp.eye(q.B.shape[0], dtype=q.B.dtype)
    alpha = q.v1 @ (q.S @ q.v1)
    return Averages(
        square=even + q.prior * jnp.sum(q.B * q.HB),
        cross=q.prior * jnp.trace(q.HB),
        label=q.prior * jnp.trace(q.H),
        value=alpha + q.b**2 * q.n1,
        product=alpha * q.beta
        + (alpha * q.gamma + q.b**2 * q.beta) * q.n1
        + q.b**2 * q.gamma * q.n2
        + 4 * q.b * q.prior * (q.Sg @ (q.S @ q.v1)),
        misfit=even + q.prior * jnp.sum(M * (q.H @ M)),
    )


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
    (S, _, prior, noise), dim = _law(task), root.shape[0]
    v1, b = root @ value_row[:dim], value_row[dim]
    n1 = prior * jnp.trace(S) + noise
    n2 = n1**2 + 2 * prior**2 * jnp.sum(S * S)
    variances = jnp.sum(root * root, axis=1)
    ax, Bx = jnp.sum(v1[:, None] * scored, axis=0), b * scored + v1[:, None] * label[None]
    square = ax * ax + (2 * b * n1 * ax + b**2 * n2 * label) * label
    square = square + prior * jnp.sum(variances[:, None] * Bx * Bx, axis=0)
    sharpness = jnp.sum(scored * scored, axis=0) + n1 * label * label
    cross = prior * jnp.sum(Bx * seen, axis=0)
    return QueryAverages(square, cross, sharpness, v1 @ v1 + b**2 * n1)


class ScoreAverages(NamedTuple):
    r"""Means that carry one more $\sigma^2$: of $\sigma^2$, $c^2\sigma^2$ and $cy\,\sigma^2$."""

    sharpness: Float[Array, ""]
    square: Float[Array, ""]
    cross: Float[Array, ""]


def score_averages(
    task: LinearRegression,
    key_query: Float[Array, "tokens tokens"],
    value_row: Float[Array, " tokens"],
) -> ScoreAverages:
    r"""Return $E\,\sigma^2$, $E\,c^2\sigma^2$ and $E\,cy\,\sigma^2$, symbols as in `averages`.

    Given w, $\sigma^2=x_q^\top Gx_q$ with $G=A^\top SA+A^\top Swu^\top+uw^\top SA+n\,uu^\top$, and
    $E\,c^2\sigma^2=k^\top Hk\,\mathrm{tr}GH+2\,k^\top HGHk$, $E\,cy\,\sigma^2=k^\top Hw\,
    \mathrm{tr}GH+2\,k^\top HGHw$. Over w, Stein's identity gives $W=E\,n\,ww^\top=\tau^2(n_1I+
    2\tau^2S)$ and $n_3=E\,n^3=s^2n_2+\tau^2\mathrm{tr}S(n_2I+4SW)$.
    """
    return _score_averages(_law(task), key_query, value_row)


@jax.jit
def _score_averages(law: _Law, key_query: Array, value_row: Array) -> ScoreAverages:
    q = _forms(law, key_query, value_row)
    square = _size_times_trace(q) + 2 * _size_along(q)
    cross = _label_times_trace(q) + 2 * _label_along(q)
    return ScoreAverages(q.beta + q.gamma * q.n1, square, cross)


class _Forms(NamedTuple):
    """The symbols of `averages` and their products, computed once."""

    S: Array
    H: Array
    u: Array
    v1: Array
    b: Array
    a: Array
    B: Array
    Ha: Array
    Hu: Array
    HB: Array
    SAH: Array
    SAHB: Array
    G: Array  # A'SAH
    Sg: Array
    Bu: Array  # B'Hu
    au: Array
    beta: Array
    gamma: Array
    prior: float | Array
    n1: Array
    n2: Array
    n3: Array
    W: Array


def _forms(law: _Law, key_query: Array, value_row: Array) -> _Forms:
    (S, H, prior, noise), dim = law, law.S.shape[0]
    A, u = key_query[:dim, :dim], key_query[dim, :dim]
    v1, b = value_row[:dim], value_row[dim]
    n1 = prior * jnp.trace(S) + noise
    n2 = n1**2 + 2 * prior**2 * jnp.sum(S * S)
    W = prior * (n1 * jnp.eye(dim, dtype=S.dtype) + 2 * prior * S)
    n3 = noise * n2 + prior * (n2 * jnp.trace(S) + 4 * jnp.sum(S * (S @ W)))
    Sv = S @ v1
    a, B = A.T @ Sv, b * (A.T @ S) + u[:, None] * Sv[None]
    Ha, Hu, HB, SAH = H @ a, H @ u, H @ B, S @ A @ H
    products = {"SAHB": SAH @ B, "G": A.T @ SAH, "Sg": SAH @ u, "Bu": HB.T @ u, "au": a @ Hu}
    traces = {"beta": jnp.sum(A * SAH), "gamma": u @ Hu, "n1": n1, "n2": n2, "n3": n3, "W": W}
    return _Forms(
        S=S,
        H=H,
        u=u,
        v1=v1,
        b=b,
        a=a,
        B=B,
        Ha=Ha,
        Hu=Hu,
        HB=HB,
        SAH=SAH,
        prior=prior,
        **products,
        **traces,
    )


def _size_times_trace(q: _Forms) -> Array:
    r"""Return $E\,k^\top Hk\,\mathrm{tr}GH$: even with even parts, then odd with odd."""
    BB = q.B.T @ q.HB
    even = (q.a @ q.Ha) * (q.beta + q.gamma * q.n1)
    even += q.beta * q.prior * jnp.trace(BB) + q.gamma * jnp.sum(BB * q.W)
    even += q.b**2 * q.gamma * (q.beta * q.n2 + q.gamma * q.n3)
    even += 2 * q.b * q.au * (q.beta * q.n1 + q.gamma * q.n2)
    return even + 4 * q.prior * (q.Ha @ (q.B @ q.Sg)) + 4 * q.b * (q.Bu @ (q.W @ q.Sg))


def _size_along(q: _Forms) -> Array:
    r"""Return $E\,k^\top HGHk$: one line for each of the terms of G, two for the middle ones."""
    total = q.Ha @ (q.G @ q.a) + 2 * q.b * q.n1 * (q.Hu @ (q.G @ q.a))
    total += q.b**2 * q.n2 * (q.Hu @ (q.G @ q.u)) + q.prior * jnp.sum(q.HB * (q.G @ q.B))
    total += 2 * q.prior * ((q.SAH @ q.a) @ q.Bu + q.au * jnp.trace(q.SAHB))
    total += 2 * q.b * (q.gamma * jnp.sum(q.SAHB * q.W) + q.Sg @ (q.W @ q.Bu))
    total += q.n1 * q.au**2 + q.Bu @ (q.W @ q.Bu)
    return total + q.b**2 * q.gamma**2 * q.n3 + 2 * q.b * q.gamma * q.au * q.n2


def _label_times_trace(q: _Forms) -> Array:
    r"""Return $E\,k^\top Hw\,\mathrm{tr}GH$: even with even parts, then odd with odd."""
    even = q.beta * q.prior * jnp.trace(q.HB) + q.gamma * jnp.sum(q.HB * q.W)
    return even + 2 * q.prior * (q.Ha @ q.Sg) + 2 * q.b * (q.Hu @ (q.W @ q.Sg))


def _label_along(q: _Forms) -> Array:
    r"""Return $E\,k^\top HGHw$: one line for each of the terms of G."""
    total = q.prior * jnp.sum(q.HB * q.G)
    total += q.prior * ((q.SAH @ q.a) @ q.Hu) + q.b * (q.Sg @ (q.W @ q.Hu))
    total += q.au * q.prior * jnp.trace(q.SAH) + q.b * q.gamma * jnp.sum(q.SAH * q.W)
    return total + q.Bu @ (q.W @ q.Hu)


def linear_risk(
    task: LinearRegression,
    length: float | Float[Array, ""],
    key_query: Float[Array, "tokens tokens"],
    value_row: Float[Array, " tokens"],
) -> Float[Array, ""]:
    r"""Return the risk of linear attention over L tokens; at infinity, of softmax attention too.

    $2R_L=s^2+E(c-y)^2+\frac1L\big(E\,c^2+E\,v^\top\Gamma_wv\,\sigma^2\big)$, a polynomial in
    (U, v); at $L=\infty$ it is the $R_\infty$ of section 5.
    """
    means = averages(task, key_query, value_row)
    finite = (means.square + means.product) / length
    return 0.5 * (task.noise_variance + means.misfit + finite)


@eqx.filter_jit
def linear_heads_risk(
    task: LinearRegression,
    length: float | Float[Array, ""],
    key_query: Float[Array, "heads tokens tokens"],
    value_row: Float[Array, "heads tokens"],
    residual_row: Float[Array, " tokens"],
) -> Float[Array, ""]:
    r"""Return the risk of $\langle r,q\rangle+\sum_hv_h^\top\hat\Gamma U_hq$ at $q=(x_q,0)$.

    Linear heads that read the same tokens beside a residual, r its last row; at infinity softmax
    heads too. With $t_h=U_hq$ and $c_{hg}=v_h^\top\Gamma_wt_g$ the prediction has the mean
    $c=\langle r,q\rangle+\sum_hc_{hh}$ over prompts, and by Isserlis' theorem (derived here)

    $$2R_L=s^2+E(c-y)^2+\frac1L\sum_{h,g}E\big[c_{hg}c_{gh}
    +v_h^\top\Gamma_wv_g\;t_h^\top\Gamma_wt_g\big].$$
    """
    q = _joint_forms(task, key_query, value_row)
    dim = q.A.shape[-1]
    own = _QueryForm(*(jnp.einsum("hh...->...", part) for part in q.reads))
    eye = jnp.eye(dim, dtype=own.B.dtype)
    misfit = _QueryForm(own.a + residual_row[:dim], own.B - eye, own.m)
    crossed = _QueryForm(*(jnp.swapaxes(part, 0, 1) for part in q.reads))
    finite = _mean_product(q, q.reads, crossed) + _mean_of_norms(q)
    return 0.5 * (task.noise_variance + _mean_product(q, misfit, misfit) + finite / length)


class _QueryForm(NamedTuple):
    r"""The form $\langle a+Bw+n\,m,\ x_q\rangle$, or many; n as in `averages`."""

    a: Float[Array, "*many d"]
    B: Float[Array, "*many d d"]
    m: Float[Array, "*many d"]


class _JointForms(NamedTuple):
    r"""Several heads at once, symbols as in `averages`; `reads` are the $c_{hg}$, h before g."""

    S: Array
    H: Array
    A: Array
    u: Array
    v1: Array
    b: Array
    reads: _QueryForm
    prior: float
    n1: Array
    n2: Array


def _joint_forms(task: LinearRegression, key_query: Array, value_row: Array) -> _JointForms:
    r"""Return the symbols: $a=A_g^\top Sv_h$, $B=b_hA_g^\top S+u_gv_h^\top S$ and $m=b_hu_g$."""
    S, H = to_device(task.covariance), to_device(task.query_covariance)
    prior, dim = task.prior_variance, S.shape[0]
    A, u = key_query[:, :dim, :dim], key_query[:, dim, :dim]
    v1, b = value_row[:, :dim], value_row[:, dim]
    n1 = prior * jnp.trace(S) + task.noise_variance
    n2 = n1**2 + 2 * prior**2 * jnp.sum(S * S)
    Sv = v1 @ S
    reads = _QueryForm(
        a=jnp.einsum("gij,hi->hgj", A, Sv),
        B=jnp.einsum("h,gij,ik->hgjk", b, A, S) + jnp.einsum("gj,hk->hgjk", u, Sv),
        m=jnp.einsum("h,gj->hgj", b, u),
    )
    return _JointForms(S, H, A, u, v1, b, reads, prior, n1, n2)


def _mean_product(q: _JointForms, f: _QueryForm, g: _QueryForm) -> Array:
    """Return the mean of the product of two forms, added up over the axes before the last."""

    def weighed(one: Array, other: Array) -> Array:
        return jnp.einsum("...i,ij,...j->", one, q.H, other)

    total = weighed(f.a, g.a) + q.n1 * (weighed(f.a, g.m) + weighed(f.m, g.a))
    total += q.n2 * weighed(f.m, g.m)
    return total + q.prior * weighed(jnp.swapaxes(f.B, -1, -2), jnp.swapaxes(g.B, -1, -2))


def _mean_of_norms(q: _JointForms) -> Array:
    r"""Return $\sum_{hg}E\,v_h^\top\Gamma_wv_g\;t_h^\top\Gamma_wt_g$.

    As `Averages.product`, with $\alpha_{hg}=v_h^\top Sv_g$, $\beta_{hg}=\mathrm{tr}SA_gHA_h^\top$,
    $\gamma_{hg}=u_h^\top Hu_g$; what is odd in w is $(b_gv_h+b_hv_g)^\top Sw$ and
    $(A_hHu_g+A_gHu_h)^\top Sw$.
    """
    alpha, gamma = q.v1 @ q.S @ q.v1.T, q.u @ q.H @ q.u.T
    beta = jnp.einsum("hij,ik,gkl,jl->hg", q.A, q.S, q.A, q.H)
    bb = q.b[:, None] * q.b[None, :]
    value = jnp.einsum("g,hi->hgi", q.b, q.v1)
    tilt = jnp.einsum("hij,jk,gk->hgi", q.A, q.H, q.u)
    value, tilt = (odd + jnp.swapaxes(odd, 0, 1) for odd in (value, tilt))
    even = alpha * beta + (alpha * gamma + bb * beta) * q.n1 + bb * gamma * q.n2
    return jnp.sum(even) + q.prior * jnp.sum((value @ q.S) * (tilt @ q.S))
