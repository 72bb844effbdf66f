"""The softmax weights of L scores, exactly, whatever reads them: NumPy, and no attention in sight.

Names load on first use: asking for the weight statistics does not import jax.
"""

from typing import TYPE_CHECKING

from promptlimit._lazy import lazy_names

if TYPE_CHECKING:
    from promptlimit.weights._check_law import check_law as check_law
    from promptlimit.weights._cross_moments import MixtureTokens as MixtureTokens
    from promptlimit.weights._cross_moments import cross_moment as cross_moment
    from promptlimit.weights._interpolant import WeightInterpolant as WeightInterpolant
    from promptlimit.weights._interpolant import weight_interpolant as weight_interpolant
    from promptlimit.weights._interpolant_table import tabulate as tabulate
    from promptlimit.weights._lines import RayLaw as RayLaw
    from promptlimit.weights._lines import score_law as score_law
    from promptlimit.weights._own_token import OwnTokenStatistics as OwnTokenStatistics
    from promptlimit.weights._own_token import own_token_statistics as own_token_statistics
    from promptlimit.weights._prompts import EPSILON as EPSILON
    from promptlimit.weights._prompts import NEGLIGIBLE as NEGLIGIBLE
    from promptlimit.weights._prompts import STEP as STEP
    from promptlimit.weights._prompts import AbstractScoreLaw as AbstractScoreLaw
    from promptlimit.weights._prompts import Numbers as Numbers
    from promptlimit.weights._prompts import Prompts as Prompts
    from promptlimit.weights._quadrature import node_range as node_range
    from promptlimit.weights._ray import Ray as Ray
    from promptlimit.weights._ray_means import ray_score_means as ray_score_means
    from promptlimit.weights._score_means import MEANS_STEP as MEANS_STEP
    from promptlimit.weights._score_means import PartitionMeans as PartitionMeans
    from promptlimit.weights._score_means import gaussian_score_means as gaussian_score_means
    from promptlimit.weights._score_means import listed_score_means as listed_score_means
    from promptlimit.weights._selection import SHARPEST as SHARPEST
    from promptlimit.weights._selection import Selection as Selection
    from promptlimit.weights._selection import selection as selection
    from promptlimit.weights._selection_table import SelectionTable as SelectionTable
    from promptlimit.weights._selection_table import selection_tables as selection_tables
    from promptlimit.weights._weighed_values import ScoredValues as ScoredValues
    from promptlimit.weights._weighed_values import deviation_moments as deviation_moments
    from promptlimit.weights._weighed_values import upper_tails as upper_tails
    from promptlimit.weights._weight_statistics import MAX_SHARPNESS as MAX_SHARPNESS
    from promptlimit.weights._weight_statistics import WeightStatistics as WeightStatistics
    from promptlimit.weights._weight_statistics import some_statistics as some_statistics
    from promptlimit.weights._weight_statistics import weight_statistics as weight_statistics

_HOME = {
    "AbstractScoreLaw": "_prompts",
    "EPSILON": "_prompts",
    "MAX_SHARPNESS": "_weight_statistics",
    "MEANS_STEP": "_score_means",
    "MixtureTokens": "_cross_moments",
    "NEGLIGIBLE": "_prompts",
    "Numbers": "_prompts",
    "OwnTokenStatistics": "_own_token",
    "PartitionMeans": "_score_means",
    "Prompts": "_prompts",
    "Ray": "_ray",
    "RayLaw": "_lines",
    "SHARPEST": "_selection",
    "STEP": "_prompts",
    "ScoredValues": "_weighed_values",
    "Selection": "_selection",
    "SelectionTable": "_selection_table",
    "WeightInterpolant": "_interpolant",
    "WeightStatistics": "_weight_statistics",
    "check_law": "_check_law",
    "cross_moment": "_cross_moments",
    "deviation_moments": "_weighed_values",
    "own_token_statistics": "_own_token",
    "gaussian_score_means": "_score_means",
    "listed_score_means": "_score_means",
    "node_range": "_quadrature",
    "ray_score_means": "_ray_means",
    "score_law": "_lines",
    "selection": "_selection",
    "selection_tables": "_selection_table",
    "some_statistics": "_weight_statistics",
    "tabulate": "_interpolant_table",
    "upper_tails": "_weighed_values",
    "weight_interpolant": "_interpolant",
    "weight_statistics": "_weight_statistics",
}

if not TYPE_CHECKING:  # which would let every name pass
    __getattr__, __dir__ = lazy_names(__name__, _HOME, globals())
