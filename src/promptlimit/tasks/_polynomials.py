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
