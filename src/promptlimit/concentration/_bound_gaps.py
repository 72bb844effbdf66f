r"""Proved bounds on gaps, averaged over queries.

A gap is the mean squared distance between an output, or a gradient, over a finite prompt and its
limit. Let $\hat m$ and $\hat C$ be the mean and the covariance of the tokens under the softmax
weights at the tilt $Uz$. The gap of an output, or of the gradient in a value matrix, depends on the
prompt through $V\hat m$. The gap of the gradient in a score matrix depends on $K\hat CV^\top$, with
V and K of `HeadProblem`. The gap does not change if all tokens are shifted, or if they are divided
by s and U, V and K are multiplied by s. So tokens can be made centred and 1-sub-Gaussian: Gaussian
tokens are whitened, and others are divided by their sub-Gaussian constant. Derived in
docs/bounds.md.
"""

import dataclasses

import numpy as np

from promptlimit._arrays import Array
from promptlimit.concentration._bounds import covariance_bound, mean_bound, output_bound
from promptlimit.concentration._sharpness_law import Product, over_queries, require_within_reach
from promptlimit.finite import Problem, first_obstacle
from promptlimit.rules import unwrap

_TOLERANCE = 1e-3
"""The relative error at which the quadrature over Gaussian queries stops.

If the quadrature is not exact, at least this share of the average is added to it, so that the sum
is an upper bound.
"""


@dataclasses.dataclass(frozen=True)
class _Reduced:
    r"""The problem with tokens that are centred and 1-sub-Gaussian.

    The bound on the gap at a query is `scale` times `size` times a bound on $E|\hat m-m|^2$ or
    $E\|\hat C-C\|_F^2$, where m and C are the limits of $\hat m$ and $\hat C$.

    Attributes:
        dim: the rank of the covariance for Gaussian tokens, otherwise their dimension; at least 1.
        transform: the key-query matrix for the transformed tokens.
        scale: a factor that does not depend on the query.
        size: $|Fz|^2$ with the matrix F of `HeadProblem`, as a product of one quadratic form of the
            query; without F, the empty product, which is 1.
        of_covariance: whether $\hat C-C$ is bounded instead of $\hat m-m$.
    """

    dim: int
    transform: Array
    scale: float
    size: Product
    of_covariance: bool

    def at_sharpness(self, sharpness: Array, lengths: Array) -> Array:
        """Return the bound divided by `size`, [n, lengths], at the sharpness |`transform` z|."""
        bound = covariance_bound if self.of_covariance else mean_bound
        return self.scale * bound(
            lengths, dim=self.dim, sub_gaussian=1.0, tilt_norm=sharpness[:, None]
        )


def bound_obstacle(problem: Problem) -> str | None:
    """Return why no bound is available, or None."""
    reading, queries = problem.compared_head, problem.queries
    of_means = reading is not None and reading.left is None
    averaged = queries.is_known or (of_means and queries.sub_gaussian is not None)
    measure = type(problem.measure).__name__
    return first_obstacle(
        (reading is None, problem.no_head_reason),
        (problem.is_linear, "it is not a softmax head"),
        (problem.including_query, "the query is a token"),
        (
            problem.tail_constant is None,
            f"no variance proxy is known for {measure} tokens (pass sub_gaussian=s with "
            "E exp<a, z - mean> <= exp(s^2 |a|^2 / 2))",
        ),
        (not averaged, f"no sub-Gaussian constant is known for {queries.name}"),
    )


def bound_gap(problem: Problem) -> Array:
    """Return an upper bound on the gap at every length.

    If the law of the query is a mixture of points and Gaussians, the bound at one query is averaged
    over this law, and the error of the quadrature is added. For other centred queries the result is
    `output_bound` with their sub-Gaussian constant.
    """
    reduced, queries, lengths = _reduced(problem), problem.queries, problem.lengths
    if reduced.scale == 0.0:
        return np.zeros(lengths.size)
    if not queries.is_known:
        return _proposition(reduced, problem)

    def integrand(sharpness: Array, size: Array) -> Array:
        return size[0][:, None] * reduced.at_sharpness(sharpness, lengths)

    def log_size(sharpness: Array) -> Array:
        """Return the logarithm of the bound divided by `size`, as `over_queries` requires."""
        with np.errstate(divide="ignore"):
            return np.log(reduced.at_sharpness(sharpness, lengths))

    average = queries, reduced.transform, (reduced.size,), integrand, log_size
    value, error = over_queries(*average, tolerance=_TOLERANCE, largest_error=np.inf)
    return value + np.where(error > 0.0, np.maximum(error, _TOLERANCE * value), 0.0)


def _reduced(problem: Problem) -> _Reduced:
    read = unwrap(problem.compared_head)
    root = unwrap(problem.tail_constant) * np.eye(problem.measure.dim)
    if problem.gaussian is not None:
        root = problem.gaussian.root()
    scale = _norm(read.value @ root) ** 2
    if read.left is not None:
        scale *= _norm(read.left @ root) ** 2
    return _Reduced(
        dim=max(1, int(np.linalg.matrix_rank(root))),
        transform=root @ read.key_query,
        scale=scale,
        size=() if read.factor is None else (read.factor.T @ read.factor,),
        of_covariance=read.left is not None,
    )


def _norm(matrix: Array) -> float:
    return float(np.linalg.norm(matrix, ord=2))


def _proposition(reduced: _Reduced, problem: Problem) -> Array:
    """Return the bound over sub-Gaussian queries by `output_bound` (Prop. 3.1 of the paper)."""
    norm = unwrap(problem.queries.sub_gaussian) * _norm(reduced.transform)
    require_within_reach(np.array(norm))
    return reduced.scale * output_bound(
        problem.lengths, dim=reduced.dim, sub_gaussian=1.0, key_query_norm=norm, value_norm=1.0
    )
