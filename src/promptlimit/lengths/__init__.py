"""What the length of a prompt does to its softmax weights, and the temperature that undoes it.

Names load on first use: Gaussian and listed scores need no jax.
"""

from typing import TYPE_CHECKING

from promptlimit._lazy import lazy_names

if TYPE_CHECKING:
    from promptlimit.lengths._length_statistics import length_statistics as length_statistics
    from promptlimit.lengths._prediction import entropy_prediction as entropy_prediction
    from promptlimit.lengths._rules import RULES as RULES
    from promptlimit.lengths._rules import TemperatureRule as TemperatureRule
    from promptlimit.lengths._rules import freezing_length as freezing_length
    from promptlimit.lengths._rules import llama_4 as llama_4
    from promptlimit.lengths._rules import log_n as log_n
    from promptlimit.lengths._rules import longrope as longrope
    from promptlimit.lengths._rules import ministral_3 as ministral_3
    from promptlimit.lengths._rules import no_rule as no_rule
    from promptlimit.lengths._rules import sqrt_log as sqrt_log
    from promptlimit.lengths._rules import ssmax as ssmax
    from promptlimit.lengths._rules import temperature_table as temperature_table
    from promptlimit.lengths._rules import yarn as yarn
    from promptlimit.lengths._scores import AbstractScores as AbstractScores
    from promptlimit.lengths._scores import GaussianScores as GaussianScores
    from promptlimit.lengths._scores import ListedScores as ListedScores
    from promptlimit.lengths._temperature import inverse_temperature as inverse_temperature
    from promptlimit.lengths._temperature import needle_margin as needle_margin
    from promptlimit.lengths._token_scores import TokenScores as TokenScores

_HOME = {
    "AbstractScores": "_scores",
    "GaussianScores": "_scores",
    "ListedScores": "_scores",
    "RULES": "_rules",
    "TemperatureRule": "_rules",
    "TokenScores": "_token_scores",
    "entropy_prediction": "_prediction",
    "freezing_length": "_rules",
    "inverse_temperature": "_temperature",
    "length_statistics": "_length_statistics",
    "llama_4": "_rules",
    "log_n": "_rules",
    "longrope": "_rules",
    "ministral_3": "_rules",
    "needle_margin": "_temperature",
    "no_rule": "_rules",
    "sqrt_log": "_rules",
    "ssmax": "_rules",
    "temperature_table": "_rules",
    "yarn": "_rules",
}

if not TYPE_CHECKING:  # which would let every name pass
    __getattr__, __dir__ = lazy_names(__name__, _HOME, globals())
