"""Test problems of the claims: heads $(U,V)$, Gaussian laws of the tokens, and growing prompts."""

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Array, Float

from promptlimit._arrays import Number
from promptlimit.attention import SoftmaxAttention
from promptlimit.measures import Empirical, Gaussian


def standard_problem(
    dim: int, sharpness: float | np.floating
) -> tuple[SoftmaxAttention, Gaussian, Gaussian]:
    r"""Return the isotropic problem $U=\tau I$, $V=I$, with tokens and queries $N(0,I_d)$."""
    with jax.enable_x64(True):
        normal = Gaussian(np.zeros(dim), np.eye(dim))
        return SoftmaxAttention(float(sharpness) * np.eye(dim), np.eye(dim)), normal, normal


def generic_problem(
    sharpness: float, dim: int = 4, outputs: int = 2
) -> tuple[SoftmaxAttention, Gaussian, np.ndarray]:
    r"""Return a head, a law of the tokens and a query $z$ without symmetries.

    Nothing is random: entries are sines and cosines of whole numbers, and the covariance $\Gamma$
    of the tokens has entries $2^{-|i-j|}$. The scores have the standard deviation `sharpness`,
    $\sigma$: $\langle Uz,\Gamma Uz\rangle=\sigma^2$. The output has the dimension `outputs`.
    """
    numbers = np.arange(1.0, 1.0 + dim * dim).reshape(dim, dim)
    index = np.arange(dim)
    cov = 0.5 ** np.abs(index[:, None] - index)
    mean, query = 0.5 * np.sin(1.0 + index), np.cos(1.0 + index)
    tilt = np.sin(numbers) @ query
    key_query = sharpness / np.sqrt(tilt @ cov @ tilt) * np.sin(numbers)
    with jax.enable_x64(True):
        head = SoftmaxAttention(key_query, np.cos(numbers[:outputs]))
        return head, Gaussian(mean, cov), query


def random_parameters(
    rng: np.random.Generator, dim: int, outputs: int = 2
) -> tuple[np.ndarray, np.ndarray]:
    r"""Return $(U, V)$ with normal entries of standard deviation $1/\sqrt d$."""
    scale = dim**-0.5
    return scale * rng.normal(size=(dim, dim)), scale * rng.normal(size=(outputs, dim))


def random_gaussian(
    rng: np.random.Generator, dim: int, *, rank: int | None = None, centred: bool = False
) -> Gaussian:
    """Return a Gaussian with a random covariance of rank `rank`, and a random or zero mean."""
    factor = rng.normal(size=(dim, dim if rank is None else rank)) / dim**0.5
    mean = np.zeros(dim) if centred else rng.normal(size=dim)
    return Gaussian(mean, factor @ factor.T)


def beginning(tokens: Float[Array, "length dim"], count: int) -> Empirical:
    """Return the prompt of the first `count` tokens.

    The other tokens have the weight 0, so that all counts share one compiled program.
    """
    weights = np.zeros(len(tokens))
    weights[:count] = 1.0 / count
    return Empirical(tokens, weights)


def local_slopes(values: np.ndarray, lengths: np.ndarray | Sequence[Number]) -> np.ndarray:
    """Return log-log slopes between adjacent lengths, which are the last axis of `values`."""
    return np.diff(np.log(values)) / np.diff(np.log(np.asarray(lengths, dtype=np.float64)))


def relative_error(got: np.ndarray | Array, want: np.ndarray) -> float:
    """Return the distance between two arrays, relative to the norm of the second."""
    return float(np.linalg.norm(np.asarray(got) - want) / np.linalg.norm(want))
