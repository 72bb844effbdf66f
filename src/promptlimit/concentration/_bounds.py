r"""Proved upper bounds on gaps between finite and infinite prompts of sub-Gaussian tokens.

The bounds hold for every $L\ge1$, and never exceed a bound that follows from the sizes of the
tokens alone. They are loose: use exact moments if available. Tokens and queries are centred, and
queries are 1-sub-Gaussian; docs/bounds.md derives the bounds and reduces other problems to this
case. Lemmas and propositions are those of arXiv:2512.11784, "the paper".

The prompt has L tokens $z_i$, which are $s$-sub-Gaussian in $\mathbb R^d$. At a query z the tilt is
$u=Uz$, and $x=s^2|u|^2$. The tilted mean and covariance are $m=\nabla\Lambda(u)$ and
$C=\nabla^2\Lambda(u)$, with $\Lambda$ the log-Laplace transform of a token. Let
$w_i=e^{\langle u,z_i\rangle-\Lambda(u)}$, which has mean one. The softmax mean of the prompt is
$\hat m=m+G/D$ with $D=\frac1L\sum w_i$ and $G=\frac1L\sum w_i(z_i-m)$, and its softmax covariance
is $\hat C$. $T_L(z)=V\hat m$ is the output and $T(z)=Vm$ its limit.
"""

from typing import SupportsIndex, TypeAlias

import numpy as np

from promptlimit._arrays import Array, ArrayLike, checked_lengths, real_numbers, require_whole
from promptlimit.errors import ArgumentError

# NumPy converts arrays without axes to scalars.
Numbers: TypeAlias = Array | float

_NODES = 1000
_LARGEST = 1e75  # the fourth power of a larger sharpness overflows
_SMALLEST = 1e-100  # replaces smaller norms: the bound only grows, and zero has no logarithm


def mean_bound(
    length: ArrayLike, *, dim: SupportsIndex, sub_gaussian: ArrayLike, tilt_norm: ArrayLike
) -> Array:
    r"""Return a bound on $E|\hat m-m|^2$, the mean squared error of the softmax mean at one query.

    $E|T_L(z)-T(z)|^2$ is at most $\|V\|^2$ times this bound. The gradient of one output in its row
    of V has the mean squared error $E|\hat m-m|^2$. With $x=s^2|u|^2$ and $q=\frac L8e^{-2x}$, the
    bound is the smaller of

    $$4s^2\Big(\sqrt{\ln(L2^{d/2})}+\sqrt x\Big)^2\quad\text{and}\quad
    \frac{16s^2e^{2x}}L\Big(\sqrt{\ln(1+2^{d/2}e^{2x})}+\sqrt x\Big)^2
    +4s^2e^{-q}\Big(\sqrt{\ln(1+L2^{d/2}e^q)}+\sqrt x\Big)^2.$$

    The paper (arXiv:2512.11784) states the order (Lemmas C.1 to C.4). Derived in docs/bounds.md.

    Args:
        length: $L$, one or an array.
        dim: $d$, the dimension of a token.
        sub_gaussian: $s$, from `measure.variance_proxy().constant`.
        tilt_norm: $|u|=|Uz|$.

    >>> bound = mean_bound([100, 10_000], dim=1, sub_gaussian=1.0, tilt_norm=0.5)
    >>> print(bound.round(4))
    [0.7061 0.0067]
    """
    sizes = checked_lengths(length)
    d, s = checked_dim(dim), checked_size("sub_gaussian", sub_gaussian)
    x = checked_sharpness("tilt_norm", s, tilt_norm) ** 2
    return np.where(np.isinf(sizes), 0.0, _mean_bound(_finite(sizes), d, s, x))


def covariance_bound(
    length: ArrayLike, *, dim: SupportsIndex, sub_gaussian: ArrayLike, tilt_norm: ArrayLike
) -> Array:
    r"""Return a bound on $E\|\hat C-C\|_F^2$, the mean squared error of the softmax covariance.

    For the i-th output, $E\|\nabla_UT_{L,i}-\nabla_UT_i\|^2$ is at most $|v_i|^2|z|^2$ times this
    bound, with $v_i$ the i-th row of V. With $x$ and $q$ as in `mean_bound`, $t=s^2(4x+2d\ln2)$ and
    $N_{p,k}=2s\,e^{p^2x/4k}\big(\sqrt{\ln(2^{d/2}e^{p^2x/2}+e^{k-1})}+\sqrt x\big)$, the bound is
    the smaller of

    $$\big(4s^2\ln(L2^{d/2}+e)+t\big)^2\quad\text{and}\quad
    \Big(\tfrac2{\sqrt L}\big(N_{2,2}^2+te^x\big)
    +4\sqrt{\tfrac{N_{4,2}^4}{L^3}+\tfrac{3N_{2,1}^4}{L^2}}\Big)^2
    +e^{-q}\big(4s^2\ln(L2^{d/2}e^q+e)+t\big)^2.$$

    Prop. 3.4 of the paper (arXiv:2512.11784) is a bound of this kind, averaged over queries.
    Derived in docs/bounds.md.

    Args:
        length: $L$, one or an array.
        dim: $d$, the dimension of a token.
        sub_gaussian: $s$, from `measure.variance_proxy().constant`.
        tilt_norm: $|u|=|Uz|$.

    >>> print(covariance_bound(1e6, dim=1, sub_gaussian=1.0, tilt_norm=0.5).round(6))
    0.001484
    """
    sizes = checked_lengths(length)
    d, s = checked_dim(dim), checked_size("sub_gaussian", sub_gaussian)
    x = checked_sharpness("tilt_norm", s, tilt_norm) ** 2
    return np.where(np.isinf(sizes), 0.0, _covariance_bound(_finite(sizes), d, s, x))


def output_bound(
    length: ArrayLike,
    *,
    dim: SupportsIndex,
    sub_gaussian: ArrayLike,
    key_query_norm: ArrayLike,
    value_norm: ArrayLike,
) -> Array:
    r"""Return a bound on $E\|T[\hat\mu_L]-T[\mu]\|^2_{L^2(\nu)}$, over prompts and queries.

    Up to logarithms it falls as $L^{-1}$ for $s\kappa<\frac12$, and as $L^{-1/(2s\kappa)^2}$ for
    larger $s\kappa$. It is $\|V\|^2$ times an upper sum of
    $E f(X)=f(0)+\int_0^\infty P(X>x)\,df(x)$. Here $X=s^2|Uz|^2$, and $f(x)$ is `mean_bound`, an
    increasing function of x. The probability that $X$ exceeds $s^2\kappa^2r^2$ is at most
    $e^{-(r^2-d-d\ln(r^2/d))/2}$ for $r^2\ge d$. Prop. 3.1 of the paper (arXiv:2512.11784) is
    $c_1s^6\ln L/L^{c_2/s^2}$ with unspecified $c_1,c_2$; as printed it fails at $L=1$. Derived in
    docs/bounds.md.

    Args:
        length: $L$, one or an array.
        dim: $d$, the dimension of a token.
        sub_gaussian: $s$, the constant of the tokens; queries must be centred and 1-sub-Gaussian.
        key_query_norm: $\kappa=\|U\|$.
        value_norm: $\|V\|$.

    >>> norms = dict(sub_gaussian=1.0, key_query_norm=0.2, value_norm=1.0)
    >>> print(output_bound([100, 1e6], dim=1, **norms).round(6))
    [5.63902e-01 5.20000e-05]
    """
    sizes = checked_lengths(length)
    d, s = checked_dim(dim), checked_number("sub_gaussian", sub_gaussian)
    norm = checked_number("key_query_norm", key_query_norm)
    tau = max(float(checked_sharpness("key_query_norm", s, norm)), _SMALLEST)
    v = checked_number("value_norm", value_norm)
    bounds = [0.0 if np.isinf(one) else _averaged(float(one), d, s, tau) for one in sizes.ravel()]
    return np.reshape(v**2 * np.asarray(bounds), sizes.shape)


def _finite(length: Array) -> Array:
    return np.where(np.isinf(length), 1.0, length)


def _mean_cap(length: Numbers, d: int, s: Numbers, x: Numbers) -> Numbers:
    r"""Return $4s^2(\sqrt{\ln(L2^{d/2})}+\sqrt x)^2$, a bound due to $|\hat m|\le\max|z_i|$."""
    return 4 * s**2 * (np.sqrt(np.log(length) + log_cells(d)) + np.sqrt(x)) ** 2


def _mean_bound(length: Numbers, d: int, s: Numbers, x: Numbers) -> Numbers:
    q = failure_exponent(length, x)
    with np.errstate(over="ignore"):  # an infinite value is replaced by the cap
        near = (2 * token_norm(2, 1, d, s, x) / np.sqrt(length)) ** 2
    far = 2 * s * np.exp(-q / 2) * (root_log(np.log(length) + log_cells(d) + q, 1) + np.sqrt(x))
    return np.minimum(near + far**2, _mean_cap(length, d, s, x))


def _covariance_bound(length: Numbers, d: int, s: Numbers, x: Numbers) -> Numbers:
    q, t = failure_exponent(length, x), _spread(d, s, x)
    log_sum = np.log(length) + log_cells(d)
    with np.errstate(over="ignore"):  # an infinite value is replaced by the cap
        linear = token_norm(2, 2, d, s, x) ** 2 + t * np.exp(x)
        fourth = token_norm(4, 2, d, s, x) ** 4 / length**3
        square = 3 * token_norm(2, 1, d, s, x) ** 4 / length**2
        near = (2 * linear / np.sqrt(length) + 4 * np.sqrt(fourth + square)) ** 2
    far = np.exp(-q / 2) * (4 * s**2 * root_log(log_sum + q, 2) ** 2 + t)
    cap = 4 * s**2 * root_log(log_sum, 2) ** 2 + t
    return np.minimum(near + far**2, cap**2)


def _averaged(length: float, d: int, s: float, tau: float) -> float:
    r"""Return $f(x_1)+\sum_k(f(x_{k+1})-f(x_k))p_k+b$, a bound on $E f(X)$ with f = `_mean_bound`.

    $p_k$ is a bound on $P(X>x_k)$, and b a bound on $E[f(X);X>x_n]$.
    """
    nodes = _nodes(length, d, tau)
    heights = np.asarray(_mean_bound(length, d, s, nodes))
    steps = np.diff(heights) @ np.exp(_log_survival(nodes[:-1], d, tau))
    return float(heights[0] + steps) + _beyond(length, d, s, tau, float(nodes[-1]))


def _nodes(length: float, d: int, tau: float) -> Array:
    """Return positive nodes, dense where the bound or the tail of the queries changes fast."""
    roots = np.arange(1, _NODES + 1) / _NODES
    top = tau**2 * (40 + 2 * d + 8 * np.log(length))
    climb = (np.log(length) / 2 + 3) * roots**2
    nodes = np.concatenate([climb[climb < top], top * roots**2])
    return np.unique(nodes)


def _log_survival(x: Numbers, d: int, tau: float) -> Numbers:
    r"""Return $-\frac12(r^2-d-d\ln(r^2/d))$, a bound on $\ln P(X>x)$.

    $r^2$ is the larger of $x/\tau^2$ and d.
    """
    ratio = np.maximum(x / tau**2 / d, 1.0)
    return -d / 2 * (ratio - 1 - np.log(ratio))


def _beyond(length: float, d: int, s: float, tau: float, x: float) -> float:
    r"""Return a bound on $E[f(X);X>x]$, the mean of f(X) over queries with X > x.

    With $p\ge P(X>x)$ it is $4s^2p\big(\sqrt{\ln(L2^{d/2})}+2\tau\sqrt{\ln(1+2^{d/2}/p)}\big)^2$.
    """
    log_p = _log_survival(x, d, tau)
    sizes = np.sqrt(np.log(length) + log_cells(d)) + 2 * tau * np.sqrt(
        np.logaddexp(0.0, log_cells(d) - log_p)
    )
    return float(4 * s**2 * np.exp(log_p) * sizes**2)


def log_cells(dim: int) -> float:
    r"""Return $\frac d2\ln2$, a bound on $\ln E\,e^{|z|^2/4s^2}$ for a token z."""
    return dim / 2 * float(np.log(2.0))


def root_log(log_y: Numbers, order: int) -> Numbers:
    r"""Return $\sqrt{\ln(y+e^{k-1})}$ for k = `order`; its 2k-th power is concave in $y\ge0$."""
    return np.sqrt(np.logaddexp(log_y, order - 1.0))


def token_norm(power: int, order: int, dim: int, s: Numbers, x: Numbers) -> Numbers:
    r"""Return $N_{p,k}$ of `covariance_bound` for p = `power` and k = `order`.

    It is a bound on $(E\,w^p|z-m|^{2k})^{1/2k}$, or infinity if the bound overflows.
    """
    growth = power**2 * x
    sizes = root_log(log_cells(dim) + growth / 2, order) + np.sqrt(x)
    with np.errstate(over="ignore"):
        return 2 * s * np.exp(growth / (4 * order)) * sizes


def failure_exponent(length: Numbers, x: Numbers) -> Numbers:
    r"""Return $q=\frac L8e^{-2x}$, for which $P(D<\frac12)\le e^{-q}$."""
    return np.exp(np.log(length) - np.log(8.0) - 2 * x)


def _spread(dim: int, s: Numbers, x: Numbers) -> Numbers:
    r"""Return $t=s^2(4x+2d\ln2)$, a bound on $\mathrm{tr}\,C$."""
    return 4 * s**2 * (x + log_cells(dim))


def checked_dim(dim: SupportsIndex) -> int:
    """Return the validated dimension of a token."""
    return require_whole("dim", dim, 1)


def checked_size(name: str, value: ArrayLike) -> Array:
    """Return validated norms: finite and not negative."""
    array = real_numbers(name, value)
    allowed = np.isfinite(array) & (array >= 0)
    if not allowed.all():
        raise ArgumentError(
            name,
            f"must be finite and not negative, got {array[~allowed][0]}. It is a norm or a scale.",
        )
    return array


def checked_sharpness(name: str, sub_gaussian: Array | float, norm: ArrayLike) -> Array:
    """Return $s|u|$; raise ArgumentError if its fourth power would overflow."""
    sharpness = np.asarray(sub_gaussian * checked_size(name, norm))
    if not np.all(sharpness <= _LARGEST):
        raise ArgumentError(
            name,
            f"times `sub_gaussian` must be at most {_LARGEST:g} for a bound in double "
            f"precision, got {np.max(sharpness):g}.",
        )
    return sharpness


def checked_number(name: str, value: ArrayLike) -> float:
    """Return one validated norm."""
    array = checked_size(name, value)
    if array.ndim:
        raise ArgumentError(name, f"must be one number, got shape {array.shape}.")
    return float(array)


# ---------------------------------------------------------------- the lemmas for one query


def error_quantile(
    length: ArrayLike,
    *,
    dim: SupportsIndex,
    sub_gaussian: ArrayLike,
    tilt_norm: ArrayLike,
    value_norm: ArrayLike,
    delta: float,
) -> Array:
    r"""Return a number that $|T_L(z)-T(z)|$ exceeds with probability at most $2\delta$.

    This is Lemma C.1 of arXiv:2512.11784. With $x=s^2|u|^2$ the number is

    $$\frac{4s\|V\|e^x}{\sqrt{\delta L}}\Big(\sqrt{\ln(1+2^{d/2}e^{2x})}+\sqrt x\Big),\qquad
    L\ge8e^{2x}\ln\tfrac1\delta.$$

    Args:
        length: $L$, one or an array; at least $8e^{2x}\ln\frac1\delta$.
        dim: $d$, the dimension of a token.
        sub_gaussian: $s$, from `measure.variance_proxy().constant`.
        tilt_norm: $|u|=|Uz|$.
        value_norm: $\|V\|$.
        delta: $\delta$, between 0 and 1.

    >>> size = dict(dim=1, sub_gaussian=1.0, tilt_norm=0.5, value_norm=1.0)
    >>> print(error_quantile(1e6, **size, delta=0.01).round(4))
    0.082
    """
    if not 0 < delta < 1:
        raise ArgumentError("delta", f"must be between 0 and 1, got {delta}. Pass 0.01 for 98%.")
    sizes = checked_lengths(length)
    s, x = _scale(sub_gaussian, tilt_norm)
    with np.errstate(over="ignore"):
        needed = float(8 * np.exp(2 * x) * np.log(1 / delta))
    if sizes.size and sizes.min() < needed:
        raise ArgumentError(
            "length",
            f"must be at least {needed:.6g} for this query and `delta`, got "
            f"{sizes.min():.6g}. Use `error_tail`, which is valid at every length.",
        )
    norm = token_norm(2, 1, checked_dim(dim), s, x)
    return np.asarray(2 * checked_number("value_norm", value_norm) * norm / np.sqrt(delta * sizes))


def error_tail(
    length: ArrayLike,
    level: ArrayLike,
    *,
    dim: SupportsIndex,
    sub_gaussian: ArrayLike,
    tilt_norm: ArrayLike,
    value_norm: ArrayLike,
) -> Array:
    r"""Return a bound on $P(|T_L(z)-T(z)|\ge t)$, at most one.

    This is Lemma C.3 of arXiv:2512.11784. With $x=s^2|u|^2$ the bound is the smaller of one and

    $$\frac{16s^2\|V\|^2e^{2x}}{Lt^2}\Big(\sqrt{\ln(1+2^{d/2}e^{2x})}+\sqrt x\Big)^2
    +e^{-\frac L8e^{-2x}}.$$

    Args:
        length: $L$, one or an array.
        level: the level $t>0$, one or an array.
        dim: $d$, the dimension of a token.
        sub_gaussian: $s$.
        tilt_norm: $|u|=|Uz|$.
        value_norm: $\|V\|$.

    >>> size = dict(dim=1, sub_gaussian=1.0, tilt_norm=0.5, value_norm=1.0)
    >>> print(error_tail(1e6, 0.1, **size).round(4))
    0.0067
    """
    sizes, t = checked_lengths(length), checked_size("level", level)
    if not (t > 0).all():
        raise ArgumentError("level", "must be positive, got 0. Every error is at least zero.")
    s, x = _scale(sub_gaussian, tilt_norm)
    norm = token_norm(2, 1, checked_dim(dim), s, x)
    reach = 2 * checked_number("value_norm", value_norm) * norm / (np.sqrt(sizes) * t)
    with np.errstate(over="ignore"):
        bound = reach**2 + np.exp(-failure_exponent(sizes, x))
    return np.asarray(np.minimum(bound, 1.0))


def limit_bound(
    *, sub_gaussian: ArrayLike, tilt_norm: ArrayLike, value_norm: ArrayLike = 1.0
) -> Array:
    r"""Return $2s^2\|V\||u|$, a bound on the norm of the limit $T[\mu](z)$ (Lemma D.1).

    Args:
        sub_gaussian: $s$.
        tilt_norm: $|u|=|Uz|$, at most $\|U\||z|$.
        value_norm: $\|V\|$.

    >>> print(limit_bound(sub_gaussian=1.0, tilt_norm=[0.5, 3.0], value_norm=2.0))
    [ 2. 12.]
    """
    s, u = checked_size("sub_gaussian", sub_gaussian), checked_size("tilt_norm", tilt_norm)
    return np.asarray(2 * s**2 * checked_size("value_norm", value_norm) * u)


def largest_token_bound(length: ArrayLike, *, dim: SupportsIndex, sub_gaussian: ArrayLike) -> Array:
    r"""Return $4s^2(\ln L+\frac d2\ln2)$, a bound on $E\max_{i\le L}|z_i|^2$ (Lemma D.2).

    Args:
        length: $L$, one or an array, at least 1.
        dim: $d$, the dimension of a token.
        sub_gaussian: $s$.

    >>> print(largest_token_bound([1, 1000], dim=2, sub_gaussian=1.0).round(3))
    [ 2.773 30.404]
    """
    s = checked_size("sub_gaussian", sub_gaussian)
    return np.asarray(4 * s**2 * (np.log(checked_lengths(length)) + log_cells(checked_dim(dim))))


def _scale(sub_gaussian: ArrayLike, tilt_norm: ArrayLike) -> tuple[float, float]:
    """Return $s$ and $x=s^2|u|^2$."""
    s = checked_number("sub_gaussian", sub_gaussian)
    return s, (s * checked_number("tilt_norm", tilt_norm)) ** 2
