"""Products of measures: tokens with independent blocks of coordinates."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, PRNGKeyArray

from promptlimit.measures._abstract import AbstractMeasure
from promptlimit.measures._components import require_components
from promptlimit.measures._gaussian_parts import GaussianParts, multiplied
from promptlimit.measures._variance_proxies import VarianceProxy, of_product


class Product(AbstractMeasure):
    r"""The product $\mu_1\otimes\dots\otimes\mu_n$ with $\Lambda(t) = \sum_i\Lambda_i(t_i)$.

    A token is the concatenation of independent tokens of the components, and $t_i$ is the block of
    $t$ that belongs to component $i$.

    Args:
        components: the measures $\mu_i$, of any dimensions.

    >>> import promptlimit as pl
    >>> prompt = pl.Product([pl.Gaussian([1.0], [[2.0]]), pl.Rademacher([3.0])])
    >>> print(prompt.mean, prompt.cov)
    [1. 0.] [[2. 0.]
             [0. 9.]]
    """

    components: tuple[AbstractMeasure, ...]

    def __init__(self, components: Sequence[AbstractMeasure]):
        self.components = require_components(components)

    @property
    def dim(self) -> int:
        """The dimension $d$ of a token, the sum of the dimensions of the components."""
        return sum(measure.dim for measure in self.components)

    @property
    def finite_everywhere(self) -> bool:
        """Whether the transforms of all components are finite everywhere."""
        return all(measure.finite_everywhere for measure in self.components)

    def log_laplace(self, tilt: Inexact[Array, " d"]) -> Inexact[Array, ""]:
        r"""Return $\sum_i\Lambda_i(t_i)$."""
        ends = np.cumsum([measure.dim for measure in self.components])[:-1]
        blocks = jnp.split(tilt, ends)
        transforms = [
            measure.log_laplace(block)
            for measure, block in zip(self.components, blocks, strict=True)
        ]
        return jnp.sum(jnp.stack(transforms))

    def sample(self, length: int, *, key: PRNGKeyArray) -> Float[Array, "length d"]:
        """Return `length` tokens, whose blocks are drawn from the components."""
        keys = jax.random.split(key, len(self.components))
        blocks = [
            measure.sample(length, key=own_key)
            for measure, own_key in zip(self.components, keys, strict=True)
        ]
        return jnp.concatenate(blocks, axis=1)

    def gaussian_parts(self) -> GaussianParts | None:
        """Return the combinations of one part per component.

        The result is None if a component has no Gaussian parts, or for over 4,096 combinations.
        """
        return multiplied([part.gaussian_parts() for part in self.components])

    def variance_proxy(self) -> VarianceProxy | None:
        """Return the block-diagonal matrix of the components' proxies; None if one is None."""
        return of_product([part.variance_proxy() for part in self.components])
