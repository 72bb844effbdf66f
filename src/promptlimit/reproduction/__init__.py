"""Papers, each a folder: what they claim, decided; what they show, drawn again.

The library does not import this package. Nor does importing it load jax: the page of a stored
reproduction is written without.
"""

from typing import TYPE_CHECKING

from promptlimit._lazy import lazy_names

if TYPE_CHECKING:
    from promptlimit.reproduction._fingerprint import engine_hash as engine_hash
    from promptlimit.reproduction._fingerprint import item_hash as item_hash
    from promptlimit.reproduction._paper import Claim as Claim
    from promptlimit.reproduction._paper import Figure as Figure
    from promptlimit.reproduction._paper import Paper as Paper
    from promptlimit.reproduction._paper import Part as Part
    from promptlimit.reproduction._paper import Setting as Setting
    from promptlimit.reproduction._paper import paper_at as paper_at
    from promptlimit.reproduction._paper import papers as papers
    from promptlimit.reproduction._pictures import write_page as write_page
    from promptlimit.reproduction._processes import WorkerLostError as WorkerLostError
    from promptlimit.reproduction._processes import helper_ahead as helper_ahead
    from promptlimit.reproduction._seeds import SeedVerdicts as SeedVerdicts
    from promptlimit.reproduction._seeds import decide_at_seeds as decide_at_seeds
    from promptlimit.reproduction._work import Outcome as Outcome
    from promptlimit.reproduction._work import decide as decide
    from promptlimit.reproduction._work import reproduce as reproduce
    from promptlimit.reproduction._work import run_facts as run_facts

_HOMES = {
    **dict.fromkeys(("engine_hash", "item_hash"), "_fingerprint"),
    **dict.fromkeys(
        ("Claim", "Figure", "Paper", "Part", "Setting", "paper_at", "papers"), "_paper"
    ),
    "write_page": "_pictures",
    **dict.fromkeys(("WorkerLostError", "helper_ahead"), "_processes"),
    **dict.fromkeys(("SeedVerdicts", "decide_at_seeds"), "_seeds"),
    **dict.fromkeys(("Outcome", "decide", "reproduce", "run_facts"), "_work"),
}

if not TYPE_CHECKING:  # which would let every name pass
    __getattr__, __dir__ = lazy_names(__name__, _HOMES, globals())
