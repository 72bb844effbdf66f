"""What L tokens do to an attention: the moments and laws of its output over finite prompts."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
