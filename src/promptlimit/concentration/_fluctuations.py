r"""Moments of tilted tokens under a sub-Gaussian law: what every bound is made of.

Tokens are centred and $s$-sub-Gaussian in $\mathbb R^d$, $u=Uz$ is the tilt, $x=s^2|u|^2$,
$w=e^{\langle u,z\rangle-\Lambda(u)}$ the weight of a token, of mean one, and $m=\nabla\Lambda(u)$.
The softmax mean is $\hat m=m+G/D$ with $D=\frac1L\sum w_i$, $G=\frac1L\sum w_i(z_i-m)$. Derived in
docs/bounds.md.
"""

from typing import TypeAlias

import numpy as np

from promptlimit._arrays import Array

# One number or an array of them; NumPy makes scalars of arrays without axes.
Numbers: TypeAlias = Array | float


def log_cells(dim: int) -> float:
    r"""Return $\frac d2\ln2$: $E e^{|z|^2/4s^2}\le2^{d/2}$."""
    return dim / 2 * float(np.log(2.0))


def root_log(log_y: Numbers, order: int) -> Numbers:
    r"""Return $\sqrt{\ln(y+e^{k-1})}$, of which the 2k-th power is concave in $y\ge0$."""
    return np.sqrt(np.logaddexp(log_y, order - 1.0))


def token_norm(power: int, order: int, dim: int, s: Numbers, x: Numbers) -> Numbers:
    r"""Return a bound of $(E\,w^p|z-m|^{2k})^{1/2k}$.

    $2s\,e^{p^2x/4k}\big(\sqrt{\ln(2^{d/2}e^{p^2x/2}+e^{k-1})}+\sqrt x\big)$, $p$ = `power` and $k$
    = `order`; infinite where that overflows.
    """
    growth = power**2 * x
    sizes = root_log(log_cells(dim) + growth / 2, order) + np.sqrt(x)
    with np.errstate(over="ignore"):
        return 2 * s * np.exp(growth / (4 * order)) * sizes


def failure_exponent(length: Numbers, x: Numbers) -> Numbers:
    r"""Return $q=\frac L8e^{-2x}$: $P(D<\frac12)\le e^{-q}$."""
    return np.exp(np.log(length) - np.log(8.0) - 2 * x)


def spread(dim: int, s: Numbers, x: Numbers) -> Numbers:
    r"""Return $s^2(4x+2d\ln2)$, a bound of $\mathrm{tr}\,C$, $C=\nabla^2\Lambda(u)$."""
    return 4 * s**2 * (x + log_cells(dim))
