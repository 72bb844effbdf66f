"""The check of annotations: beartype, which compiles the check of each nested function once."""

from types import FunctionType
from typing import Any

import beartype

_CHECKS: dict[Any, FunctionType] = {}


def checked(function: FunctionType) -> FunctionType:
    """Return a function with its arguments and result checked by beartype.

    jaxtyping decorates a nested function at each call of the function around it. It passes a
    function of its own that has the same signature and no body, so equal ones can share a check;
    to compile it takes milliseconds, often longer than the call.
    """
    if "<locals>" not in function.__qualname__:
        return beartype.beartype(function)
    hints = tuple(function.__annotations__.items())
    key = function.__module__, function.__qualname__, function.__code__, hints
    try:
        return _CHECKS[key]
    except KeyError:
        return _CHECKS.setdefault(key, beartype.beartype(function))
    except TypeError:  # a hint that cannot be hashed
        return beartype.beartype(function)
