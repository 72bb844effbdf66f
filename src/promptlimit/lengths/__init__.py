"""What the length of a prompt does to its softmax weights, and the temperature that undoes it.

Names load on first use: Gaussian and listed scores need no jax.
"""

from typing import TYPE_CHECKING

from promptlimit._lazy import lazy_names

if TYPE_CHECKING:
    from promptlimit.lengths._length_statistics import length_statistics as length_statistics
    from promptlimit.lengths._scores import AbstractScores as AbstractScores
    from promptlimit.lengths._scores import GaussianScores as GaussianScores
    from promptlimit.lengths._scores import ListedScores as ListedScores
    from promptlimit.lengths._token_scores import TokenScores as TokenScores

_HOME = {
    "AbstractScores": "_scores",
    "GaussianScores": "_scores",
    "ListedScores": "_scores",
    "TokenScores": "_token_scores",
    "length_statistics": "_length_statistics",
}

__getattr__, __dir__ = lazy_names(__name__, _HOME, globals())
