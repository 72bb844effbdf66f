"""The softmax weights of L scores, exactly, whatever reads them: NumPy, and no attention in sight.

Names load on first use: asking for the weight statistics does not import jax.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
