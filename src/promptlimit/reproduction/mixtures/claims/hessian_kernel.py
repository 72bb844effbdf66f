"""Claim 9: the kernel of the Hessian is the tangent space where r = 0 and s ≠ 0."""

from collections.abc import Sequence

import numpy as np

from promptlimit._arrays import Array
from promptlimit.reproduction import Check, Claim, Setting
from promptlimit.reproduction.mixtures._discrimination import (
    C1,
    THREE,
    Classes,
    nullity,
    without_gain,
)

_COUNT = "a count; 1e-9 parts eigenvalues of 1e-3 and more from rounding"


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


def decide(setting: Setting) -> Sequence[Check]:  # noqa: ARG001  # nothing is random
    """Return dimensions in two and three dimensions."""
    checks = []
    for classes in (C1, THREE):
        d, theta = classes.dim, without_gain(classes)
        kernel = nullity(classes, theta)
        checks += [
            Check(
                f"kernel less d² + d - 1, d = {d}",
                abs(kernel - d * d - d + 1),
                "<=",
                0.0,
                basis=_COUNT,
            ),
            Check(
                f"kernel less tangent space, d = {d}",
                abs(kernel - _tangent_dim(classes, theta)),
                "<=",
                0.0,
                basis=_COUNT,
            ),
        ]
    shut = nullity(C1, _shut_gate(C1)) - 5
    further = Check("further dimensions at s = 0", shut, ">=", 1.0, role="control", basis=_COUNT)
    return [*checks, further]


CLAIM = Claim(
    number=9,
    name="hessian-kernel",
    statement="At minimisers with r = 0 and s ≠ 0 the kernel of the Hessian is the tangent space "
    "of the minimisers, of dimension d² + d - 1.",
    reference="Theorem 3.5, first part",
    decide=decide,
)
