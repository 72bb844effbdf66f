"""Families of transformers whose weights can be loaded: one module per family.

Each module defines a class and registers it for one or more values of `model_type` in config.json.
A user-defined family is registered in the same way, from any module:

    from promptlimit.heads import families

    @families.register("mine")
    class Mine(families.AbstractArchitecture): ...
"""

import importlib
import pkgutil

from promptlimit.heads.families._architecture import ACTIVATION as ACTIVATION
from promptlimit.heads.families._architecture import WITHOUT_WEIGHTS as WITHOUT_WEIGHTS
from promptlimit.heads.families._architecture import AbstractArchitecture as AbstractArchitecture
from promptlimit.heads.families._architecture import Config as Config
from promptlimit.heads.families._architecture import Projected as Projected
from promptlimit.heads.families._architecture import Tensor as Tensor
from promptlimit.heads.families._architecture import Weights as Weights
from promptlimit.heads.families._architecture import affine as affine
from promptlimit.heads.families._architecture import affine_tensors as affine_tensors
from promptlimit.heads.families._architecture import architecture as architecture
from promptlimit.heads.families._architecture import layer_norm as layer_norm
from promptlimit.heads.families._architecture import linear as linear
from promptlimit.heads.families._architecture import norm_tensors as norm_tensors
from promptlimit.heads.families._architecture import register as register
from promptlimit.heads.families._architecture import rms_norm as rms_norm
from promptlimit.heads.families._architecture import rotated as rotated
from promptlimit.heads.families._architecture import split_heads as split_heads

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_"):
        importlib.import_module(f"{__name__}.{_module.name}")
