"""The infinite-prompt limit of attention, and everything a finite prompt adds to it, exactly.

A prompt is a probability measure and attention is the gradient of its log-Laplace transform, so a
list of tokens and the law they are drawn from are two prompts for one and the same attention.

    import promptlimit as pl

Names load on first use: importing the package, or asking the command line for help, does not
import jax.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
