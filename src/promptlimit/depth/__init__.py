"""Stacks of layers over Gaussian tokens, on plain arrays, at every prompt length.

Names load on first use: moments of Wishart matrices do not import jax.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
