"""The risk of an attention on an in-context task, and its gradient: asked, checked and found."""

import dataclasses
import math
from collections.abc import Sequence

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from numpy.typing import NDArray

from promptlimit._arrays import checked_lengths, numpy_only
from promptlimit._errors import ArgumentError
from promptlimit._inputs import in_double, require_choice, require_samples
from promptlimit.attention import AbstractAttention, array_names
from promptlimit.results import Kind, Risk, RiskGradient
from promptlimit.tasks._abstract import (
    REPLICATES,
    AbstractExactRisk,
    AbstractObjective,
    AbstractTask,
    Estimate,
    Lengths,
)
from promptlimit.tasks._simulation import (
    DEFAULT_SAMPLES,
    ArrayMoments,
    RiskSimulation,
    simulated_gradient,
    simulated_risk,
)
from promptlimit.tasks.regression._points import require_points


@numpy_only("Use `risk_function`, which is differentiable.")
def risk(
    attention: AbstractAttention,
    task: AbstractTask,
    lengths: Lengths,
    *,
    tolerance: float = 1e-3,
    points: int | None = None,
    key: PRNGKeyArray | None = None,
    samples: int | None = None,
    kind: str = "auto",
) -> Risk:
    r"""Return the mean loss of an attention on a task over prompts of L tokens.

    Where the task knows its `exact_risk`, no prompt is simulated. On `LinearRegression` it is half
    the mean squared error of the last output coordinate:

    | attention | length | how |
    |---|---|---|
    | linear | any | closed form |
    | softmax | infinite | the same closed form |
    | softmax | finite | mean over $(w, x_q)$; one integral where law and head are isotropic |
    | several linear heads, a residual | any | closed form |
    | heads of either kernel, a residual | infinite | the same closed form |
    | a stack of linear layers | any | mean over Wishart matrices, or closed form (scalar layers) |
    | a stack of either kernel | infinite | mean over $w$, or closed form (few dimensions) |

    Other sums of heads, and tasks that know no more than how to draw, are simulated with a `key`.
    For the risk as a function to differentiate, see `risk_function` and `risk_gradient`.

    Args:
        attention: $T$; on regressions its last output coordinate predicts.
        task: the law of prompts and queries, and the loss.
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`; one or many.
        tolerance: the relative error at which points are enough.
        points: a power of two in each of eight replicates, in place of the tolerance.
        key: randomness, where prompts are simulated.
        samples: prompts to simulate, 16384 when None.
        kind: "auto", "exact" or "estimate".

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> task = pl.LinearRegression(jnp.eye(5), noise_variance=0.1, prior_variance=0.2)
    >>> diagonal = jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    >>> head = pl.SoftmaxAttention(0.854 * jnp.diag(diagonal), 0.7789 * jnp.eye(6))
    >>> found = pl.risk(head, task, 10)
    >>> print(found.kind, f"{found.mse:.5f}")
    exact 0.70891
    >>> print(pl.risk(head, task, [10, 100]).mse.round(3))
    [0.709 0.379]
    """
    if not 0.0 < tolerance < 1.0:
        raise ArgumentError(
            "tolerance", f"must lie between 0 and 1, got {tolerance}. It is a relative error."
        )
    with jax.enable_x64(True):
        request = risk_request(
            attention, task, lengths, kind=kind, key=key, points=points, samples=samples
        )
        if request.exact is None:
            risks = [simulated_risk(one, request.samples) for one in request.simulations]
        else:
            request.tabulate(request.exact)
            risks = [
                exact.value(request.attention, tolerance=tolerance, points=request.points)
                for exact in request.exact
            ]
    return risk_at_lengths(risks, request.lengths, simulated=request.exact is None)


@numpy_only("Use `risk_function`, which is differentiable.")
def risk_gradient(
    attention: AbstractAttention,
    task: AbstractTask,
    lengths: Lengths,
    *,
    points: int = 4096,
    key: PRNGKeyArray | None = None,
    samples: int | None = None,
    kind: str = "auto",
) -> RiskGradient:
    r"""Return the gradient of `risk` in the matrices of an attention, and the error of each entry.

    Args:
        attention: $T$; all its matrices are differentiated.
        task: the law of prompts and queries, and the loss.
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`; one or many.
        points: a power of two, in each of eight replicates whose spread is the error.
        key: randomness, where prompts are simulated.
        samples: prompts to simulate, 16384 when None.
        kind: "auto", "exact" or "estimate".

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> task = pl.LinearRegression([[1.0]])
    >>> head = pl.LinearAttention(jnp.diag(jnp.array([1.0, 0.0])), jnp.diag(jnp.array([0.0, 1.0])))
    >>> found = pl.risk_gradient(head, task, 4)
    >>> print(found.kind, found.value["value"][-1])
    exact [0.  0.5]
    """
    with jax.enable_x64(True):
        request = risk_request(
            attention,
            task,
            lengths,
            kind=kind,
            key=key,
            points=points,
            samples=samples,
            slopes=True,
        )
        if request.exact is None:
            slopes = [simulated_gradient(one, request.samples) for one in request.simulations]
            samples_used = [request.samples] * len(slopes)
        else:
            request.tabulate(request.exact)
            slopes = [_exact_gradient(request.attention, exact, points) for exact in request.exact]
            sets = [0 if exact.is_closed_form else REPLICATES for exact in request.exact]
            samples_used = [points * count for count in sets]
    shape = request.lengths.shape
    names = array_names(request.attention)
    value, error = (
        {
            name: np.stack(arrays).reshape(shape + arrays[0].shape)
            for name, *arrays in zip(names, *part, strict=True)
        }
        for part in zip(*slopes, strict=True)
    )
    if not shape:
        return RiskGradient(value, error, request.kind, request.lengths.item(), samples_used[0])
    counts = np.array(samples_used).reshape(shape)
    return RiskGradient(value, error, request.kind, request.lengths, counts)


def _exact_gradient(
    attention: AbstractAttention, exact: AbstractExactRisk, points: int
) -> ArrayMoments:
    risks = exact.replicates(attention, points)
    stacked = _stacked_slopes(attention, risks.sets)
    if exact.is_closed_form:
        return [slopes[0] for slopes in stacked], [np.zeros_like(slopes[0]) for slopes in stacked]
    errors = [2 * slopes.std(axis=0, ddof=1) / math.sqrt(len(slopes)) for slopes in stacked]
    if risks.changed:
        changed = _stacked_slopes(attention, risks.changed)
        errors = [
            error + np.abs(other - slopes[0]).sum(axis=0)
            for error, other, slopes in zip(errors, changed, stacked, strict=True)
        ]
    return [slopes.mean(axis=0) for slopes in stacked], errors


def _stacked_slopes(
    attention: AbstractAttention, risks: Sequence[AbstractObjective]
) -> list[np.ndarray]:
    """Return the slopes of several risks, one array [risks, ...] per matrix."""
    rows = zip(*(_slopes(attention, risk) for risk in risks), strict=True)
    return [np.stack([np.asarray(slope) for slope in row]) for row in rows]


@eqx.filter_jit
def _slopes(attention: AbstractAttention, risk: AbstractObjective) -> list[Array]:
    """Return the slopes of a risk in all matrices; its length is an array, or compiles anew."""
    return jax.tree.leaves(eqx.filter_grad(risk)(attention))


@dataclasses.dataclass(frozen=True)
class RiskRequest:
    """One attention on one task, how its risks are had, and the numbers that steer that.

    Attributes:
        attention: what predicts, in double precision.
        task: what is asked.
        lengths: the numbers of tokens of a prompt, of any shape.
        exact: the risks, one a length, where they are had without simulation, else None.
        key: randomness, where they are simulated, else None.
        points: of quadrature, or None when a tolerance decides.
        samples: prompts to simulate.
    """

    attention: AbstractAttention
    task: AbstractTask
    lengths: NDArray[np.float64]
    exact: Sequence[AbstractExactRisk] | None
    key: PRNGKeyArray | None
    points: int | None
    samples: int

    @property
    def kind(self) -> Kind:
        """What the risks will be."""
        return kind_of(self.lengths, simulated=self.exact is None)

    def tabulate(self, exact: Sequence[AbstractExactRisk]) -> None:
        """Compute together what several lengths need."""
        finite = self.lengths[np.isfinite(self.lengths)].tolist()
        if len(finite) > 1:
            exact[0].tabulate(self.attention, finite, None)

    @property
    def simulations(self) -> list[RiskSimulation]:
        """What is simulated, one a length."""
        if self.key is None:
            raise AssertionError("prompts are simulated with a key")
        lengths = self.lengths.ravel().tolist()
        return [RiskSimulation(self.attention, self.task, n, self.key) for n in lengths]


def kind_of(lengths: Lengths, *, simulated: bool) -> Kind:
    """Return what risks at these lengths are; a curve that ends at infinity is exact."""
    if simulated:
        return "estimate"
    return "limit" if np.isinf(lengths).all() else "exact"


def risk_request(
    attention: AbstractAttention,
    task: AbstractTask,
    lengths: Lengths,
    *,
    kind: str,
    key: PRNGKeyArray | None,
    points: int | None,
    samples: int | None,
    slopes: bool = False,
) -> RiskRequest:
    """Return the request, or say what does not fit; call inside `enable_x64`.

    With `slopes`, exact risks that cannot be differentiated count as not known.
    """
    require_task(task)
    require_fitting_task("attention", attention, task)
    tokens = require_lengths(lengths)
    count = None if points is None else require_points(points)
    require_samples(samples)
    prompts = DEFAULT_SAMPLES if samples is None else int(samples)
    require_choice("kind", kind, ("auto", "exact", "estimate"))
    predictor, law = in_double(attention), in_double(task)
    if kind != "estimate":
        risks = law.exact_risks(predictor, tokens.ravel().tolist())
        if slopes:
            risks = [one if one is not None and one.is_smooth(predictor) else None for one in risks]
        exact = [risk for risk in risks if risk is not None]
        if len(exact) == len(risks):
            return RiskRequest(predictor, law, tokens, exact, None, count, prompts)
    subject = f"{type(attention).__name__} on {type(task).__name__}"
    if kind == "exact":
        raise ArgumentError(
            "kind",
            f"must be 'estimate' for {subject}, got 'exact'. "
            "The task's `exact_risk` does not know this attention.",
        )
    if key is None:
        raise ArgumentError(
            "key", f"must be given to simulate {subject}, got None. Pass key=jax.random.key(0)."
        )
    return RiskRequest(predictor, law, tokens, None, key, count, prompts)


def risk_at_lengths(
    risks: Sequence[Estimate], lengths: NDArray[np.float64], *, simulated: bool
) -> Risk:
    """Return one risk a length: arrays of the shape of the lengths, numbers for one number."""
    kind = kind_of(lengths, simulated=simulated)
    value, error, samples = (
        np.array(column).reshape(lengths.shape) for column in zip(*risks, strict=True)
    )
    if lengths.ndim == 0:
        return Risk(value.item(), error.item(), kind, lengths.item(), samples.item())
    return Risk(value, error, kind, lengths, samples)


def require_lengths(lengths: Lengths) -> NDArray[np.float64]:
    """Return one or many prompt lengths as floats of their shape, or say what is wrong."""
    tokens = checked_lengths(lengths, name="lengths")
    if tokens.size == 0:
        raise ArgumentError("lengths", "must hold at least one number, got none.")
    return tokens


def require_task(task: object) -> None:
    """Refuse what is no task."""
    if not isinstance(task, AbstractTask):
        raise ArgumentError(
            "task",
            f"must be an in-context task, got {type(task).__name__}. "
            "Make one of LinearRegression, or of your own subclass of AbstractTask.",
        )


def require_fitting_task(name: str, attention: AbstractAttention, task: AbstractTask) -> None:
    """Refuse what is no attention, or one that does not fit the task's tokens and queries."""
    if not isinstance(attention, AbstractAttention):
        raise ArgumentError(name, f"must be an attention, got {type(attention).__name__}.")
    if attention.token_dim != task.token_dim:
        raise ArgumentError(
            name,
            f"must take tokens of dimension {task.token_dim} (what the task's prompts "
            f"hold), got {attention.token_dim}.",
        )
    if attention.query_dim != task.query_dim:
        raise ArgumentError(
            name,
            f"must take queries of dimension {task.query_dim} (what the task's `query_of` "
            f"leaves of a token), got {attention.query_dim}.",
        )
