r"""Averages over $(W, x_q)$ that are polynomials in the parameters of a head, in closed form.

The symbols W, $x_q$, $y=Wx_q$, $s^2$, $\Gamma_W$, $t$, V, $c=V\Gamma_Wt$ and
$\sigma^2=t^\top\Gamma_Wt$ are those of `_softmax_risk`. The entries of W are $N(0,\tau^2)$. The
covariances of the covariates are $S=\Sigma$ in the prompt and $H=\Sigma_q$ in the query.
docs/tasks.md derives the formulas.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from promptlimit._inputs import to_device
from promptlimit.tasks.regression._task import LinearRegression


class _Law(NamedTuple):
    r"""S, H, $\tau^2$ and $s^2$, as one argument of compiled programs."""

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
        r"""The mean $n_1=E\,n$ of $n=w^\top Sw+s^2$ for one row w of W."""
        return self.prior * jnp.trace(self.S) + self.noise

    @property
    def crossed(self) -> Array:
        r"""$E\,(w^\top Sw')^2=\tau^4\mathrm{tr}S^2$ for two rows of W."""
        return self.prior**2 * jnp.sum(self.S * self.S)

    @property
    def n2(self) -> Array:
        r"""The mean $n_2=E\,n^2$."""
        return self.n1**2 + 2 * self.crossed


class _QueryForm(NamedTuple):
    r"""Maps $x_q\mapsto Mx_q\in\mathbb R^m$ with $M=a+B[W]+G[N]$ and $N=WSW^\top+s^2I$.

    Attributes:
        a: the constant term.
        B: the tensor of the term $B[W]_{ij}=\sum_{kl}B_{ijkl}W_{kl}$.
        G: the tensor of the term $G[N]_{ij}=\sum_{kl}G_{ijkl}N_{kl}$.
    """

    a: Float[Array, "*many m d"]
    B: Float[Array, "*many m d m d"]
    G: Float[Array, "*many m d m m"]

    def less_label(self) -> "_QueryForm":
        r"""Return the form minus $y=Wx_q$."""
        m, d = self.a.shape[-2:]
        identity = jnp.eye(m * d, dtype=self.B.dtype).reshape(m, d, m, d)
        return self._replace(B=self.B - identity)


class _Blocks(NamedTuple):
    r"""The blocks of $U=\begin{pmatrix}A&*\\u&*\end{pmatrix}$ and $V=(V_1,B)$ of each head."""

    A: Float[Array, "heads d d"]
    u: Float[Array, "heads m d"]
    V1: Float[Array, "heads m d"]
    B: Float[Array, "heads m m"]

    @classmethod
    def of(cls, key_query: Array, value: Array) -> "_Blocks":
        d = key_query.shape[-1] - value.shape[-2]
        return cls(key_query[:, :d, :d], key_query[:, d:, :d], value[..., :d], value[..., d:])

    def predictions(self, law: _Law) -> _QueryForm:
        r"""Return $c_{hg}=V_h\Gamma_Wt_g$ for all pairs of heads, as a form in $x_q$.

        Its terms are $a=V_1SA$, $B[W]=BWSA+V_1SW^\top u$ and $G[N]=BNu$, with $V_1$ and B of head h
        and A and u of head g.
        """
        (A, u, V1, B), S = self, law.S
        VS, SA = V1 @ S, S @ A
        return _QueryForm(
            a=jnp.einsum("hik,gkj->hgij", VS, A),
            B=jnp.einsum("hik,glj->hgijkl", B, SA) + jnp.einsum("hil,gkj->hgijkl", VS, u),
            G=jnp.einsum("hik,glj->hgijkl", B, u),
        )


class Averages(NamedTuple):
    r"""Means over W and over $x_q\sim N(0,H)$.

    Attributes:
        square: $E|c|^2$.
        cross: $E\,c\cdot y$.
        value: $E\,\mathrm{tr}\,V\Gamma_WV^\top$.
        product: $E\,\mathrm{tr}\,V\Gamma_WV^\top\;\sigma^2$.
        misfit: $E|c-y|^2=E|c|^2-2E\,c\cdot y+E|y|^2$, as a sum of squares.
        sharpness: $E\,\sigma^2$.
        square_sharpness: $E|c|^2\sigma^2$; None for labels in $\mathbb R^m$, $m>1$.
        cross_sharpness: $E\,c\cdot y\,\sigma^2$; None for $m>1$.
    """

    square: Float[Array, ""]
    cross: Float[Array, ""]
    value: Float[Array, ""]
    product: Float[Array, ""]
    misfit: Float[Array, ""]
    sharpness: Float[Array, ""]
    square_sharpness: Float[Array, ""] | None
    cross_sharpness: Float[Array, ""] | None


def averages(
    task: LinearRegression,
    key_query: Float[Array, "tokens tokens"],
    value: Float[Array, "m tokens"],
) -> Averages:
    r"""Return the averages for $U=\begin{pmatrix}A&*\\u&*\end{pmatrix}$ and $V=(V_1,B)$.

    With $N=WSW^\top+s^2I$, $c=Mx_q$ for $M=V_1SA+BWSA+V_1SW^\top u+BNu$.
    """
    return _averages(_Law.of(task), key_query, value)


@jax.jit
def _averages(law: _Law, key_query: Array, value: Array) -> Averages:
    blocks = _Blocks.of(key_query[None], value[None])
    c = _QueryForm(*(part[0, 0] for part in blocks.predictions(law)))
    misfit = c.less_label()
    scored = _label_averages(law, c, key_query, value) if value.shape[0] == 1 else (None, None)
    (A,), (u,), (V1,), (B,) = blocks
    return Averages(
        square=_mean_product(law, c, c),
        cross=law.prior * jnp.einsum("ijil,jl->", c.B, law.H),
        value=jnp.sum(V1 @ law.S * V1) + jnp.sum(B * B) * law.n1,
        product=_mean_of_norms(law, blocks),
        misfit=_mean_product(law, misfit, misfit),
        sharpness=jnp.sum(A * (law.S @ A @ law.H)) + law.n1 * jnp.sum(u @ law.H * u),
        square_sharpness=scored[0],
        cross_sharpness=scored[1],
    )


def linear_risk(
    task: LinearRegression,
    length: float | Float[Array, ""],
    key_query: Float[Array, "heads tokens tokens"],
    value: Float[Array, "heads m tokens"],
    residual: Float[Array, "m tokens"] | None = None,
) -> Float[Array, ""]:
    r"""Return the risk of linear heads and a residual, a polynomial in their matrices.

    At infinite length it is also the risk of softmax heads. For $q=(x_q,0)$ the prediction is
    $Rq+\sum_hV_h\hat\Gamma U_hq$, with the second moment $\hat\Gamma$ of the tokens of a prompt and
    the last m rows R of the residual. Let $t_h=U_hq$ and $c_{hg}=V_h\Gamma_Wt_g$. The mean of the
    prediction over prompts is $c=Rq+\sum_hc_{hh}$, and by Isserlis' theorem (derived here)

    $$2R_L=m\,s^2+E|c-y|^2+\frac1L\sum_{h,g}E\big[c_{hg}\cdot c_{gh}
    +\mathrm{tr}V_h\Gamma_WV_g^\top\;t_h^\top\Gamma_Wt_g\big].$$
    """
    return _linear_risk(_Law.of(task), length, key_query, value, residual)


@jax.jit
def _linear_risk(
    law: _Law,
    length: float | Array,
    key_query: Array,
    value: Array,
    residual: Array | None,
) -> Array:
    blocks = _Blocks.of(key_query, value)
    pairs = blocks.predictions(law)
    crossed = _QueryForm(*(jnp.swapaxes(part, 0, 1) for part in pairs))
    misfit = _QueryForm(*(jnp.einsum("hh...->...", part) for part in pairs)).less_label()
    if residual is not None:
        misfit = misfit._replace(a=misfit.a + residual[:, : law.S.shape[0]])
    finite = _mean_product(law, pairs, crossed) + _mean_of_norms(law, blocks)
    noise = value.shape[-2] * law.noise
    return 0.5 * (noise + _mean_product(law, misfit, misfit) + finite / length)


def _mean_product(law: _Law, f: _QueryForm, g: _QueryForm) -> Array:
    r"""Return the mean of the inner product of two forms, summed over all leading axes.

    Odd moments of W vanish, $E\,N=n_1I$ and
    $E\,NXN=n_1^2X+\tau^4\mathrm{tr}S^2(X^\top+\mathrm{tr}X\,I)$.
    """
    mean_f, mean_g = (form.a + law.n1 * jnp.trace(form.G, axis1=-2, axis2=-1) for form in (f, g))
    total = jnp.einsum("...ij,jk,...ik->", mean_f, law.H, mean_g)
    swapped = g.G + jnp.swapaxes(g.G, -1, -2)
    total += law.crossed * jnp.einsum("...ijab,jk,...ikab->", f.G, law.H, swapped)
    return total + law.prior * jnp.einsum("...ijab,jk,...ikab->", f.B, law.H, g.B)


def _mean_of_norms(law: _Law, blocks: _Blocks) -> Array:
    r"""Return $\sum_{hg}E\,\mathrm{tr}V_h\Gamma_WV_g^\top\;t_h^\top\Gamma_Wt_g$.

    The first factor is $\alpha_{hg}+\mathrm{tr}NK_{hg}$ plus the inner product of W and
    $(B_h^\top V_{1g}+B_g^\top V_{1h})S$. The second factor, averaged over $x_q$, is
    $\beta_{hg}+\mathrm{tr}NX_{hg}$ plus the inner product of W and $(u_hHA_g^\top+u_gHA_h^\top)S$.
    Here $\alpha_{hg}=\mathrm{tr}V_{1h}SV_{1g}^\top$, $\beta_{hg}=\mathrm{tr}SA_gHA_h^\top$,
    $K_{hg}=B_g^\top B_h$ and $X_{hg}=u_gHu_h^\top$.
    """
    (S, H, prior, _), (A, u, V1, B), n1 = law, blocks, law.n1
    alpha = jnp.einsum("hij,jk,gik->hg", V1, S, V1)
    beta = jnp.einsum("hij,ik,gkl,jl->hg", A, S, A, H)
    K = jnp.einsum("gia,hib->hgab", B, B)
    X = jnp.einsum("gai,ij,hbj->hgab", u, H, u)
    value, tilt = jnp.einsum("hia,gij->hgaj", B, V1), jnp.einsum("hai,ij,gkj->hgak", u, H, A)
    value, tilt = (odd + jnp.swapaxes(odd, 0, 1) for odd in (value, tilt))
    size_v, size_t = (n1 * jnp.trace(part, axis1=-2, axis2=-1) for part in (K, X))
    even = jnp.sum((alpha + size_v) * (beta + size_t))
    even += law.crossed * jnp.sum(K * (X + jnp.swapaxes(X, -1, -2)))
    return even + prior * jnp.sum((value @ S) * (tilt @ S))


class QueryAverages(NamedTuple):
    r"""Means over W at each query.

    Attributes:
        square: the mean of $|c|^2$.
        cross: the mean of $c\cdot y$.
        sharpness: the mean of $\sigma^2$.
        value: the mean of $\mathrm{tr}V\Gamma_WV^\top$, which does not depend on the query.
    """

    square: Float[Array, " points"]
    cross: Float[Array, " points"]
    sharpness: Float[Array, " points"]
    value: Float[Array, ""]


def query_averages(  # noqa: PLR0917 - a head at its queries
    task: LinearRegression,
    root: Float[Array, "d d"],
    value: Float[Array, "m tokens"],
    seen: Float[Array, "d points"],
    scored: Float[Array, "d points"],
    label: Float[Array, "m points"],
) -> QueryAverages:
    r"""Return the means over W at each query x.

    With the blocks A, u, $V_1$ and B of `averages`, $q=CAx$, $t=ux$ and $D=CV_1^\top$,

    $$E_W|c|^2=|D^\top q+n_1Bt|^2+\tau^4\mathrm{tr}S^2\big(|Bt|^2+|B|^2|t|^2\big)
    +\tau^2\big(|B|^2|C^\top q|^2+2\langle Bt,D^\top CC^\top q\rangle+|t|^2|C^\top D|^2\big),$$

    $E_W\,c\cdot y=\tau^2(\mathrm{tr}B\,\langle Cx,q\rangle+\langle t,D^\top Cx\rangle)$ and
    $E_W\sigma^2=|q|^2+n_1|t|^2$.

    Args:
        task: the regression.
        root: C with $C^\top C=S$ and $CC^\top$ diagonal.
        value: the last m rows V of the value matrix.
        seen: the vectors $Cx$.
        scored: the vectors $CAx$.
        label: the vectors $ux$.
    """
    law, dim = _Law.of(task), root.shape[1]
    D, B = root @ value[:, :dim].T, value[:, dim:]
    variances = jnp.sum(root * root, axis=1)
    label_square, size = jnp.sum(label * label, axis=0), jnp.sum(B * B)
    Bt = _product(B, label)
    mean, drift = _product(D.T, scored), _product(D.T, variances[:, None] * scored)
    square = jnp.sum((mean + law.n1 * Bt) ** 2, axis=0)
    square += law.crossed * (jnp.sum(Bt * Bt, axis=0) + size * label_square)
    square += law.prior * (
        size * jnp.sum(variances[:, None] * scored * scored, axis=0)
        + 2 * jnp.sum(Bt * drift, axis=0)
        + jnp.sum(variances[:, None] * D * D) * label_square
    )
    cross = jnp.trace(B) * jnp.sum(scored * seen, axis=0)
    cross = law.prior * (cross + jnp.sum(label * _product(D.T, seen), axis=0))
    sharpness = jnp.sum(scored * scored, axis=0) + law.n1 * label_square
    return QueryAverages(square, cross, sharpness, jnp.sum(D * D) + size * law.n1)


def _product(matrix: Array, columns: Array) -> Array:
    """Return a product with a small matrix as a sum, which compilers fuse with later operations."""
    return jnp.sum(matrix[:, :, None] * columns[None], axis=1)


def _label_averages(
    law: _Law, form: _QueryForm, key_query: Array, value: Array
) -> tuple[Array, Array]:
    r"""Return $E\,c^2\sigma^2$ and $E\,cy\,\sigma^2$ for one label.

    Given w, $c=\langle k,x_q\rangle$ with $k=a+Bw+bn\,u$ and $n=w^\top Sw+s^2$, where a and B are
    those of `form` and b is the last entry of V. Likewise $\sigma^2=x_q^\top Gx_q$ with
    $G=A^\top SA+A^\top Swu^\top+uw^\top SA+n\,uu^\top$. The means over $x_q$ are
    $k^\top Hk\,\mathrm{tr}GH+2\,k^\top HGHk$ and $k^\top Hw\,\mathrm{tr}GH+2\,k^\top HGHw$. In this
    function W denotes $E\,n\,ww^\top=\tau^2(n_1I+2\tau^2S)$. The means over w use W and
    $n_3=E\,n^3=s^2n_2+\tau^2\mathrm{tr}S(n_2I+4SW)$.
    """
    (S, H, prior, noise), n1, n2 = law, law.n1, law.n2
    A, u, b = key_query[:-1, :-1], key_query[-1, :-1], value[0, -1]
    a, B = form.a[0], form.B[0, :, 0]
    W = prior * (n1 * jnp.eye(u.size, dtype=S.dtype) + 2 * prior * S)
    n3 = noise * n2 + prior * (n2 * jnp.trace(S) + 4 * jnp.sum(S * (S @ W)))
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
    return square + 2 * along, cross + 2 * cross_along
