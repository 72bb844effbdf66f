"""Studies: statements decided by computation, each with negative controls, and their figures.

`STUDY = Study(...)` in a module or package collects decorated functions, the claims and figures.
`promptlimit reproduce` finds the study and writes a report. Only the command line imports this
package, and importing it does not load jax.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
