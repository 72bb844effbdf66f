"""Laws of whole prompts: known and random tokens, chains, draws without replacement."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
