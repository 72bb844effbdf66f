"""Stacks of layers over Gaussian tokens on plain arrays: what depth does, at every length."""

from typing import TYPE_CHECKING

from promptlimit._lazy import lazy_names

if TYPE_CHECKING:
    from promptlimit.depth._linear_stack import MOST_NODES as MOST_NODES
    from promptlimit.depth._linear_stack import LinearLayer as LinearLayer
    from promptlimit.depth._linear_stack import LinearStack as LinearStack

_HOME = {
    "LinearLayer": "_linear_stack",
    "LinearStack": "_linear_stack",
    "MOST_NODES": "_linear_stack",
}

__getattr__, __dir__ = lazy_names(__name__, _HOME, globals())
