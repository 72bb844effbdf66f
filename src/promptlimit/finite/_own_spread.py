r"""The gradient with respect to a score matrix over Gaussian tokens and the query as a token.

The L other tokens $z_l$ have the law $N(m,\Gamma)$ and the weights $p_l$; the query z has the
weight $p_0$. At the tilt t let $r=z-m-\Gamma t$ be the query minus the tilted mean,
$x_l=\Gamma^{-1/2}(z_l-m-\Gamma t)$, $a=\sum_lp_lx_l$ and $J=\sum_lp_lx_lx_l^\top-aa^\top-I$. The
softmax covariance $\hat C$ of all tokens satisfies

$$\hat C-\Gamma=\Gamma^{1/2}J\Gamma^{1/2}+p_0(1-p_0)rr^\top
-p_0\big(\Gamma^{1/2}ar^\top+ra^\top\Gamma^{1/2}\big).$$

The mean square of $\hat C-\Gamma$ is a sum of moments of weights times products of matrices.
Derived in docs/finite.md.
"""

import itertools

import numpy as np

from promptlimit._arrays import Array
from promptlimit.finite._head_moments import WhitenedTokens, spread_products
from promptlimit.weights import checked_sharpness, weight_moments

Polynomial = dict[str, float]
"""A polynomial in sums over tokens: the coefficient of each monomial.

A monomial is a word in the letters of `weights._brackets.monomial`: "BB" is $B^2$, and "" is 1.
"""

_OWN, _REST = {"0": 1.0}, {"": 1.0, "0": -1.0}  # p_0 and 1 - p_0
_DRIFT: Polynomial = {"B": 1.0}
_M: Polynomial = {"Y": 1.0, "0": -1.0, "BB": -1.0}
_Q: Polynomial = {"0": 1.0, "S": 1.0}
_RHO: Polynomial = {"Q": 1.0, "BH": -2.0, "BBS": 1.0}
_THETA: Polynomial = {"H": 1.0, "BS": -1.0}
_COUPLING: Polynomial = {"S": 1.0, "C": -2.0, "SS": 1.0}


def own_spread_error(
    tokens: WhitenedTokens,
    query: tuple[Array, float],
    left: Array,
    value: Array,
    lengths: Array,
) -> tuple[Array, Array]:
    r"""Return $E\|K(\hat C-\Gamma)V^\top\|_F^2$ and its numerical error, [n] each.

    Args:
        tokens: the Gaussian tokens along the tilt.
        query: $r$, [d], and the score of the query minus the mean score of the other tokens.
        left: K, [k, d].
        value: V, [e, d].
        lengths: L, the number of other tokens, [n], or infinite.
    """
    residual, own_score = query
    basis = np.linalg.qr(tokens.direction[:, None], mode="complete")[0]
    basis[:, 0] = tokens.direction
    weights = _coefficients(
        (left @ tokens.root @ basis, value @ tokens.root @ basis),
        (left @ residual, value @ residual),
    )
    result, error = np.zeros((2, lengths.size))
    finite = np.isfinite(lengths)
    if finite.any():
        sharpness = float(checked_sharpness(tokens.sharpness))
        moments = weight_moments(weights, sharpness, lengths[finite], own_score)
        for word, weight in weights.items():
            result[finite] += weight * moments[word].value
            error[finite] += abs(weight) * moments[word].error
    return result, error


def _coefficients(
    matrices: tuple[Array, Array], residuals: tuple[Array, Array]
) -> dict[str, float]:
    r"""Return the coefficient in $E\|K(\hat C-\Gamma)V^\top\|_F^2$ of the mean of each monomial.

    With $G=\Gamma^{1/2}$, $N=GK^\top KG$, $P=GV^\top VG$, $n=GK^\top Kr$ and $k=GV^\top Vr$, the
    squared norm is

        tr(J N J P) + 2 p0(1-p0) k'Jn - 2 p0 (k'J N a + n'J P a) + p0^2(1-p0)^2 |Kr|^2 |Vr|^2
        - 2 p0^2(1-p0) (n'a |Vr|^2 + k'a |Kr|^2) + p0^2 (2 n'a k'a + |Kr|^2 a'Pa + |Vr|^2 a'Na).

    Given the weights and with $e=Gt/\sigma$, $E\,J=M\,ee'-q(I-ee')$, $E\,a=Be$ and
    $E\,aa'=B^2ee'+S_2(I-ee')$, where B is a letter of `monomial`, and M and q are the polynomials
    `_M` and `_Q`. With $h_l=\langle e,x_l\rangle$, the products of J and a also contain
    $\sum_lp_l^2(h_l-B)$, which is `_THETA`. The statistics of `tr(JNJP)` are those of
    `spread_products`; its `residual` and `coupling` are `_RHO` and `_COUPLING`.

    Args:
        matrices: $KG$ and $VG$, in a basis whose first vector is e.
        residuals: $Kr$ and $Vr$.
    """
    (left, value), (left_r, value_r) = matrices, residuals
    N, P = left.T @ left, value.T @ value
    n, k = left.T @ left_r, value.T @ value_r
    left_size, value_size = float(left_r @ left_r), float(value_r @ value_r)
    total: dict[str, float] = {}

    def add(factor: float, *polynomials: Polynomial) -> None:
        for word, coefficient in _product(*polynomials).items():
            total[word] = total.get(word, 0.0) + factor * coefficient

    statistics = {
        "spread_error": (_M, _M),
        "residual": (_RHO,),
        "spread_participation": (_M, _Q),
        "participation_square": (_Q, _Q),
        "coupling": (_COUPLING,),
    }
    for name, factor in spread_products(N, P, np.eye(len(N))[0]).items():
        add(factor, *statistics[name])
    add(2.0 * k[0] * n[0], _OWN, _REST, _M)
    add(-2.0 * float(k[1:] @ n[1:]), _OWN, _REST, _Q)
    for X, b in ((N, k), (P, n)):
        add(-2.0 * X[0, 0] * b[0], _OWN, _DRIFT, _M)
        add(2.0 * float(X[0, 1:] @ b[1:]), _OWN, _DRIFT, _Q)
        add(-2.0 * float(X[0, 1:] @ b[1:] + np.trace(X[1:, 1:]) * b[0]), _OWN, _THETA)
    add(left_size * value_size, _OWN, _OWN, _REST, _REST)
    add(-2.0 * float(n[0] * value_size + k[0] * left_size), _OWN, _OWN, _REST, _DRIFT)
    along = 2.0 * n[0] * k[0] + left_size * P[0, 0] + value_size * N[0, 0]
    across = 2.0 * n[1:] @ k[1:] + left_size * np.trace(P[1:, 1:])
    add(float(along), _OWN, _OWN, _DRIFT, _DRIFT)
    add(float(across + value_size * np.trace(N[1:, 1:])), _OWN, _OWN, {"S": 1.0})
    return {word: weight for word, weight in total.items() if weight != 0.0}


def _product(*polynomials: Polynomial) -> Polynomial:
    """Return the product of polynomials; the letters of each word are in alphabetical order."""
    total: Polynomial = {}
    for terms in itertools.product(*(polynomial.items() for polynomial in polynomials)):
        word = "".join(sorted("".join(name for name, _ in terms)))
        coefficient = float(np.prod([one for _, one in terms]))
        total[word] = total.get(word, 0.0) + coefficient
    return total
