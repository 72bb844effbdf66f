"""The effect of the length of a prompt on attention weights, and temperatures that compensate."""

import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from promptlimit.results._result import Result, absolute, axis, derived, variable

TEMPERATURE_ROWS = (
    "none",
    "sqrt-log",
    "Ministral 3",
    "Llama 4",
    "SSMax",
    "Qwen log-n",
    "LongRoPE",
    "YaRN",
    "keep needle",
    "keep entropy",
)
"""The rules for the temperature that are used in practice, the mildest first, and the exact
temperatures that keep a quantity constant ("keep ...")."""


_FUNCTIONS_SHOWN = 2
"""The number of functions in the table of `ImportanceSampling`."""


class LengthStatistics(Result):
    r"""Statistics over prompts of $\ln Z$ and of the softmax weights p.

    Z is the sum of $e^s$ over the scores s of all tokens. Free tokens are random; fixed tokens are
    in every prompt.

    Attributes:
        lengths: $L$, the number of free tokens, broadcast with the other arguments of the call.
        log_partition: $E\ln Z$.
        log_partition_variance: the variance of $\ln Z$.
        entropy: $E\,H$ with the entropy $H=-\sum p\ln p$ of the weights, in nats.
        entropy_variance: the variance of $H$.
        participation: $E\,S_2$ with $S_2=\sum p^2$.
        fixed_weights: the mean weight of each fixed token, along the last axis.
        kind: "limit" if all lengths are infinite, otherwise "exact".
        relative_error: the largest measured relative error of the means; 0 for closed forms. For
            `entropy` and `log_partition` the error is relative to the largest of 1, `entropy` and
            the absolute value of `log_partition`.
        variance_relative_error: the largest measured relative error of the variances. If a fixed
            token has almost all the weight, the variances may have no correct digits.
    """

    lengths: np.ndarray = axis("length", "L", scale="log")
    log_partition: np.ndarray = variable("length")
    log_partition_variance: np.ndarray = variable("length")
    entropy: np.ndarray = variable("length")
    entropy_variance: np.ndarray = variable("length")
    participation: np.ndarray = variable("length")
    fixed_weights: np.ndarray = variable("length", "fixed")
    kind: Literal["exact", "limit"]
    relative_error: np.ndarray = variable("length")
    variance_relative_error: np.ndarray = variable("length")

    @property
    @derived("length", label="entropy H, nats")
    def value(self) -> np.ndarray:
        """The mean entropy."""
        return self.entropy

    @property
    @derived("length")
    def error(self) -> np.ndarray:
        """The error of `value`, in nats."""
        return self.errors["entropy"]

    @property
    def errors(self) -> dict[str, np.ndarray]:
        """The errors of all statistics by name, each in the units of its statistic."""
        share, variance_share = self.relative_error, self.variance_relative_error
        size = np.maximum(1.0, np.maximum(self.entropy, np.abs(self.log_partition)))
        return {
            "log_partition": absolute(share, size),
            "log_partition_variance": absolute(variance_share, self.log_partition_variance),
            "entropy": absolute(share, size),
            "entropy_variance": absolute(variance_share, self.entropy_variance),
            "participation": absolute(share, self.participation),
            "fixed_weights": absolute(share[..., None], self.fixed_weights),
        }

    @property
    @derived("length")
    def entropy_tokens(self) -> np.ndarray:
        r"""$e^{E\,H}$: the number of equal weights with the same mean entropy."""
        return np.asarray(np.exp(self.entropy))

    @property
    @derived("length")
    def effective_tokens(self) -> np.ndarray:
        r"""$n_{eff}=1/E\,S_2$: the number of equal weights with the same participation."""
        with np.errstate(divide="ignore"):
            return np.asarray(1.0 / self.participation)


class EffectiveTokens(Result):
    r"""Effective numbers of tokens of random prompts with softmax weights p.

    In importance sampling both `value` and `mean_effective_tokens` are called the effective sample
    size (ESS).

    Attributes:
        lengths: $L$, the number of tokens.
        participation: $E\,S_2$ with $S_2=\sum p^2$.
        mean_effective_tokens: $E(1/S_2)$; at least $1/E\,S_2$.
        mean_max_weight: $E\max p$; NaN if the law of the scores is given only by its transform.
        kind: "limit" if all lengths are infinite, otherwise "exact".
        relative_error: the largest measured relative error of these statistics.
    """

    lengths: np.ndarray = axis("length", "L", scale="log")
    participation: np.ndarray = variable("length")
    mean_effective_tokens: np.ndarray = variable("length")
    mean_max_weight: np.ndarray = variable("length")
    kind: Literal["exact", "limit"]
    relative_error: np.ndarray = variable("length")

    @property
    @derived("length", label="effective tokens", scale="log")
    def value(self) -> np.ndarray:
        r"""$1/E\,S_2$: the number of equal weights with the same participation."""
        with np.errstate(divide="ignore"):
            return np.asarray(1.0 / self.participation)

    @property
    @derived("length")
    def error(self) -> np.ndarray:
        """The error of `value`, in its units."""
        return absolute(self.relative_error, self.value)


class ImportanceSampling(Result):
    r"""The exact errors of self-normalised importance sampling (SNIS) with n draws.

    For draws $x_l$ with normalised weights $p_l$, the estimator of the mean $E\,f$ under the target
    is $\sum_lp_lf(x_l)$.

    Attributes:
        lengths: $n$, the number of draws.
        names: the names of the functions $f$.
        target_means: $E\,f$ under the target, [functions].
        bias: the bias of the estimator, [lengths, functions].
        standard_deviation: the standard deviation of the estimator, [lengths, functions].
        value: the sum over the functions of the mean squared error of the estimator, [lengths].
        effective_samples: $1/E\,S_2$ with $S_2=\sum_lp_l^2$, [lengths].
        mean_effective_samples: $E(1/S_2)$, [lengths].
        exponent: $\kappa$, where $E\,S_2$ falls like $n^{-\kappa}$ up to logarithms; below 1 if the
            weights have infinite variance.
        dim: the dimension of the draws.
        kind: "exact".
        error: the measured error of `value`, [lengths].
    """

    lengths: np.ndarray = axis("length", "n", scale="log", keeps=True)
    names: tuple[str, ...] = axis("function")
    target_means: np.ndarray = variable("function")
    bias: np.ndarray = variable("length", "function")
    standard_deviation: np.ndarray = variable("length", "function")
    value: np.ndarray = variable("length", label="mean squared error", scale="log")
    effective_samples: np.ndarray = variable("length")
    mean_effective_samples: np.ndarray = variable("length")
    exponent: float
    dim: int
    kind: Literal["exact"]
    error: np.ndarray = variable("length")

    def table(self) -> Iterator[dict[str, Any]]:
        """Yield one row per number of draws, with bias and deviation of the first two functions."""
        for place, draws in enumerate(self.lengths):
            row = {
                "n": float(draws),
                "1/E S2": float(self.effective_samples[place]),
                "E 1/S2": float(self.mean_effective_samples[place]),
                "mse": float(self.value[place]),
            }
            for number, name in enumerate(self.names[:_FUNCTIONS_SHOWN]):
                row[f"bias {name}"] = float(self.bias[place, number])
                row[f"sd {name}"] = float(self.standard_deviation[place, number])
            yield row

    def notes(self) -> list[str]:
        """Return whether the weights have a variance, and which functions are not in the table."""
        heavy = (
            f"The weights have no variance: E S2 falls as n^-{self.exponent:.4g}, up to logarithms."
        )
        finite = "The weights have a variance: E S2 falls as 1/n."
        notes = [finite if self.exponent == 1.0 else heavy]
        if len(self.names) > _FUNCTIONS_SHOWN:
            notes.append(
                f"{len(self.names)} functions; --json, --csv and --out have bias and standard "
                "deviation of all."
            )
        return notes


class EntropyPrediction(Result):
    r"""The mean entropy $E\,H$ at other lengths, predicted from N measured scores.

    Attributes:
        lengths: $L$, the number of free tokens.
        value: the prediction, `plug_in` minus `bias`.
        plug_in: the exact $E\,H$ of $L$ draws from the measured scores.
        bias: the bias of `plug_in`, of order $1/N$.
        naive: the measured entropy plus $\ln(L/N)$, for comparison.
        error: one standard error of the prediction.
        participation: $S_2$, the sum of squared softmax weights of the measured scores. If it is
            0.1 or more, the error is unreliable.
        kind: "estimate".
    """

    lengths: np.ndarray = axis("length", "L", scale="log")
    value: np.ndarray = variable("length", label="entropy H, nats")
    plug_in: np.ndarray = variable("length")
    bias: np.ndarray = variable("length")
    naive: np.ndarray = variable("length")
    error: np.ndarray = variable("length")
    participation: float
    kind: Literal["estimate"] = "estimate"

    @property
    @derived()
    def trusted(self) -> bool:
        """Whether $S_2<0.1$, so that `error` is reliable."""
        return self.participation < 0.1


class InverseTemperatures(Result):
    r"""Inverse temperatures b, factors on the scores that keep a quantity constant as prompts grow.

    Attributes:
        sharpness: $\sigma$, the standard deviation of the scores at $b=1$, broadcast with
            the other arguments of the call.
        lengths: $L$, the number of tokens.
        keep: the name of the quantity.
        target: the constant value of the quantity.
        value: the smallest $b$ at which the quantity has this value; NaN if no $b$ exists.
        annealed: $b$ from the annealed formula, an approximation; NaN if it has no solution.
        kind: "exact".
        error: the error of `value`; NaN if no $b$ exists.
    """

    sharpness: np.ndarray = variable("length")
    lengths: np.ndarray = axis("length", "L", scale="log")
    keep: str
    target: np.ndarray = variable("length")
    value: np.ndarray = variable("length", label="inverse temperature b")
    annealed: np.ndarray = variable("length")
    kind: Literal["exact"]
    error: np.ndarray = variable("length")

    @property
    @derived("length")
    def possible(self) -> np.ndarray:
        """Whether some $b$ keeps the quantity constant."""
        return np.asarray(np.isfinite(self.value))


class TemperatureTable(Result):
    r"""The effect of inverse temperatures b, factors on the scores, on a head as its prompts grow.

    Attributes:
        sharpness: $\sigma$, the standard deviation of the head's scores at $b=1$.
        base: the length at which the sharpness was measured; most rules have $b=1$ there.
        margin: $\Delta$, the score of the needle (the one relevant token) minus the mean score.
        lengths: $L$, the number of tokens, [n].
        names: the rules that determine $b$: `TEMPERATURE_ROWS`. A rule "keep ..." keeps a quantity
            constant.
        value: $b$, [rule, n]; NaN if no $b$ keeps the quantity constant.
        entropy: $E\,H$ of prompts without the needle, [rule, n]. `entropy`, `participation` and
            `needle` are NaN if the sharpness $b\sigma$ exceeds 40.
        participation: $E\,S_2$ of prompts without the needle, [rule, n].
        needle: the mean weight of the needle, [rule, n].
        frozen_from: the smallest length $L$, at least `base`, at which $b\sigma\ge\sqrt{2\ln L}$,
            [rule]; infinite if there is no such length, NaN for the rules "keep ...".
        kind: "exact".
        error: the error of `value`, [rule, n]; 0 unless the rule is "keep ...".
        relative_error: the largest measured relative error of the other statistics.
    """

    sharpness: float
    base: float
    margin: float
    lengths: np.ndarray = axis("length", "L", scale="log", keeps=True)
    names: tuple[str, ...] = axis("rule")
    value: np.ndarray = variable("rule", "length", label="inverse temperature b")
    entropy: np.ndarray = variable("rule", "length")
    participation: np.ndarray = variable("rule", "length")
    needle: np.ndarray = variable("rule", "length")
    frozen_from: np.ndarray = variable("rule")
    kind: Literal["exact"]
    error: np.ndarray = variable("rule", "length")
    relative_error: float

    @property
    @derived("rule", "length")
    def effective_tokens(self) -> np.ndarray:
        r"""$n_{eff}=1/E\,S_2$, [rule, n]."""
        return 1.0 / self.participation

    def table(self) -> Iterator[dict[str, Any]]:
        """Yield one row per rule, at the last length."""
        for place, name in enumerate(self.names):
            frozen = float(self.frozen_from[place])
            entropy = float(self.entropy[place, -1])
            yield {
                "rule": name,
                "factor": float(self.value[place, -1]),
                "entropy": entropy,
                "e^entropy": math.exp(entropy),
                "effective": float(self.effective_tokens[place, -1]),
                "needle": float(self.needle[place, -1]),
                "frozen from": "never" if math.isinf(frozen) else frozen,
            }

    def notes(self) -> list[str]:
        """Return the lengths, the margin, and the quantities that no temperature keeps."""
        last = self.lengths[-1]
        impossible = [
            f"No temperature keeps the {name.removeprefix('keep ')} at L = {last:g}."
            for name, value in zip(self.names, self.value[:, -1], strict=True)
            if name.startswith("keep ") and math.isnan(value)
        ]
        head = (
            f"At L = {last:g}; the factor is 1 at L = {self.base:g}, and the score of the needle "
            f"exceeds the mean by {self.margin:.6g}."
        )
        return [head, *impossible]
