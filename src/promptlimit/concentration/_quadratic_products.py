r"""Means of products of up to three quadratic forms of a Gaussian vector.

For $x\sim N(m,D)$ and $Q_i=x'A_ix$ the joint cumulants are

    k(Q1)         = tr A1 D + m'A1 m
    k(Q1, Q2)     = 2 tr A1 D A2 D + 4 m'A1 D A2 m
    k(Q1, Q2, Q3) = 8 tr A1 D A2 D A3 D
                    + 8 (m'A1 D A2 D A3 m + m'A2 D A1 D A3 m + m'A1 D A3 D A2 m)

and a mean of a product is the sum over its set partitions of products of cumulants. Here D is
diagonal and may be complex: tilting a Gaussian by a complex multiple of a square leaves these
identities true.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import Array

Complex = NDArray[np.complex128]


@dataclasses.dataclass(frozen=True)
class Form:
    r"""The quadratic form $Q(z)=|Fz|^2$, or $z'Az$ when it is no square.

    Attributes:
        matrix: $A$, symmetric, [q, q].
        factor: $F$ with $A=F'F$, [k, q], the fewer rows the cheaper; None when there is none.
    """

    matrix: Array
    factor: Array | None = None

    def at(self, points: Array) -> Array:
        """Return the values at points [n, q]."""
        return np.einsum("ni,ij,nj->n", points, self.matrix, points)

    def through(self, matrix: Array) -> "Form":
        """Return the form of $x$ that this one is of $z$ = `matrix` $x$."""
        factor = None if self.factor is None else self.factor @ matrix
        return Form(matrix.T @ self.matrix @ matrix, factor)


def square(factor: Array) -> Form:
    """Return the form $|Fz|^2$."""
    return Form(factor.T @ factor, factor)


def mean_of_product(forms: tuple[Form, ...], mean: Complex, variance: Complex) -> Complex:
    r"""Return $E\prod_iQ_i(x)$ for many laws $N(m,\mathrm{diag}\,D)$ at once.

    Args:
        forms: none to three of them; the second of three must have a factor.
        mean: $m$, [n, q].
        variance: the diagonals of $D$, [n, q].
    """
    pulled = [mean @ form.matrix for form in forms]
    first = [
        variance @ np.diag(form.matrix) + np.sum(pull * mean, axis=-1)
        for form, pull in zip(forms, pulled, strict=True)
    ]
    if not forms:
        return np.ones(mean.shape[0], dtype=np.complex128)
    if len(forms) == 1:
        return first[0]

    def second(i: int, j: int) -> Complex:
        trace = np.sum((variance @ (forms[i].matrix * forms[j].matrix)) * variance, axis=-1)
        return 2.0 * trace + 4.0 * np.sum(pulled[i] * variance * pulled[j], axis=-1)

    if len(forms) == 2:
        return second(0, 1) + first[0] * first[1]
    together = second(0, 1) * first[2] + second(0, 2) * first[1] + second(1, 2) * first[0]
    return _third(forms, pulled, variance) + together + first[0] * first[1] * first[2]


def _third(forms: tuple[Form, ...], pulled: list[Complex], variance: Complex) -> Complex:
    """Return the third joint cumulant."""
    one, two, three = (form.matrix for form in forms)
    factor = forms[1].factor
    if factor is None:
        raise AssertionError("the middle form of three must have a factor")
    if all(np.array_equal(form.matrix, np.diag(np.diag(form.matrix))) for form in forms):
        trace = variance**3 @ (np.diag(one) * np.diag(two) * np.diag(three))
    else:
        rows = factor * variance[:, None, :]
        trace = np.sum((rows @ one) * variance[:, None, :] * (rows @ three), axis=(1, 2))
    spread = [pull * variance for pull in pulled]
    paths = (
        np.sum((spread[0] @ two) * spread[2], axis=-1)
        + np.sum((spread[1] @ one) * spread[2], axis=-1)
        + np.sum((spread[0] @ three) * spread[1], axis=-1)
    )
    return 8.0 * (trace + paths)
