r"""Moments over prompts of the log-partition function, the entropy and the weights.

A prompt has L free tokens with independent scores s and fixed tokens with the scores $s_f$. $Z$ is
the sum of $e^s$ over all tokens, $p_l=e^{s_l}/Z$ are the weights, and $H=\sum_lp_l(\ln Z-s_l)$ is
the entropy. Let $t=s+u$ and $x=e^t$ for a free token, $\varphi=E\,e^{-x}$,
$F_k[f]=E[f\,x^ke^{-x}]$, $t_f=s_f+u$ and $\chi=\exp(-\sum_fe^{t_f})$. Let $\gamma$ be Euler's
constant, and for any centre c let $v=u+c$ and $I_k=\int v^k(\chi\varphi^L-e^{-e^v})du$. Then

    E ln Z = c - I_0,        Var ln Z = 2 (I_1 + gamma I_0) - I_0^2,
    E H    = -int { L F_1[t + gamma] / phi + sum_f (t_f + gamma) e^{t_f} } chi phi^L du.

In the annealed limit $Z$ is equal to $E\,Z$. Near this limit c is $\ln E\,Z$. Then
$\chi\varphi^L-e^{-e^v}=e^{-e^v}(e^{L\eta}-1)$ with $\eta$ of `PartitionMeans`, which is computed
without cancellation. Derived in docs/lengths.md.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import Array
from promptlimit.weights import STEP, PartitionMeans, by_rules, rule_error

_EULER = 0.57721566490153286061
_PSI_1, _PSI_2, _TRIGAMMA_2 = -_EULER, 1.0 - _EULER, 0.64493406684822643647
_SPREAD = 0.1
r"""A prompt is near its annealed limit if $L\eta$ is below this number at $u=-\ln E\,Z$."""

_LARGEST_EXPONENT = 300.0


@dataclasses.dataclass(frozen=True)
class PromptStatistics:
    """Statistics of n prompts, [n] each, and their errors.

    Attributes:
        log_partition: the mean of ln Z.
        log_partition_variance: the variance of ln Z.
        entropy: the mean of H.
        entropy_variance: the variance of H.
        participation: the mean sum of squared weights.
        fixed_weights: the mean weights of the fixed tokens, [n, f].
        error: the largest measured relative error of the means.
        variance_error: the largest relative rounding error of the two variances.
    """

    log_partition: Array
    log_partition_variance: Array
    entropy: Array
    entropy_variance: Array
    participation: Array
    fixed_weights: Array
    error: Array
    variance_error: Array

    def put(self, at: NDArray[np.int64], some: "PromptStatistics") -> None:
        """Replace the statistics of the prompts with these indices."""
        for field in dataclasses.fields(self):
            getattr(self, field.name)[at] = getattr(some, field.name)


def prompt_statistics(scores: PartitionMeans, lengths: Array, fixed: Array) -> PromptStatistics:
    r"""Return the statistics of n prompts with lengths L, [n], and fixed scores, [n, f]."""
    prompts = _Prompts(scores, lengths, fixed)
    moments = prompts.partition()
    entropy, square, plain_size = prompts.entropy()
    again, centred, centred_size = prompts.centred_entropy(moments, entropy)
    plain = plain_size < centred_size
    entropy_variance = np.maximum(np.where(plain, square - entropy**2, centred), 0.0)
    participation = prompts.integral(prompts.squares)
    rounding = np.interp(-moments.centre, scores.u, scores.rounding)
    log_partition = moments.centre + moments.mean
    errors = [
        np.abs(prompts.integral(prompts.masses) - 1.0),
        rule_error(by_rules(prompts.left, prompts.squares), participation) / participation,
        rule_error(by_rules(prompts.left, prompts.masses), np.ones(lengths.size)),
        np.abs(again - entropy) / np.maximum(1.0, np.maximum(entropy, np.abs(log_partition))),
    ]
    variance_errors = [
        rounding * _share(moments.size, moments.variance),
        rounding * _share(np.minimum(plain_size, centred_size), entropy_variance),
    ]
    return PromptStatistics(
        log_partition,
        np.maximum(moments.variance, 0.0),
        np.maximum(entropy, 0.0),
        entropy_variance,
        participation,
        prompts.fixed_weights(),
        np.max(errors, axis=0),
        np.max(variance_errors, axis=0),
    )


def _share(size: Array, value: Array) -> Array:
    """Return size / value, or zero if the value is zero."""
    return np.divide(size, value, out=np.zeros_like(size), where=value != 0.0)


@dataclasses.dataclass(frozen=True)
class _PartitionMoments:
    r"""Moments of $Y=\ln Z-c$ for n prompts, [n] each, and the constants of their computation.

    Attributes:
        centre: c.
        mean: $E\,Y$.
        second: $E\,Y^2$.
        size: the sum of the absolute values of the terms of the variance of Y.
        spread: whether a prompt is near its annealed limit, and c is $\ln E\,Z$.
        mean_score: the mean of the scores under the annealed weights $e^s/E\,Z$.
    """

    centre: Array
    mean: Array
    second: Array
    size: Array
    spread: NDArray[np.bool_]
    mean_score: Array

    @property
    def variance(self) -> Array:
        """The variance of ln Z."""
        return self.second - self.mean**2


class _Prompts:
    """Integrands, [n, u], for n prompts with different lengths and fixed scores."""

    def __init__(self, scores: PartitionMeans, lengths: Array, fixed: Array):
        self.scores, self.lengths, self.fixed = scores, lengths[:, None], fixed
        u = scores.u
        self.fixed_t = fixed[:, None, :] + u[:, None]
        self.fixed_x = np.exp(np.minimum(self.fixed_t, _LARGEST_EXPONENT))
        self.fixed_mass = self.fixed_x.sum(axis=2)
        self.log_left = self.lengths * scores.log_phi - self.fixed_mass
        self.left = 2.0 * STEP * np.exp(self.log_left)
        self.phi = np.exp(scores.log_phi)
        self.mass = scores.mass / self.phi
        self.masses = self.lengths * self.mass + self.fixed_mass
        self.squares = self.lengths * (scores.square / self.phi) + (self.fixed_x**2).sum(axis=2)

    def integral(self, integrand: Array) -> Array:
        r"""Return $\int f\chi\varphi^Ldu$, [n]."""
        return 0.5 * np.einsum("nu,nu->n", self.left, integrand)

    def fixed_weights(self) -> Array:
        r"""Return $\int e^{s_f+u}\chi\varphi^Ldu$, [n, f]."""
        return 0.5 * np.einsum("nu,nuf->nf", self.left, self.fixed_x)

    def partition(self) -> _PartitionMoments:
        r"""Return the moments of $\ln Z-c$.

        Near the annealed limit, c is $\ln E\,Z$; otherwise $\chi\varphi^L=1/e$ at u = -c.
        """
        scores, u = self.scores, self.scores.u
        log_free = np.log(self.lengths[:, 0]) + scores.log_mean
        annealed = np.logaddexp.reduce(np.column_stack([log_free, self.fixed]), axis=1)
        excess = self.lengths * scores.excess
        there = np.array([np.interp(-c, u, row) for c, row in zip(annealed, excess, strict=True)])
        spread = there < _SPREAD
        middle = [np.interp(1.0, -row, u) for row in np.minimum.accumulate(self.log_left, axis=1)]
        centre = np.where(spread, annealed, -np.array(middle))
        v = u + centre[:, None]
        reference = np.exp(-np.exp(np.minimum(v, _LARGEST_EXPONENT)))
        plain = np.exp(self.log_left) - reference
        close = spread[:, None] & (excess < 1.0)  # the two terms of `plain` would cancel
        difference = np.where(close, reference * np.expm1(np.minimum(excess, 1.0)), plain)
        difference = STEP * difference
        zeroth = difference.sum(axis=1)
        terms = 2.0 * (v + _EULER) * difference
        second = terms.sum(axis=1)
        shares = np.exp(np.column_stack([log_free, self.fixed]) - annealed[:, None])
        levels = np.column_stack([np.full(len(shares), scores.tilted_mean), self.fixed])
        return _PartitionMoments(
            centre,
            -zeroth,
            second,
            np.abs(terms).sum(axis=1) + np.where(spread, 0.0, 1.0),
            spread,
            (shares * levels).sum(axis=1),
        )

    def entropy(self) -> tuple[Array, Array, Array]:
        r"""Return $E\,H$, $E\,H^2$ and the sum of the absolute values of the terms of $E\,H^2$.

        With $\psi_2$ and $\psi_2'$ the digamma and trigamma functions at 2, $a=F_1[1]/\varphi$,
        $e=F_1[\psi_2-t]/\varphi$, $M=La+\sum_fe^{t_f}$ and $S=\sum_f(\psi_2-t_f)e^{t_f}$, $E\,H^2$
        is the integral over u of $\chi\varphi^L$ times
        $L(F_2[(\psi_2-t)^2-\psi_2']/\varphi-e^2+\psi_2'a^2)+(Le+S)^2-\psi_2'M^2$.
        """
        scores, phi, lengths = self.scores, self.phi, self.lengths
        log_mass = scores.log_mass / phi
        by_fixed = (self.fixed_t * self.fixed_x).sum(axis=2)
        first = lengths * (_PSI_1 * self.mass - log_mass) + _PSI_1 * self.fixed_mass - by_fixed
        one = _PSI_2 * self.mass - log_mass
        polynomial = (
            (_PSI_2**2 - _TRIGAMMA_2) * scores.square
            - 2.0 * _PSI_2 * scores.log_square
            + scores.log_squares
        )
        square = (lengths * one + _PSI_2 * self.fixed_mass - by_fixed) ** 2
        diagonal = lengths * (polynomial / phi - one**2 + _TRIGAMMA_2 * self.mass**2)
        noise = _TRIGAMMA_2 * self.masses**2
        value = self.integral(square + diagonal - noise)
        size = self.integral(square + np.abs(diagonal) + noise)
        return self.integral(first), value, size

    def centred_entropy(
        self, moments: _PartitionMoments, entropy: Array
    ) -> tuple[Array, Array, Array]:
        r"""Return the mean and variance of H, and the sum of the absolute terms of the variance.

        $H=c-m+Y-W$ with $Y=\ln Z-c$ and $W=\sum_lp_l(s_l-m)$. Near the annealed limit m is
        `moments.mean_score`; otherwise it is $E\ln Z-E\,H$. Let $b=F_1[s-m]/\varphi$ and
        $G=Lb+\sum_fe^{t_f}(s_f-m)$. Then $E\,W$, $E\,W^2$ and $E\,YW$ are the integrals over u of
        $\chi\varphi^L$ times $G$, $L(F_2[(s-m)^2]/\varphi-b^2)+G^2$ and $-(v+\gamma)G$. Near the
        annealed limit $G=LF_1[s-\Lambda']/\varphi-(\Lambda'-m)L\eta'$ has no terms that cancel.
        """
        scores, phi, lengths = self.scores, self.phi, self.lengths
        energy = moments.centre + moments.mean - entropy
        level = np.where(moments.spread, moments.mean_score, energy)[:, None]
        off = scores.tilted_mean - level
        drift = scores.drift / phi
        apart = self.fixed - level
        by_fixed = np.einsum("nuf,nf->nu", self.fixed_x, apart)
        plain = lengths * (drift + off * self.mass) + by_fixed
        whole = np.where(moments.spread[:, None], lengths * (drift - off * scores.slope), plain)
        spread = (scores.spread + 2.0 * off * scores.lean + off**2 * scores.square) / phi
        own = lengths * (spread - (drift + off * self.mass) ** 2)
        v = scores.u + moments.centre[:, None]
        mean = self.integral(whole)
        square = self.integral(own + whole**2)
        cross_terms = -(v + _EULER) * whole
        cross = self.integral(cross_terms)
        size = moments.size + square + 2.0 * self.integral(np.abs(cross_terms))
        change = moments.mean - mean
        variance = moments.second - 2.0 * cross + square - change**2
        return moments.centre - level[:, 0] + change, variance, size
