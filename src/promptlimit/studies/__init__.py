"""Papers, each a folder: what they claim, decided; what they show, drawn again.

The library does not import this package. Nor does importing it load jax: the page of a stored
reproduction is written without.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
