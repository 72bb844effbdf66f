"""What L tokens do: softmax weights and attention outputs over finite prompts, exactly.

Names load on first use: the weight-statistics engine is NumPy alone, and asking for it does not
import jax.
"""

from typing import TYPE_CHECKING

from promptlimit._lazy import lazy_names

if TYPE_CHECKING:
    from promptlimit.finite._cross_moments import MixtureTokens as MixtureTokens
    from promptlimit.finite._cross_moments import cross_moment as cross_moment
    from promptlimit.finite._gradient_moments import GRADIENT_MOMENTS as GRADIENT_MOMENTS
    from promptlimit.finite._gradient_moments import gradient_moments as gradient_moments
    from promptlimit.finite._interpolant import WeightInterpolant as WeightInterpolant
    from promptlimit.finite._interpolant import weight_interpolant as weight_interpolant
    from promptlimit.finite._interpolant_table import tabulate as tabulate
    from promptlimit.finite._lines import RayLaw as RayLaw
    from promptlimit.finite._lines import score_law as score_law
    from promptlimit.finite._output_law import OUTPUT_LAW as OUTPUT_LAW
    from promptlimit.finite._output_law import output_law as output_law
    from promptlimit.finite._problem import Problem as Problem
    from promptlimit.finite._problem import Reading as Reading
    from promptlimit.finite._problem import checked_problem as checked_problem
    from promptlimit.finite._problem import first_obstacle as first_obstacle
    from promptlimit.finite._problem import known as known
    from promptlimit.finite._prompt_moments import PROMPT_MOMENTS as PROMPT_MOMENTS
    from promptlimit.finite._prompt_moments import prompt_moments as prompt_moments
    from promptlimit.finite._queries import Queries as Queries
    from promptlimit.finite._ray import Ray as Ray
    from promptlimit.finite._rules import Effort as Effort
    from promptlimit.finite._rules import Quantity as Quantity
    from promptlimit.finite._rules import Rule as Rule
    from promptlimit.finite._score_statistics import ScoreStatistics as ScoreStatistics
    from promptlimit.finite._score_statistics import score_statistics as score_statistics
    from promptlimit.finite._selection import SHARPEST as SHARPEST
    from promptlimit.finite._selection import Selection as Selection
    from promptlimit.finite._selection import selection as selection
    from promptlimit.finite._selection_table import SelectionTable as SelectionTable
    from promptlimit.finite._selection_table import selection_tables as selection_tables
    from promptlimit.finite._simulation import PromptSimulation as PromptSimulation
    from promptlimit.finite._simulation import UnreliableErrorWarning as UnreliableErrorWarning
    from promptlimit.finite._simulation import chunk_of_prompts as chunk_of_prompts
    from promptlimit.finite._simulation import tokens_that_fit as tokens_that_fit
    from promptlimit.finite._simulation import warn_when_unreliable as warn_when_unreliable
    from promptlimit.finite._softmax_moments import softmax_moments as softmax_moments
    from promptlimit.finite._weighed_values import ScoredValues as ScoredValues
    from promptlimit.finite._weighed_values import deviation_moments as deviation_moments
    from promptlimit.finite._weighed_values import upper_tails as upper_tails
    from promptlimit.finite._weight_statistics import MAX_SHARPNESS as MAX_SHARPNESS
    from promptlimit.finite._weight_statistics import WeightStatistics as WeightStatistics
    from promptlimit.finite._weight_statistics import weight_statistics as weight_statistics

_HOME = {
    "Effort": "_rules",
    "GRADIENT_MOMENTS": "_gradient_moments",
    "MAX_SHARPNESS": "_weight_statistics",
    "MixtureTokens": "_cross_moments",
    "OUTPUT_LAW": "_output_law",
    "PROMPT_MOMENTS": "_prompt_moments",
    "PromptSimulation": "_simulation",
    "Problem": "_problem",
    "Quantity": "_rules",
    "Queries": "_queries",
    "Ray": "_ray",
    "RayLaw": "_lines",
    "Reading": "_problem",
    "Rule": "_rules",
    "SHARPEST": "_selection",
    "ScoreStatistics": "_score_statistics",
    "Selection": "_selection",
    "SelectionTable": "_selection_table",
    "ScoredValues": "_weighed_values",
    "UnreliableErrorWarning": "_simulation",
    "WeightInterpolant": "_interpolant",
    "WeightStatistics": "_weight_statistics",
    "checked_problem": "_problem",
    "chunk_of_prompts": "_simulation",
    "cross_moment": "_cross_moments",
    "deviation_moments": "_weighed_values",
    "first_obstacle": "_problem",
    "gradient_moments": "_gradient_moments",
    "known": "_problem",
    "output_law": "_output_law",
    "prompt_moments": "_prompt_moments",
    "score_law": "_lines",
    "score_statistics": "_score_statistics",
    "selection": "_selection",
    "selection_tables": "_selection_table",
    "softmax_moments": "_softmax_moments",
    "tabulate": "_interpolant_table",
    "tokens_that_fit": "_simulation",
    "upper_tails": "_weighed_values",
    "warn_when_unreliable": "_simulation",
    "weight_interpolant": "_interpolant",
    "weight_statistics": "_weight_statistics",
}

__getattr__, __dir__ = lazy_names(__name__, _HOME, globals())
