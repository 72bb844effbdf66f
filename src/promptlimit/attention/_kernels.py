r"""The two kernels $r$ of a head $V\,r(\mu, Uz)$.

The softmax kernel is the tilted mean $\nabla\Lambda_\mu(t)$. The linear kernel is
$E_\mu[z'\langle z',t\rangle]$. Over Gaussian prompts both are affine in the tilt $t$.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from promptlimit._inputs import require_choice
from promptlimit.measures import AbstractMeasure, Gaussian

KernelName = Literal["softmax", "linear"]


class Kernel(NamedTuple):
    r"""A kernel: `read` returns $r(\mu,t)$.

    For a Gaussian $\mu$, `affine` returns $(G, c)$ with $r(\mu,t)=Gt+c$.
    """

    read: Callable[[AbstractMeasure, Array], Array]
    affine: Callable[[Gaussian], tuple[Array, Array]]


def read_softmax(prompt: AbstractMeasure, tilt: Float[Array, " d"]) -> Float[Array, " d"]:
    r"""Return $\nabla\Lambda_\mu(t)$, the softmax-weighted mean of the tokens."""
    return prompt.tilted_mean(tilt)


def read_linear(prompt: AbstractMeasure, tilt: Float[Array, " d"]) -> Float[Array, " d"]:
    r"""Return $E_\mu[z'\langle z',t\rangle] = \nabla^2\Lambda_\mu(0)\,t + m\langle m,t\rangle$."""
    mean, slope = jax.jvp(prompt.tilted_mean, (jnp.zeros_like(tilt),), (tilt,))
    return slope + mean * (mean @ tilt)


def affine_softmax(prompt: Gaussian) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
    r"""Return $(\Gamma, m)$: the tilted mean is $\Gamma t + m$."""
    return prompt.covariance, prompt.location


def affine_linear(prompt: Gaussian) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
    r"""Return $(\Gamma + mm^\top, 0)$, the second moment of a token and zero."""
    mean = prompt.location
    return prompt.covariance + jnp.outer(mean, mean), jnp.zeros_like(mean)


KERNELS: dict[KernelName, Kernel] = {
    "softmax": Kernel(read_softmax, affine_softmax),
    "linear": Kernel(read_linear, affine_linear),
}


def kernel_named(name: str) -> Kernel:
    """Return the kernel called "softmax" or "linear"."""
    return KERNELS[require_choice("kernel", name, KERNELS)]
