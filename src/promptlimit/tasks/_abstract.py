"""What every in-context task promises: prompts, a query, what is hidden of it, and a loss."""

import abc

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray

from promptlimit.measures import AbstractMeasure


class AbstractTask(eqx.Module):
    r"""An in-context task: a law over prompts $\mu$, and what is asked of each.

    The risk of an attention $T$ is $R_L=E_\mu\,E_{z_1,\dots,z_L\sim\mu}\,E_{z\sim\nu_\mu}\,
    \ell(T[\hat\mu_L](\text{masked }z),\,z)$ (section 4 of the paper, where $\nu_\mu=\mu$; other
    query laws are its Remark 4.1).

    **Your own task** takes four methods. Here each prompt has its own hidden mean, tokens scatter
    about it, and the attention, which sees nothing of the query, should guess that mean:

    >>> import jax, jax.numpy as jnp, promptlimit as pl
    >>> class HiddenMean(pl.AbstractTask):
    ...     scatter: jax.Array
    ...
    ...     @property
    ...     def token_dim(self):
    ...         return self.scatter.shape[0]
    ...
    ...     def draw(self, *, key):
    ...         mean = jax.random.normal(key, (self.token_dim,), self.scatter.dtype)
    ...         return pl.Gaussian(mean, self.scatter), pl.Gaussian(mean, 0.0 * self.scatter)
    ...
    ...     def masked(self, token):
    ...         return 0.0 * token
    ...
    ...     def loss(self, output, token):
    ...         return 0.5 * jnp.sum((output - token) ** 2)
    >>> task = HiddenMean(jnp.eye(2))
    >>> mean_of_tokens = pl.SoftmaxAttention(key_query=0 * jnp.eye(2), value=jnp.eye(2))
    >>> found = pl.risk(mean_of_tokens, task, 10, key=jax.random.key(0))
    >>> print(found.kind, abs(found.value - 0.1) < 4 * found.error)
    estimate True
    """

    @property
    @abc.abstractmethod
    def token_dim(self) -> int:
        """The dimension of a token."""

    @abc.abstractmethod
    def draw(self, *, key: PRNGKeyArray) -> tuple[AbstractMeasure, AbstractMeasure]:
        r"""Return a random prompt $\mu$, and the law $\nu_\mu$ of the token asked about."""

    @abc.abstractmethod
    def masked(self, token: Float[Array, " token_dim"]) -> Float[Array, " query_dim"]:
        """Return the query: what the attention is shown of the token asked about."""

    @abc.abstractmethod
    def loss(
        self, output: Float[Array, " output_dim"], token: Float[Array, " token_dim"]
    ) -> Float[Array, ""]:
        r"""Return $\ell(\text{output}, z)$, with the whole token $z$ in view."""
