"""What the length of a prompt does to its softmax weights, and the temperature that undoes it.

Names load on first use: Gaussian and listed scores need no jax.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
