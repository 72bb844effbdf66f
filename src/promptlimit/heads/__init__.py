"""Attention heads of trained transformers, measured against the theory.

Names load on first use. Opening a model needs the packages of the extra `heads`; heads captured
from a PyTorch model that runs need PyTorch; heads brought by hand, `Head(queries, keys, values)`,
need nothing more.
"""

from typing import TYPE_CHECKING

from promptlimit._lazy import lazy_names

if TYPE_CHECKING:
    from promptlimit.heads._atlas import atlas as atlas
    from promptlimit.heads._cache_plan import CachePlan as CachePlan
    from promptlimit.heads._cache_plan import CachePlanner as CachePlanner
    from promptlimit.heads._cache_plan import cache_plan as cache_plan
    from promptlimit.heads._cache_plan import token_importance as token_importance
    from promptlimit.heads._capture import capture as capture
    from promptlimit.heads._causal_atlas import causal_atlas as causal_atlas
    from promptlimit.heads._example import CAUSAL_EXAMPLE as CAUSAL_EXAMPLE
    from promptlimit.heads._example import EXAMPLE as EXAMPLE
    from promptlimit.heads._example import INSTALL_CAUSAL_MODEL as INSTALL_CAUSAL_MODEL
    from promptlimit.heads._example import INSTALL_MODEL as INSTALL_MODEL
    from promptlimit.heads._example import example_file as example_file
    from promptlimit.heads._example import example_folder as example_folder
    from promptlimit.heads._example import example_texts as example_texts
    from promptlimit.heads._export import export_maps as export_maps
    from promptlimit.heads._extra import MissingExtraError as MissingExtraError
    from promptlimit.heads._head import Head as Head
    from promptlimit.heads._model import Model as Model
    from promptlimit.heads._model import load as load
    from promptlimit.heads._prompts import CapturedHeads as CapturedHeads
    from promptlimit.heads._replace import replacement_curve as replacement_curve
    from promptlimit.heads._windows import windows_of as windows_of
    from promptlimit.results import CausalAtlas as CausalAtlas
    from promptlimit.results import HeadAtlas as HeadAtlas
    from promptlimit.results import HeadReplacement as HeadReplacement

_HOME = {
    "CAUSAL_EXAMPLE": "_example",
    "CachePlan": "_cache_plan",
    "CachePlanner": "_cache_plan",
    "CapturedHeads": "_prompts",
    "CausalAtlas": "_causal_atlas",
    "EXAMPLE": "_example",
    "Head": "_head",
    "HeadAtlas": "_atlas",
    "HeadReplacement": "_replace",
    "INSTALL_CAUSAL_MODEL": "_example",
    "INSTALL_MODEL": "_example",
    "MissingExtraError": "_extra",
    "Model": "_model",
    "atlas": "_atlas",
    "cache_plan": "_cache_plan",
    "capture": "_capture",
    "causal_atlas": "_causal_atlas",
    "example_file": "_example",
    "example_folder": "_example",
    "example_texts": "_example",
    "export_maps": "_export",
    "load": "_model",
    "replacement_curve": "_replace",
    "token_importance": "_cache_plan",
    "windows_of": "_windows",
}

if not TYPE_CHECKING:  # which would let every name pass
    __getattr__, __dir__ = lazy_names(__name__, _HOME, globals())
