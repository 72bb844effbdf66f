"""Attention heads of trained transformers, compared with their infinite-prompt limits.

Names load on first use. `load` requires the packages of the extra `heads`, and `capture` requires
PyTorch. Heads built by hand, `Head(queries, keys, values)`, require no further packages.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
