"""Stacks of layers over Gaussian tokens on plain arrays: what depth does, at every length."""

from typing import TYPE_CHECKING

from promptlimit._lazy import lazy_names

if TYPE_CHECKING:
    from promptlimit.depth._bias import fluctuation_bias as fluctuation_bias
    from promptlimit.depth._fluctuations import StackKernel as StackKernel
    from promptlimit.depth._fluctuations import fluctuation_cov as fluctuation_cov
    from promptlimit.depth._fluctuations import too_many_terms as too_many_terms
    from promptlimit.depth._gaussian_stack import GaussianLayer as GaussianLayer
    from promptlimit.depth._gaussian_stack import GaussianStack as GaussianStack
    from promptlimit.depth._gaussian_stack import unread_layer as unread_layer
    from promptlimit.depth._influence import Influence as Influence
    from promptlimit.depth._influence import influence as influence
    from promptlimit.depth._linear_stack import MOST_NODES as MOST_NODES
    from promptlimit.depth._linear_stack import LinearLayer as LinearLayer
    from promptlimit.depth._linear_stack import LinearStack as LinearStack
    from promptlimit.depth._semi_exact import semi_exact_bias as semi_exact_bias
    from promptlimit.depth._square_error import square_error_slopes as square_error_slopes

_HOME = {
    "GaussianLayer": "_gaussian_stack",
    "GaussianStack": "_gaussian_stack",
    "Influence": "_influence",
    "LinearLayer": "_linear_stack",
    "LinearStack": "_linear_stack",
    "MOST_NODES": "_linear_stack",
    "StackKernel": "_fluctuations",
    "fluctuation_bias": "_bias",
    "fluctuation_cov": "_fluctuations",
    "influence": "_influence",
    "semi_exact_bias": "_semi_exact",
    "square_error_slopes": "_square_error",
    "too_many_terms": "_fluctuations",
    "unread_layer": "_gaussian_stack",
}

__getattr__, __dir__ = lazy_names(__name__, _HOME, globals())
