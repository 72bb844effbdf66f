"""Exact statistics of softmax weights over finite prompts.

Names load on first use, so that `weight_statistics` does not import jax.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
