r"""Stacks of layers that are scalars on the covariates: their risk is a polynomial of a spectrum.

Where residual and heads are $\mathrm{diag}(\rho I,\rho')$, $U=\mathrm{diag}(uI,0)$ and
$V=\mathrm{diag}(\alpha I,b)$, all matrices are functions of the first second moment S of the
covariates. At an eigenvalue $\lambda$ the covariates of layer l are multiplied by g and the labels
by t, and the query's label is f times the answer of the first tokens:

$$g\gets(\rho+\alpha u\lambda g^2)g,\qquad f\gets\rho'f+bu\,\lambda g^2t,\qquad
t\gets(\rho'+bu\,\lambda g^2)t$$

(summed over heads), from $g=t=1$, $f=0$. The error is $p=1-f$: gradient descent when covariates
stay (von Oswald et al. 2023; Ahn et al. 2023), GD++ when they move.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptlimit.attention import AbstractAttention
from promptlimit.depth import MOST_STEPS, wishart_spectrum
from promptlimit.tasks.regression._task import AbstractGaussianRegression


class ScalarLayer(NamedTuple):
    r"""The numbers of a layer: $\rho,\rho'$, and per head u, u', alpha, b."""

    residual: tuple[float, float]
    heads: list[tuple[float, float, float, float]]


def scalar_layers(attention: AbstractAttention) -> list[ScalarLayer] | None:
    """Return the layers where every matrix is diag(a I, a'), else None."""
    layers = []
    for layer in attention.as_layers() or (attention,):
        residual, heads = layer.residual_matrix(), layer.as_heads() or ()
        kept = (0.0, 0.0) if residual is None else _scalars(residual)
        pairs = [(_scalars(head.key_query), _scalars(head.value)) for head in heads]
        known = [(*u, *v) for u, v in pairs if u is not None and v is not None]
        if kept is None or not pairs or len(known) < len(pairs):
            return None
        layers.append(ScalarLayer(kept, known))
    return layers


def _scalars(matrix: object) -> tuple[float, float] | None:
    host = np.asarray(matrix, np.float64)
    if host.shape[0] != host.shape[1] or host.shape[0] < 2:
        return None
    scales = host[0, 0].item(), host[-1, -1].item()
    diagonal = np.append(np.full(host.shape[0] - 1, scales[0]), scales[1])
    return scales if np.array_equal(host, np.diag(diagonal)) else None


def commuting_risk(
    attention: AbstractAttention, task: AbstractGaussianRegression, length: float
) -> float | None:
    r"""Return the risk in closed form; None where layers do not commute, or too many powers meet.

    $2R=s^2+\tau^2\sum_i(\Sigma_q)_{ii}p(\lambda_i)^2$ in the limit, on the axes of $\Sigma$; at
    finite L, where $\Sigma=\lambda I$, the mean F of `promptlimit.depth` over a Wishart spectrum.
    """
    layers = scalar_layers(attention)
    if layers is None or any(head[1] for layer in layers for head in layer.heads):
        return None
    noise, prior, dim = task.noise_variance, task.prior_variance, task.token_dim - 1
    turns = np.eye(dim).reshape(1, -1)[
        :, : task.rotation_dim
    ]  # scalars feel no rotation: none is made
    sigma, query = (law.reshape(-1, dim, dim)[0] for law in task.covariances(turns))
    if math.isinf(length):
        variances, axes = np.linalg.eigh(sigma)
        loads = np.einsum("ji,jk,ki->i", axes, query, axes)
        return (noise + prior * float(loads @ (1 - _answers(layers, variances)) ** 2)) / 2
    degree, scale = _degree(layers), float(sigma[0, 0])
    isotropic = task.rotation_dim == 0 and np.array_equal(sigma, scale * np.eye(dim))
    if not isotropic or scale == 0.0 or degree > MOST_STEPS:
        return None
    spectrum = wishart_spectrum(dim, int(length), max(degree, 1))
    ridge = Fraction(noise) / (Fraction(prior) * Fraction(scale) * int(length))
    mean = spectrum.mean(ridge, 1 - _answers(layers, scale * (1 + spectrum.nodes[0])))
    return (noise + prior * float(np.trace(query)) / dim * mean) / 2


def _answers(layers: list[ScalarLayer], variances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return f after the last layer, at each eigenvalue."""
    covariates, labels = np.ones_like(variances), np.ones_like(variances)
    answers = np.zeros_like(variances)
    for (kept, kept_label), heads in layers:
        second = variances * covariates**2
        step = sum(b * u for u, _, _, b in heads) * second
        answers = kept_label * answers + step * labels
        labels = (kept_label + step) * labels
        covariates = (kept + sum(alpha * u for u, _, alpha, _ in heads) * second) * covariates
    return answers


def _degree(layers: list[ScalarLayer]) -> int:
    """Return the degree of f in the eigenvalue, at the most."""
    covariates = labels = answers = 0
    for _, heads in layers:
        second = 1 + 2 * covariates
        if any(b * u for u, _, _, b in heads):
            answers, labels = max(answers, second + labels), labels + second
        if any(alpha * u for u, _, alpha, _ in heads):
            covariates += second
    return answers
