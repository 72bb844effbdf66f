"""Stacks of layers over Gaussian tokens on plain arrays: what depth does, at every length.

Names load on first use: moments of Wishart matrices do not import jax.
"""

from typing import TYPE_CHECKING

from promptlimit._lazy import lazy_names

if TYPE_CHECKING:
    from promptlimit.depth._bias import fluctuation_bias as fluctuation_bias
    from promptlimit.depth._bias import masked_bias_slope as masked_bias_slope
    from promptlimit.depth._continuous import depth_flow as depth_flow
    from promptlimit.depth._fluctuations import StackKernel as StackKernel
    from promptlimit.depth._fluctuations import fluctuation_cov as fluctuation_cov
    from promptlimit.depth._fluctuations import too_many_terms as too_many_terms
    from promptlimit.depth._gaussian_stack import GaussianStack as GaussianStack
    from promptlimit.depth._gaussian_stack import LayerMatrices as LayerMatrices
    from promptlimit.depth._gaussian_stack import unread_layer as unread_layer
    from promptlimit.depth._influence import Influence as Influence
    from promptlimit.depth._influence import influence as influence
    from promptlimit.depth._linear_stack import MOST_NODES as MOST_NODES
    from promptlimit.depth._linear_stack import LinearStack as LinearStack
    from promptlimit.depth._reach import REACHED as REACHED
    from promptlimit.depth._reach import reached_length as reached_length
    from promptlimit.depth._reach import reached_share as reached_share
    from promptlimit.depth._semi_exact import semi_exact_bias as semi_exact_bias
    from promptlimit.depth._spectrum import MOST_STEPS as MOST_STEPS
    from promptlimit.depth._spectrum import Spectrum as Spectrum
    from promptlimit.depth._spectrum import spectrum_of as spectrum_of
    from promptlimit.depth._spectrum import wishart_spectrum as wishart_spectrum
    from promptlimit.depth._square_error import square_error_slopes as square_error_slopes
    from promptlimit.depth._steps import BestSteps as BestSteps
    from promptlimit.depth._steps import best_moving_steps as best_moving_steps
    from promptlimit.depth._steps import best_steps as best_steps
    from promptlimit.depth._steps import moving_degree as moving_degree
    from promptlimit.depth._wishart import bartlett_factors as bartlett_factors
    from promptlimit.depth._wishart import sobol_normals as sobol_normals
    from promptlimit.depth._wishart import trace_moments as trace_moments

_HOME = {
    "BestSteps": "_steps",
    "LayerMatrices": "_gaussian_stack",
    "GaussianStack": "_gaussian_stack",
    "Influence": "_influence",
    "LinearStack": "_linear_stack",
    "MOST_NODES": "_linear_stack",
    "MOST_STEPS": "_spectrum",
    "Spectrum": "_spectrum",
    "StackKernel": "_fluctuations",
    "bartlett_factors": "_wishart",
    "best_moving_steps": "_steps",
    "best_steps": "_steps",
    "depth_flow": "_continuous",
    "fluctuation_bias": "_bias",
    "fluctuation_cov": "_fluctuations",
    "influence": "_influence",
    "moving_degree": "_steps",
    "masked_bias_slope": "_bias",
    "REACHED": "_reach",
    "reached_length": "_reach",
    "reached_share": "_reach",
    "semi_exact_bias": "_semi_exact",
    "sobol_normals": "_wishart",
    "spectrum_of": "_spectrum",
    "square_error_slopes": "_square_error",
    "too_many_terms": "_fluctuations",
    "trace_moments": "_wishart",
    "unread_layer": "_gaussian_stack",
    "wishart_spectrum": "_spectrum",
}

if not TYPE_CHECKING:  # which would let every name pass
    __getattr__, __dir__ = lazy_names(__name__, _HOME, globals())
