"""Moments and laws of the output and the gradient of an attention over finite prompts."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
