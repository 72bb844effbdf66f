"""Stacks of layers over Gaussian tokens, on plain arrays, at every prompt length.

Names load on first use, so the moments of Wishart matrices can be used without importing jax.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
