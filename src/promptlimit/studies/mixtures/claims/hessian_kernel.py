"""Claim 9: the kernel of the Hessian is the tangent space where r = 0 and s ≠ 0."""

from collections.abc import Sequence

import numpy as np

from promptlimit._arrays import Array
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.mixtures._discrimination import (
    C1,
    THREE,
    Classes,
    nullity,
    without_gain,
)

_COUNT = (
    "a count; a cut at $10^{-9}$ separates eigenvalues of $10^{-3}$ and more from rounding error"
)


def _tangent_dim(classes: Classes, theta: Array) -> float:
    """Return d² + 2d + 1 less the rank of the derivative of (w, b, r)."""
    equations = classes.jacobian(theta)[: classes.dim + 2]
    return theta.size - float(np.linalg.matrix_rank(equations, tol=1e-10))


def _shut_gate(classes: Classes) -> Array:
    """Return the same head with s = 0."""
    theta, d = without_gain(classes), classes.dim
    U = classes.split(theta)[0]
    theta[d * d : -d - 1] = -U @ classes.difference / 2.0
    return theta


def decide(setting: Setting) -> Sequence[Check]:  # nothing is random
    """Return dimensions in two and three dimensions."""
    checks = []
    for classes in (C1, THREE):
        d, theta = classes.dim, without_gain(classes)
        kernel = nullity(classes, theta)
        checks += [
            Check(
                f"$d = {d}$: difference between the dimension of the kernel and $d^2 + d - 1$",
                abs(kernel - d * d - d + 1),
                "<=",
                0.0,
                basis=_COUNT,
            ),
            Check(
                f"$d = {d}$: difference between the dimensions of the kernel and of the tangent "
                "space",
                abs(kernel - _tangent_dim(classes, theta)),
                "<=",
                0.0,
                basis=_COUNT,
            ),
        ]
    shut = nullity(C1, _shut_gate(C1)) - 5
    further = Check(
        "additional dimensions of the kernel at $s = 0$",
        shut,
        ">=",
        1.0,
        role="control",
        basis=_COUNT,
    )
    return [*checks, further]


CLAIM = Claim(
    number=9,
    name="hessian-kernel",
    statement=r"At minimisers with $r = 0$ and $s \ne 0$ (effective coordinates of claim 3), the "
    "kernel of the Hessian is the tangent space of the set of minimisers. Its dimension is "
    "$d^2 + d - 1$.",
    reference="Theorem 3.5, first part",
    decide=decide,
)
