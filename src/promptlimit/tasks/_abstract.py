"""In-context tasks as data: the law of prompts, queries and labels, and the loss."""

import abc
import contextlib
import dataclasses
from collections.abc import Generator
from numbers import Real

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from promptlimit._arrays import Number
from promptlimit._inputs import require_dimension
from promptlimit.attention import AbstractAttention
from promptlimit.errors import ArgumentError
from promptlimit.measures import AbstractMeasure, Empirical


class AbstractTask(eqx.Module):
    r"""An in-context task: a law over prompts $\mu$, a law $\nu_\mu$ of target tokens, and a loss.

    The query is computed from the target token z, for example by hiding its label. Let
    $\hat\mu_L$ be the prompt that consists of the tokens $z_1,\dots,z_L$. The risk of an attention
    $T$ over L tokens is the mean loss $R_L=E_\mu\,E_{z_1,\dots,z_L\sim\mu}\,
    E_{z\sim\nu_\mu}\,\ell(T[\hat\mu_L](\mathrm{query}(z)),\,z)$ (section 4 of the paper, where
    $\nu_\mu=\mu$; Remark 4.1 allows other $\nu_\mu$).

    **A user-defined task** implements `token_dim` and three methods. In this example each prompt
    has a hidden mean, around which its tokens scatter, and the attention should return this mean:

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
    ...     def query_of(self, token):
    ...         return 0.0 * token
    ...
    ...     def loss(self, output, token):
    ...         return 0.5 * jnp.sum((output - token) ** 2)
    >>> task = HiddenMean(jnp.eye(2))
    >>> mean_of_tokens = pl.SoftmaxAttention(key_query=0 * jnp.eye(2), value=jnp.eye(2))
    >>> found = pl.risk(mean_of_tokens, task, 10, key=jax.random.key(0))
    >>> print(found.kind, abs(found.value - 0.1) < 4 * found.error)
    estimate True

    **Optional methods**, `closed_risk` and `bayes_risk`, evaluate formulas; by default they return
    None. If a task defines `closed_risk`, its risks, their gradients, its flows and the risks that
    `sgd` records are exact. `tasks.check_task` compares the formulas with simulated prompts.

    >>> class HiddenMeanWithRisk(HiddenMean):
    ...     def closed_risk(self, attention, length):
    ...         head = attention.single_head()
    ...         if head is None or head.kernel != "softmax":
    ...             return None
    ...         V, missed = head.value, head.value - jnp.eye(self.token_dim)
    ...         return 0.5 * (jnp.sum(V @ self.scatter * V) / length + jnp.sum(missed**2))
    >>> found = pl.risk(mean_of_tokens, HiddenMeanWithRisk(jnp.eye(2)), 10)
    >>> print(found.kind, round(found.value, 12))
    exact 0.1
    """

    @property
    @abc.abstractmethod
    def token_dim(self) -> int:
        """The dimension of a token."""

    @property
    def query_dim(self) -> int:
        """The dimension of the vector that `query_of` returns."""
        with calling(self, "token_dim"):
            dim = require_dimension(self, "token_dim")
        token = jax.ShapeDtypeStruct((dim,), jnp.result_type(float))
        with calling(self, "query_of"):
            query = jax.eval_shape(self.query_of, token)
        if len(getattr(query, "shape", ())) != 1:
            raise _wrong_return(self, "query_of", "a vector, the query of a token", query)
        return query.shape[0]

    @property
    def min_output_dim(self) -> int:
        """The smallest output dimension for which the loss is defined; 1 by default."""
        return 1

    @abc.abstractmethod
    def draw(self, *, key: PRNGKeyArray) -> tuple[AbstractMeasure, AbstractMeasure]:
        r"""Return a random prompt $\mu$ and the law $\nu_\mu$ of the target token."""

    @abc.abstractmethod
    def query_of(self, token: Float[Array, " token_dim"]) -> Float[Array, " query_dim"]:
        """Return the query: the part of the target token that the attention receives."""

    @abc.abstractmethod
    def loss(
        self, output: Float[Array, " output_dim"], token: Float[Array, " token_dim"]
    ) -> Float[Array, ""]:
        r"""Return $\ell(\text{output}, z)$, where $z$ is the whole target token."""

    def draw_prompt(
        self, length: int, *, keys: Key[Array, " 3"]
    ) -> tuple[AbstractMeasure, Float[Array, " token_dim"]]:
        """Return the tokens of a prompt, as a measure, and its target token.

        By default tokens are independent draws from the first law that `draw` returns. A task
        whose tokens are not independent overrides this method; `draw` then describes only infinite
        prompts.

        Args:
            length: the length L of the prompt.
            keys: three random keys: for `draw`, for the target token and for the tokens.
        """
        law, queries = drawn(self, keys[0])
        token = queries.sample(1, key=keys[1])[0]
        return Empirical(law.sample(length, key=keys[2])), token

    def closed_risk(
        self,
        attention: AbstractAttention,  # noqa: ARG002
        length: Float[Array, ""],  # noqa: ARG002
    ) -> Float[Array, ""] | None:
        r"""Return $R_L$ by a formula that is differentiable in the attention; None by default.

        Args:
            attention: $T$; if it is one head, `attention.single_head()` returns its matrices.
            length: $L$, which may be traced by jax and may be infinite.
        """
        return None

    def bayes_risk(self, length: Number) -> float | None:  # noqa: ARG002
        """Return the smallest risk of any predictor, by a formula; None by default.

        Args:
            length: $L$, which may be infinite.
        """
        return None


@contextlib.contextmanager
def calling(task: AbstractTask, method: str) -> Generator[None]:
    """Raise an `ArgumentError` if the called method of a task makes one of two common mistakes.

    The mistakes are an operation that jax cannot trace, and a field that is a list, not an array.
    """
    name = type(task).__name__
    try:
        yield
    except (
        jax.errors.ConcretizationTypeError,
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
    ) as error:
        raise ArgumentError(
            method,
            f"of {name} must be a function that jax can trace, got {type(error).__name__}. Use "
            "jax.numpy instead of NumPy, float(...) and `if` on values.",
        ) from error
    except AttributeError as error:
        fields = [field.name for field in dataclasses.fields(task)]
        lists = [one for one in fields if isinstance(getattr(task, one, None), list | tuple)]
        field = next((one for one in lists if getattr(task, one) is error.obj), None)
        if field is None:
            raise
        raise ArgumentError(
            field,
            f"of {name} must be an array for its method `{method}`, got {type(error.obj).__name__}."
            " Declare the field with `eqx.field(converter=jnp.asarray)`.",
        ) from error


def drawn(task: AbstractTask, key: PRNGKeyArray) -> tuple[AbstractMeasure, AbstractMeasure]:
    """Return the result of `task.draw`, or raise an error if it is invalid."""
    with calling(task, "draw"):
        laws = task.draw(key=key)
    pair = isinstance(laws, tuple | list) and len(laws) == 2
    if not pair or not all(isinstance(law, AbstractMeasure) for law in laws):
        raise _wrong_return(
            task, "draw", "two measures, the law of a token and that of the target token", laws
        )
    tokens, queries = laws
    if tokens.dim != task.token_dim:
        raise ArgumentError(
            "draw",
            f"of {type(task).__name__} must return tokens of dimension {task.token_dim}, its "
            f"`token_dim`, got dimension {tokens.dim}.",
        )
    token = jax.ShapeDtypeStruct((queries.dim,), jnp.result_type(float))
    query = jax.eval_shape(task.query_of, token)
    if query.shape != (task.query_dim,):
        raise ArgumentError(
            "draw",
            f"of {type(task).__name__} must return target tokens with queries of dimension "
            f"{task.query_dim}, its `query_dim`, got dimension {query.shape[0]}.",
        )
    return tokens, queries


def loss_of(
    task: AbstractTask, output: Float[Array, " output_dim"], token: Float[Array, " token_dim"]
) -> Float[Array, ""]:
    """Return the result of `task.loss`, or raise an error if it is not one real number."""
    with calling(task, "loss"):
        loss = task.loss(output, token)
    require_real_number(task, "loss", loss)
    return jnp.asarray(loss)


def require_real_number(task: AbstractTask, method: str, value: object) -> None:
    """Raise an error unless `value`, which a method of a task returned, is one real number."""
    numeric = isinstance(value, Real) or jnp.issubdtype(
        getattr(value, "dtype", np.object_), jnp.floating
    )
    if not numeric or getattr(value, "shape", ()) != ():
        raise _wrong_return(task, method, "one real number", value)


def _wrong_return(task: AbstractTask, method: str, wanted: str, got: object) -> ArgumentError:
    words = type(got).__name__
    if isinstance(got, tuple | list):
        words = f"({', '.join(type(part).__name__ for part in got)})"
    elif (shape := getattr(got, "shape", None)) is not None:
        words = f"an array of shape {shape} and dtype {getattr(got, 'dtype', None)}"
    return ArgumentError(method, f"of {type(task).__name__} must return {wanted}, got {words}.")
