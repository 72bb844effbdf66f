"""The effect of prompt length on softmax weights, and temperatures that compensate for it.

Names load on first use, so that statistics of Gaussian and listed scores do not import jax.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
