"""Stacks of attention layers: what depth does to a Gaussian prompt, at any length.

Names load on first use: moments of Wishart matrices do not import jax.
"""

from typing import TYPE_CHECKING

from promptlimit._lazy import lazy_names

if TYPE_CHECKING:
    from promptlimit.depth._spectrum import MOST_NODES as MOST_NODES
    from promptlimit.depth._spectrum import Spectrum as Spectrum
    from promptlimit.depth._spectrum import spectrum_of as spectrum_of
    from promptlimit.depth._spectrum import wishart_spectrum as wishart_spectrum
    from promptlimit.depth._steps import BestSteps as BestSteps
    from promptlimit.depth._steps import best_moving_steps as best_moving_steps
    from promptlimit.depth._steps import best_steps as best_steps
    from promptlimit.depth._steps import moving_degree as moving_degree
    from promptlimit.depth._wishart import bartlett_factors as bartlett_factors
    from promptlimit.depth._wishart import sobol_normals as sobol_normals
    from promptlimit.depth._wishart import trace_moments as trace_moments

_HOME = {
    "MOST_NODES": "_spectrum",
    "Spectrum": "_spectrum",
    "spectrum_of": "_spectrum",
    "wishart_spectrum": "_spectrum",
    "BestSteps": "_steps",
    "best_moving_steps": "_steps",
    "best_steps": "_steps",
    "moving_degree": "_steps",
    "bartlett_factors": "_wishart",
    "sobol_normals": "_wishart",
    "trace_moments": "_wishart",
}

__getattr__, __dir__ = lazy_names(__name__, _HOME, globals())
