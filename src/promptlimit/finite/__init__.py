"""What L tokens do: softmax weights and attention outputs over finite prompts, exactly.

Names load on first use: the weight-statistics engine is NumPy alone, and asking for it does not
import jax.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from promptlimit.finite._accuracy import AccuracyError as AccuracyError
    from promptlimit.finite._gradient_moments import gradient_moments as gradient_moments
    from promptlimit.finite._interpolant import WeightInterpolant as WeightInterpolant
    from promptlimit.finite._interpolant import weight_interpolant as weight_interpolant
    from promptlimit.finite._prompt_moments import prompt_moments as prompt_moments
    from promptlimit.finite._simulation import UnreliableErrorWarning as UnreliableErrorWarning
    from promptlimit.finite._weight_statistics import WeightStatistics as WeightStatistics
    from promptlimit.finite._weight_statistics import weight_statistics as weight_statistics

_HOME = {
    "Array": "_array_types",
    "AccuracyError": "_accuracy",
    "UnreliableErrorWarning": "_simulation",
    "WeightInterpolant": "_interpolant",
    "WeightStatistics": "_weight_statistics",
    "gradient_moments": "_gradient_moments",
    "prompt_moments": "_prompt_moments",
    "weight_interpolant": "_interpolant",
    "weight_statistics": "_weight_statistics",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'promptlimit.finite' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"promptlimit.finite.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOME)
