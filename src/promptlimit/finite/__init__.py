"""What L tokens do: softmax weights and attention outputs over finite prompts, exactly.

Names load on first use: the weight-statistics engine is NumPy alone, and asking for it does not
import jax.
"""

from typing import TYPE_CHECKING

from promptlimit._lazy import lazy_names

if TYPE_CHECKING:
    from promptlimit.finite._accuracy import AccuracyError as AccuracyError
    from promptlimit.finite._array_types import Array as Array
    from promptlimit.finite._array_types import ArrayLike as ArrayLike
    from promptlimit.finite._array_types import doubles as doubles
    from promptlimit.finite._components import Components as Components
    from promptlimit.finite._components import gaussian_components as gaussian_components
    from promptlimit.finite._gradient_moments import gradient_moments as gradient_moments
    from promptlimit.finite._heads import Readout as Readout
    from promptlimit.finite._heads import readout as readout
    from promptlimit.finite._interpolant import WeightInterpolant as WeightInterpolant
    from promptlimit.finite._interpolant import weight_interpolant as weight_interpolant
    from promptlimit.finite._interpolant_table import tabulate as tabulate
    from promptlimit.finite._lengths import LARGEST_LENGTH as LARGEST_LENGTH
    from promptlimit.finite._lengths import checked_lengths as checked_lengths
    from promptlimit.finite._mixture_moments import mixture_moments as mixture_moments
    from promptlimit.finite._precision import in_double as in_double
    from promptlimit.finite._prompt_moments import prompt_moments as prompt_moments
    from promptlimit.finite._requests import require_fitting as require_fitting
    from promptlimit.finite._requests import require_key_to_simulate as require_key_to_simulate
    from promptlimit.finite._requests import (
        require_queries_are_tokens as require_queries_are_tokens,
    )
    from promptlimit.finite._simulation import MEMORY_BUDGET as MEMORY_BUDGET
    from promptlimit.finite._simulation import UnreliableErrorWarning as UnreliableErrorWarning
    from promptlimit.finite._simulation import stopping as stopping
    from promptlimit.finite._simulation import tokens_that_fit as tokens_that_fit
    from promptlimit.finite._simulation import warn_when_unreliable as warn_when_unreliable
    from promptlimit.finite._weight_statistics import MAX_SHARPNESS as MAX_SHARPNESS
    from promptlimit.finite._weight_statistics import WeightStatistics as WeightStatistics
    from promptlimit.finite._weight_statistics import weight_statistics as weight_statistics

_HOME = {
    "AccuracyError": "_accuracy",
    "Array": "_array_types",
    "ArrayLike": "_array_types",
    "Components": "_components",
    "LARGEST_LENGTH": "_lengths",
    "MAX_SHARPNESS": "_weight_statistics",
    "MEMORY_BUDGET": "_simulation",
    "Readout": "_heads",
    "UnreliableErrorWarning": "_simulation",
    "WeightInterpolant": "_interpolant",
    "WeightStatistics": "_weight_statistics",
    "checked_lengths": "_lengths",
    "doubles": "_array_types",
    "gaussian_components": "_components",
    "gradient_moments": "_gradient_moments",
    "in_double": "_precision",
    "mixture_moments": "_mixture_moments",
    "prompt_moments": "_prompt_moments",
    "readout": "_heads",
    "require_fitting": "_requests",
    "require_key_to_simulate": "_requests",
    "require_queries_are_tokens": "_requests",
    "stopping": "_simulation",
    "tabulate": "_interpolant_table",
    "tokens_that_fit": "_simulation",
    "warn_when_unreliable": "_simulation",
    "weight_interpolant": "_interpolant",
    "weight_statistics": "_weight_statistics",
}

__getattr__, __dir__ = lazy_names(__name__, _HOME, globals())
