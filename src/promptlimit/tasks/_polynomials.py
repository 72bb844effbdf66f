r"""Averages over $(w, x_q)$ that are polynomials in the parameters of a head, in closed form.

Given $w$, tokens are $N(0,\Gamma_w)$. With $t=U(x_q,0)$, v the last row of V and $y=\langle w,x_q
\rangle$, every risk here is made of $c=v^\top\Gamma_wt$, the prediction over an infinite prompt,
$\sigma^2=t^\top\Gamma_wt$ and $v^\top\Gamma_wv$. Derived in docs/tasks.md.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from promptlimit.tasks._regression import LinearRegression


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
    S, H = jnp.asarray(task.covariance), jnp.asarray(task.query_covariance)
    prior, dim = task.prior_variance, S.shape[0]
    A, u = key_query[:dim, :dim], key_query[dim, :dim]
    v1, b = value_row[:dim], value_row[dim]
    n1 = prior * jnp.trace(S) + task.noise_variance
    n2 = n1**2 + 2 * prior**2 * jnp.sum(S * S)
    Sv = S @ v1
    a, B = A.T @ Sv, b * (A.T @ S) + u[:, None] * Sv[None]
    Hu = H @ u
    AH, gamma = A @ H, u @ Hu
    even = a @ (H @ a) + 2 * b * n1 * (a @ Hu) + b**2 * n2 * gamma
    M = B - jnp.eye(dim, dtype=B.dtype)
    alpha, beta = v1 @ Sv, jnp.sum(S * (AH @ A.T))
    return Averages(
        square=even + prior * jnp.sum(B * (H @ B)),
        cross=prior * jnp.sum(H * B.T),
        label=prior * jnp.trace(H),
        value=alpha + b**2 * n1,
        product=alpha * beta
        + (alpha * gamma + b**2 * beta) * n1
        + b**2 * gamma * n2
        + 4 * b * prior * ((A @ Hu) @ (S @ Sv)),
        misfit=even + prior * jnp.sum(M * (H @ M)),
    )


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
    S, H = jnp.asarray(task.covariance), jnp.asarray(task.query_covariance)
    prior, noise, dim = task.prior_variance, task.noise_variance, S.shape[0]
    A, u = key_query[:dim, :dim], key_query[dim, :dim]
    v1, b = value_row[:dim], value_row[dim]
    n1 = prior * jnp.trace(S) + noise
    n2 = n1**2 + 2 * prior**2 * jnp.sum(S * S)
    W = prior * (n1 * jnp.eye(dim, dtype=S.dtype) + 2 * prior * S)
    n3 = noise * n2 + prior * (n2 * jnp.trace(S) + 4 * jnp.sum(S * (S @ W)))
    Sv = S @ v1
    a, B = A.T @ Sv, b * (A.T @ S) + u[:, None] * Sv[None]
    Ha, Hu, HB, SAH = H @ a, H @ u, H @ B, S @ A @ H
    G, Sg = A.T @ SAH, SAH @ u
    beta, gamma, au = jnp.sum(A * SAH), u @ Hu, a @ Hu
    BB, uB = B.T @ HB, HB.T @ u
    mixed = SAH @ B
    size = (a @ Ha) * (beta + gamma * n1) + beta * prior * jnp.trace(BB) + gamma * jnp.sum(BB * W)
    size += b**2 * gamma * (beta * n2 + gamma * n3) + 2 * b * au * (beta * n1 + gamma * n2)
    size += 4 * prior * (Ha @ (B @ Sg)) + 4 * b * (uB @ (W @ Sg))
    along = Ha @ (G @ a) + 2 * b * n1 * (Hu @ (G @ a)) + b**2 * n2 * (Hu @ (G @ u))
    along += prior * jnp.sum(HB * (G @ B))
    along += 2 * prior * ((SAH @ a) @ uB + au * jnp.trace(mixed))
    along += 2 * b * (gamma * jnp.sum(mixed * W) + Sg @ (W @ uB))
    along += n1 * au**2 + uB @ (W @ uB) + b**2 * gamma**2 * n3 + 2 * b * gamma * au * n2
    label = beta * prior * jnp.trace(HB) + gamma * jnp.sum(HB * W)
    label += 2 * prior * (Ha @ Sg) + 2 * b * (Hu @ (W @ Sg))
    across = prior * jnp.sum(HB * G) + prior * ((SAH @ a) @ Hu)
    across += b * (Sg @ (W @ Hu)) + au * prior * jnp.trace(SAH) + b * gamma * jnp.sum(SAH * W)
    across += uB @ (W @ Hu)
    return ScoreAverages(beta + gamma * n1, size + 2 * along, label + 2 * across)


def linear_risk(
    task: LinearRegression,
    length: float,
    key_query: Float[Array, "tokens tokens"],
    value_row: Float[Array, " tokens"],
) -> Float[Array, ""]:
    r"""Return the risk of linear attention over L tokens; at infinity, of softmax attention too.

    $2R_L=s^2+E(c-y)^2+\frac1L\big(E\,c^2+E\,v^\top\Gamma_wv\,\sigma^2\big)$, a polynomial in
    (U, v); at $L=\infty$ it is the $R_\infty$ of section 5.
    """
    found = averages(task, key_query, value_row)
    finite = (found.square + found.product) / length
    return 0.5 * (task.noise_variance + found.misfit + finite)
