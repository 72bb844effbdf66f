"""Attention heads of trained transformers, measured against the theory.

Names load on first use. Opening a model needs the packages of the extra `heads`; heads captured
from a PyTorch model that runs need PyTorch; heads brought by hand, `Head(queries, keys, values)`,
need nothing more.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
