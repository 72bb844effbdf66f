"""The training protocol of the experiments of Boursier and Boyer (section 6 of their paper)."""

import functools
from typing import Any

import numpy as np

from promptlimit._inputs import require_choice
from promptlimit.measures import ar1_covariance
from promptlimit.tasks import LinearRegression, tabulate_risks

LENGTHS = (*range(10, 100, 10), *range(100, 1001, 100))
"""The prompt lengths of the experiments."""
CLAIM_LENGTHS = (10, 100, 1000, 10_000)
"""The lengths at which the claims on training compare flows and risks."""


@functools.cache
def tables_at_hand() -> None:
    """Tabulate once the functions in exact risks, at the lengths of experiments and claims."""
    tabulate_risks((*LENGTHS, *CLAIM_LENGTHS))


def protocol_task(
    name: str, dim: int = 5, correlation: float = 0.5, noise: float = 0.1
) -> LinearRegression:
    r"""Return the regression of the experiments: $w\sim N(0,I/d)$ and labels with noise.

    Args:
        name: "identity"; "kms", the Kac-Murdock-Szegő covariance $\rho^{|i-j|}$; or
            "kms-as-coded", the law that a public copy of the authors' code samples. That code
            multiplies the covariates of the prompt by the Cholesky factor twice, and those of the
            query not at all.
        dim: the dimension $d$.
        correlation: $\rho$.
        noise: the variance of the label noise.

    >>> task = protocol_task("kms-as-coded")
    >>> print(task.covariance[0, 0], task.covariance[1, 1].round(4), task.query_covariance[0, 1])
    1.0 1.433 0.0
    """
    require_choice("name", name, ("identity", "kms", "kms-as-coded"))
    settings: dict[str, Any] = {"noise_variance": noise, "prior_variance": 1.0 / dim}
    if name == "identity":
        return LinearRegression(np.eye(dim), **settings)
    sigma = ar1_covariance(dim, correlation)
    if name == "kms":
        return LinearRegression(sigma, **settings)
    factor = np.linalg.cholesky(sigma)
    return LinearRegression(factor @ sigma @ factor.T, query_covariance=np.eye(dim), **settings)
