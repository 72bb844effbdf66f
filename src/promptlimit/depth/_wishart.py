r"""Wishart matrices $W=\sum_{i\le L}g_ig_i^\top$: exact trace moments, and draws at any L."""

import functools

import numpy as np
from numpy.typing import NDArray

from promptlimit._replicates import sobol_sets

_SEED = 20_240_207


@functools.lru_cache(maxsize=64)
def trace_moments(dim: int, length: int, order: int) -> tuple[int, ...]:
    r"""Return $E\,\mathrm{tr}W^k$, k from 0 to `order`, $W\sim\mathrm{Wishart}_d(L,I)$: integers.

    Stein's identity takes one factor W off a trace and meets the others: with $t_k=\mathrm{tr}W^k$
    and $t_0=d$, for any product f of traces,

    $$E\,f\,t_k=E\Big[f\Big((L+k-1)t_{k-1}+\sum_{a=0}^{k-2}t_at_{k-1-a}\Big)
    +\sum_{t_m\text{ of }f}2m\,t_{k+m-1}\frac f{t_m}\Big].$$

    Args:
        dim: $d$.
        length: $L$, of any size: the integers are exact.
        order: the largest power.
    """
    means: dict[tuple[int, ...], int] = {(): 1}

    def mean(*powers: int) -> int:
        """Return the mean of a product of traces, those of the power 0 being d."""
        traces = tuple(sorted((power for power in powers if power), reverse=True))
        if traces not in means:
            k, others = traces[0], traces[1:]
            total = (length + k - 1) * mean(k - 1, *others)
            total += sum(mean(a, k - 1 - a, *others) for a in range(k - 1))
            for place, m in enumerate(others):
                total += 2 * m * mean(k + m - 1, *others[:place], *others[place + 1 :])
            means[traces] = total
        return dim ** (len(powers) - len(traces)) * means[traces]

    return tuple(mean(power) for power in range(order + 1))


def bartlett_factors(
    dim: int, length: float, points: int, replicate: int, *, extra: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Return T, [points, d, min(L, d)], with $TT^\top$ Wishart of L degrees, and extra normals.

    Lower trapezoidal: independent normals below the diagonal, and $T_{jj}^2\sim\chi^2_{L-j}$,
    j from 0. The points are those of a scrambled Sobol' sequence.

    Args:
        dim: $d$.
        length: $L$, a finite number of tokens: the cost does not depend on it.
        points: a power of two.
        replicate: which of the independent scramblings of the sequence.
        extra: how many standard normals come with each factor, [points, extra].
    """
    from scipy.special import gammaincinv, ndtri  # noqa: PLC0415  # scipy loads slowly

    columns = int(min(length, dim))
    below = np.tril_indices(dim, -1, columns)
    last = columns + below[0].size
    uniforms = next(sobol_sets(last + extra, points, _SEED, replicate))
    factor = np.zeros((points, dim, columns))
    freedom = length - np.arange(columns)
    diagonal = np.arange(columns)
    chi2 = 2 * gammaincinv(freedom / 2, uniforms[:, :columns])
    factor[:, diagonal, diagonal] = np.sqrt(chi2)
    factor[:, below[0], below[1]] = ndtri(uniforms[:, columns:last])
    return factor, ndtri(uniforms[:, last:])
