"""Stacks of layers: moments over Gaussian tokens, influences of tokens, and continuous depth.

Names load on first use, so the moments of Wishart matrices can be used without importing jax.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
