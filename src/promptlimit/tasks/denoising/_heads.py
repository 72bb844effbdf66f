r"""Attentions that denoise over infinite prompts: the Bayes heads and layer, and a linear head.

Theorem 4.1 and Proposition 4.4 are those of Gabet, Boursier and Boyer.
"""

import numpy as np
from numpy.typing import NDArray

from promptlimit.attention import Layer, LinearAttention, MultiHead, SoftmaxAttention
from promptlimit.errors import ArgumentError
from promptlimit.tasks._abstract import AbstractTask
from promptlimit.tasks.denoising._task import (
    AbstractDenoising,
    Denoising,
    require_denoising,
)

_EQUAL = 1e-10
"""The relative difference up to which norms are considered equal."""

Matrices = list[tuple[NDArray[np.float64], NDArray[np.float64]]]


def bayes_heads(task: AbstractTask) -> MultiHead:
    r"""Return two heads whose sum is the Bayes predictor over an infinite prompt (Theorem 4.1).

    The task must have two components with means of equal norm, noisy prompts and $d\ge2$; the
    weights are arbitrary. Let $a=x/s$ and $\delta=m_1-m_2$, with the variance g of a clean token
    within its component, the noise variance x and $s=g+x$. Let $P$ be the orthogonal projection on
    the span of the means. Let $\Pi_i$ be the projection with $\Pi_im_i=m_i$ that maps the other
    mean $m_j$ and all vectors orthogonal to the means to zero. Head i has
    $V_i=a\,\Pi_i+\frac a2(I-P)$ and
    $U_i=\frac g{xs}I+\frac{x-g}{xs}\,m_j\delta^\top/\langle m_j,\delta\rangle$. If the means are
    opposite, they span only one dimension, and the heads have another form.

    >>> import math, promptlimit as pl
    >>> task = pl.Denoising([[3, 0], [0, 3]], [0.5, 0.5], within_variance=1, noise_variance=4)
    >>> print(pl.bayes_excess(pl.tasks.bayes_heads(task), task, math.inf).value < 1e-12)
    True
    """
    if not isinstance(task, Denoising):
        raise ArgumentError(
            "task",
            f"must be a Denoising for Theorem 4.1, got {type(task).__name__}. Its heads depend "
            "on the means; those of `bayes_layer` do not.",
        )
    _require_equal_norms(task, "Theorem 4.1")
    _require_theorem(task)
    first, second = task.means
    opposite = np.linalg.norm(first + second) <= _EQUAL * np.linalg.norm(first)
    pairs = _opposite_heads(task) if opposite else _spanning_heads(task)
    return MultiHead([SoftmaxAttention(key_query, value) for key_query, value in pairs])


def _spanning_heads(task: AbstractDenoising) -> Matrices:
    """Return (U, V) of both heads if the means span a plane."""
    g, x, s = task.within_variance, task.noise_variance, task.query_variance
    a, eye, delta = x / s, np.eye(task.token_dim), task.means[0] - task.means[1]
    dual = np.linalg.pinv(task.means).T  # <dual_i, m_j> is 1 if i = j, and 0 otherwise
    outside = eye - task.means.T @ dual
    pairs = []
    for own, other in ((0, 1), (1, 0)):
        kept = task.means[other]
        tilt = (g * eye + (x - g) * np.outer(kept, delta) / (kept @ delta)) / (x * s)
        pairs.append((tilt, a * np.outer(task.means[own], dual[own]) + 0.5 * a * outside))
    return pairs


def _opposite_heads(task: AbstractDenoising) -> Matrices:
    r"""Return (U, V) of both heads if the means are $\pm m$.

    They are $U=(I\pm ne^\top)/s$ and
    $V=\frac a2ee^\top+\frac{1-a}2(I-ee^\top)\pm\frac{g-x}{2s}en^\top$, where $e=m/|m|$, n is a unit
    vector orthogonal to e, and $a=x/s$.
    """
    g, x, s = task.within_variance, task.noise_variance, task.query_variance
    a, eye = x / s, np.eye(task.token_dim)
    e = task.means[0] / np.linalg.norm(task.means[0])
    across = eye[np.argmin(np.abs(e))]
    n = across - (across @ e) * e
    n /= np.linalg.norm(n)
    along = np.outer(e, e)
    return [
        (
            (eye + sign * np.outer(n, e)) / s,
            0.5 * (a * along + (1 - a) * (eye - along) + sign * (g - x) / s * np.outer(e, n)),
        )
        for sign in (1.0, -1.0)
    ]


def bayes_layer(task: AbstractTask) -> Layer:
    r"""Return a head and a residual equal to the Bayes predictor at $L=\infty$ (Proposition 4.4).

    All means must have equal norms. The layer is $f(z)=cz+a\,A(z)$, where A is the softmax head
    with $U=I/s$ and $V=I$. Here $a=x/s$, with the noise variance x and the variance $s=g+x$ of a
    query within its component. For prompts of noisy tokens $c=1-2a$, and for prompts of clean
    tokens $c=(g/s)^2$. The parameters of the layer do not depend on the means.

    >>> import promptlimit as pl
    >>> task = pl.Denoising([[3, 0], [0, 3]], [0.5, 0.5], within_variance=1, noise_variance=4)
    >>> f, query = pl.tasks.bayes_layer(task), [2.0, 1.0]
    >>> print(f"{f(task.token_law, query)[0]:.4f} {task.bayes(query)[0]:.4f}")
    1.9496 1.9496
    """
    mixture = require_denoising(task)
    _require_equal_norms(mixture, "Proposition 4.4")
    g, s, eye = mixture.within_variance, mixture.query_variance, np.eye(mixture.token_dim)
    a = mixture.noise_variance / s
    residual = g / s - a * mixture.token_variance / s
    return Layer(SoftmaxAttention(eye / s, a * eye), residual * eye)


def linear_denoiser(task: AbstractDenoising) -> LinearAttention:
    r"""Return the linear head closest to the Bayes predictor over infinite prompts, for any means.

    Over infinite prompts linear attention of any depth is a map $z\mapsto Az$, and by Theorem 4.1
    no such map is the Bayes predictor. The closest map has $A=E[XX^\top]E[ZZ^\top]^{-1}$, with a
    clean token X and its noisy token Z. The head has $V=I$ and $U=M^{-1}A$, where $M$ is the second
    moment of a prompt token.

    >>> import math, promptlimit as pl
    >>> task = pl.Denoising([[3, 0], [0, 3]], [0.5, 0.5], within_variance=1, noise_variance=4)
    >>> print(f"{pl.bayes_excess(pl.tasks.linear_denoiser(task), task, math.inf).mse:.4f}")
    1.6415
    """
    require_denoising(task)
    eye = np.eye(task.token_dim)
    between = (task.means.T * task.weights) @ task.means
    clean, noisy = between + task.within_variance * eye, between + task.query_variance * eye
    nearest = np.linalg.solve(noisy, clean).T
    tokens = between + task.token_variance * eye
    return LinearAttention(np.linalg.pinv(tokens, hermitian=True) @ nearest, eye)


def _require_equal_norms(task: AbstractDenoising, theorem: str) -> None:
    norms = np.linalg.norm(task.means, axis=1)
    if np.ptp(norms) > _EQUAL * norms.max():
        raise ArgumentError(
            "task",
            f"must have means of equal norms for {theorem}, got norms from "
            f"{norms.min():.6g} to {norms.max():.6g}.",
        )


def _require_theorem(task: Denoising) -> None:
    if task.weights.size != 2:
        raise ArgumentError(
            "task",
            f"must have two components for Theorem 4.1, got {task.weights.size}. "
            "`bayes_layer` accepts any number of equal norm.",
        )
    if task.clean_prompt or task.noise_variance == 0.0 or task.token_dim == 1:
        wrong = (
            "clean prompts" if task.clean_prompt
            else "noise_variance 0" if task.noise_variance == 0.0
            else "dimension 1"
        )  # fmt: skip
        raise ArgumentError(
            "task",
            "must have noisy prompts in two dimensions or more for Theorem 4.1, got "
            f"{wrong}. `bayes_layer`, which has a residual, accepts it.",
        )
    if not np.any(task.means[0] != task.means[1]):
        raise ArgumentError("task", "must have two different means for Theorem 4.1, got one twice.")
