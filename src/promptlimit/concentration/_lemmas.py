r"""The paper's lemmas for one fixed query, with explicit constants.

Tokens are centred and $s$-sub-Gaussian, $u=Uz$ is the tilt of the query, $x=s^2|u|^2$. The paper
states the lemmas; the constants are derived in docs/bounds.md.
"""

from typing import SupportsIndex

import numpy as np

from promptlimit._arrays import Array, ArrayLike, checked_lengths
from promptlimit.concentration._bounds import (
    checked_dim,
    checked_number,
    checked_size,
    failure_exponent,
    log_cells,
    token_norm,
)
from promptlimit.errors import ArgumentError


def error_quantile(
    length: ArrayLike,
    *,
    dim: SupportsIndex,
    sub_gaussian: ArrayLike,
    tilt_norm: ArrayLike,
    value_norm: ArrayLike,
    delta: float,
) -> Array:
    r"""Return a bound on $|T_L(z)-T(z)|$ that holds with probability $1-2\delta$ (Lemma C.1).

    $$\frac{4s\|V\|e^x}{\sqrt{\delta L}}\Big(\sqrt{\ln(1+2^{d/2}e^{2x})}+\sqrt x\Big),\qquad
    L\ge8e^{2x}\ln\tfrac1\delta.$$

    Args:
        length: $L$, one or an array, long enough for the condition.
        dim: $d$, the dimension of a token.
        sub_gaussian: $s$.
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
    r"""Return a bound of $P(|T_L(z)-T(z)|\ge t)$ (Lemma C.3), at most one.

    $$\frac{16s^2\|V\|^2e^{2x}}{Lt^2}\Big(\sqrt{\ln(1+2^{d/2}e^{2x})}+\sqrt x\Big)^2
    +e^{-\frac L8e^{-2x}}.$$

    Args:
        length: $L$, one or an array.
        level: $t>0$, one or an array.
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
    r"""Return $2s^2\|V\||u|$, a bound of $|T[\mu](z)|$ (Lemma D.1).

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
    r"""Return $4s^2(\ln L+\frac d2\ln2)$, a bound of $E\max_{i\le L}|z_i|^2$ (Lemma D.2).

    Args:
        length: $L$, one or an array, from 1 on.
        dim: $d$, the dimension of a token.
        sub_gaussian: $s$.

    >>> print(largest_token_bound([1, 1000], dim=2, sub_gaussian=1.0).round(3))
    [ 2.773 30.404]
    """
    s = checked_size("sub_gaussian", sub_gaussian)
    return np.asarray(4 * s**2 * (np.log(checked_lengths(length)) + log_cells(checked_dim(dim))))


def _scale(sub_gaussian: ArrayLike, tilt_norm: ArrayLike) -> tuple[float, float]:
    """Return $s$ and $x$."""
    s = checked_number("sub_gaussian", sub_gaussian)
    return s, (s * checked_number("tilt_norm", tilt_norm)) ** 2
