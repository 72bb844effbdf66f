"""Studies: claims that are decided by computation, with negative controls, and figures.

A module or package defines `STUDY = Study(...)` and registers its claims and figures by decorators.
`promptlimit reproduce` finds the study and writes a report. Within the library, only the command
line imports this package. Importing it does not load jax.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
