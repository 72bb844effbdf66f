r"""The best layer $f_L(z)=cz+vA_L(z)$ for denoising a Gaussian mixture, at each prompt length L.

$A_L$ is the output of a softmax head with $U=(u/s)I$ and $V=I$, where $s$ is the variance of a
query within its component and $u$ is the inverse temperature, which the code calls `gate`. The
excess is the mean squared error minus that of the Bayes predictor $f^*$. At a given u it is
quadratic in $(v,c)$, so the best $(v,c)$ solves a linear system. A search finds u.

Let $a=x/s$, with $x$ the noise variance. At infinite length, for noisy prompts and means of equal
norm, the layer with $u=1$, $v=a$ and $c=1-2a$ is the Bayes predictor (Gabet, Boursier and Boyer,
Proposition 4.4). For finite prompts the best u is usually smaller.
"""

import math

import jax
import numpy as np
from scipy.optimize import fminbound

from promptlimit._arrays import Array, numpy_only
from promptlimit.errors import ArgumentError
from promptlimit.results import TunedLayers
from promptlimit.tasks._problem import Lengths, require_lengths
from promptlimit.tasks.denoising._prompts import (
    QueryRule,
    TiltedHeads,
    head_moments,
    prompt_excess,
    query_rule,
)
from promptlimit.tasks.denoising._task import (
    AbstractDenoising,
    require_denoising,
)
from promptlimit.weights import SHARPEST

_COARSE, _FINE = 0.8, 0.5
_FIRST_GATES = (0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.6)
"""Inverse temperatures u that the search compares first. The result is in their range."""
LARGEST_GATE = _FIRST_GATES[-1]

_NEAR = 0.004
"""Distance in u between the three points of the parabola whose minimum refines the search."""


@numpy_only("Call it outside the compiled function and pass its result.")
def best_layer(task: AbstractDenoising, lengths: Lengths) -> TunedLayers:
    r"""Return the layer $cz+vA_L(z)$ with the smallest risk at each length, and its excess.

    $A_L$ is the output of a softmax head with tilt $(u/s)z$, where $s$ is the variance of a query
    within its component. The result contains the inverse temperature u, the gain v, the residual c
    and the excess over the Bayes risk, computed without simulation. The search covers u from 0 to
    1.6; in one dimension the best u can exceed 1.6.

    The layer commutes with rotations, so `InContextDenoising` and `Denoising` have the same best
    layer.

    Args:
        task: the denoising task, which provides the mixture.
        lengths: one or several prompt lengths $L$, whole numbers from 1 to 1e30 or `math.inf`. Each
            length takes seconds, or half a minute for three components in more than two dimensions.

    >>> import math, promptlimit as pl
    >>> task = pl.Denoising([[3, 0], [0, 3]], [0.5, 0.5], within_variance=1, noise_variance=4)
    >>> best = pl.best_layer(task, math.inf)
    >>> print(f"{best.inverse_temperature:.2f} {best.gain:.2f} {best.residual:.2f}")
    1.00 0.80 -0.60
    """
    require_denoising(task)
    tokens = require_lengths(lengths)
    with jax.enable_x64(True):
        rows = [_best(task, float(length)) for length in tokens.ravel()]
    columns = (np.array(column).reshape(tokens.shape) for column in zip(*rows, strict=True))
    gate, gain, residual, mse, error = (
        column if tokens.ndim else column.item() for column in columns
    )
    return TunedLayers(
        lengths=tokens if tokens.ndim else tokens.item(),
        inverse_temperature=gate,
        gain=gain,
        residual=residual,
        value=0.5 * mse,
        error=0.5 * error,
        kind="limit" if np.isinf(tokens).all() else "exact",
        query_variance=task.query_variance,
        dim=task.token_dim,
    )


def _best(task: AbstractDenoising, length: float) -> tuple[float, float, float, float, float]:
    """Return u, v, c, the excess and its error at one length."""
    coarse, fine = (_scalar_rule(task, step, length) for step in (_COARSE, _FINE))

    def excess(gate: float, rule: QueryRule = coarse) -> float:
        return _solved(task, gate, length, rule)[2]

    gates = _gates_in_reach(task, coarse)
    place = int(np.argmin([excess(gate) for gate in gates]))
    low, high = gates[max(place - 1, 0)], gates[min(place + 1, len(gates) - 1)]
    gate = float(np.asarray(fminbound(excess, low, high, xtol=1e-5)))
    width = min(_NEAR, 0.5 * gate)
    below, at, above = (excess(near, fine) for near in (gate - width, gate, gate + width))
    bend = below - 2 * at + above
    if bend > 0.0:
        gate += float(np.clip(0.5 * width * (below - above) / bend, -width, width))
    gain, residual, _ = _solved(task, gate, length, fine)
    heads = _scalar_heads(task, gate, gain, residual)
    mse, error = prompt_excess(task, heads, np.array([length]), fine)
    return gate, gain, residual, float(mse[0]), float(error[0])


def _gates_in_reach(task: AbstractDenoising, rule: QueryRule) -> tuple[float, ...]:
    """Return those of `_FIRST_GATES` whose sharpness is in the supported range at every query."""
    farthest = float(np.linalg.norm(rule.points, axis=1).max())
    sharpness = math.sqrt(task.token_variance) * farthest / task.query_variance
    gates = tuple(gate for gate in _FIRST_GATES if gate * sharpness <= 0.6 * SHARPEST)
    if gates[-1] < 1.0:
        raise ArgumentError(
            "task",
            "must have means within about fifteen standard deviations of a query from 0, got one "
            f"at {np.linalg.norm(task.means, axis=1).max() / math.sqrt(task.query_variance):.3g}. "
            "Such components are separated without a tuned gate: use `bayes_layer`.",
        )
    return gates


def _scalar_heads(
    task: AbstractDenoising, gate: float, gain: float, residual: float
) -> TiltedHeads:
    eye = np.eye(task.token_dim)
    tilt = gate / task.query_variance * eye
    return TiltedHeads(tilt[None], gain * eye[None], residual * eye)


def _scalar_rule(task: AbstractDenoising, step: float, length: float) -> QueryRule:
    return query_rule(task, _scalar_heads(task, 1.0, 1.0, 1.0), step, length)


def _solved(
    task: AbstractDenoising, gate: float, length: float, rule: QueryRule
) -> tuple[float, float, float]:
    r"""Return the best v and c at the inverse temperature `gate`, and their excess.

    Let $A$ be the limit of $A_L$, and let $b=E[A_L-A]$ and $n=E|A_L-A|^2$ be means over prompts at
    one query. Write $v=v_0+\delta_v$ and $c=c_0+\delta_c$ with $v_0=a$ and $c_0=1-2a$. The excess
    is the mean over queries of
    $|r+\delta_vA+\delta_cz|^2+2v\langle r+\delta_vA+\delta_cz,b\rangle+v^2n$, where
    $r=c_0z+v_0A-f^*$. If the best layer is close to the Bayes layer, r is small, so no large
    numbers cancel.
    """
    eye, share = np.eye(task.token_dim), task.noise_variance / task.query_variance
    tilt = gate / task.query_variance * eye
    moments = head_moments(task, tilt, eye, np.array([length]), rule.points)
    limit, bias, spread = moments.limit, moments.bias[:, 0], moments.square[:, 0]
    start = np.array([share, 1.0 - 2.0 * share])
    outputs = start[0] * limit + start[1] * rule.points
    missed = outputs - task.bayes_predictions(rule.points)

    def mean(left: Array, right: Array) -> float:
        return float(rule.weights @ np.sum(left * right, axis=1))

    design = (limit, rule.points)
    drift = np.array([mean(column, bias) for column in design])
    square = np.array([[mean(x, y) for y in design] for x in design])
    noise = float(rule.weights @ spread)
    # Half the Hessian and half the gradient in (delta_v, delta_c), at delta_v = delta_c = 0.
    hessian = square + np.array([[2.0 * drift[0] + noise, drift[1]], [drift[1], 0.0]])
    slope = np.array([mean(missed, column) for column in design]) + start[0] * drift
    slope[0] += mean(missed, bias) + start[0] * noise
    change = -np.linalg.lstsq(hessian, slope, rcond=1e-13)[0]
    level = mean(missed, missed) + 2.0 * start[0] * mean(missed, bias) + start[0] ** 2 * noise
    excess = level + change @ hessian @ change + 2.0 * slope @ change
    gain, residual = start + change
    return float(gain), float(residual), float(excess)
