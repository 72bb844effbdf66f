"""Claims on length: all hold, planted errors turn them red, and their figures are drawn."""

import dataclasses
import importlib
from types import ModuleType

import numpy as np
import pytest

import promptlimit as pl
from promptlimit.lengths import log_n
from promptlimit.studies import Setting, decide
from promptlimit.studies.lengths import STUDY

QUICK = Setting(quick=True)
CLAIMS = {claim.name: claim for claim in STUDY.claims}


def module_of(name: str) -> ModuleType:
    return importlib.import_module(CLAIMS[name].decide.__module__)


def biased(name: str, factor: float):
    """Return `length_statistics` with one statistic multiplied."""

    def statistics(*args, **kwargs):
        right = pl.length_statistics(*args, **kwargs)
        return dataclasses.replace(right, **{name: np.asarray(getattr(right, name) * factor)})

    return statistics


def annealed_roots(*args, **kwargs):
    right = pl.inverse_temperature(*args, **kwargs)
    return dataclasses.replace(right, value=np.asarray(right.annealed))


def overconfident(*args, **kwargs):
    right = pl.lengths.entropy_prediction(*args, **kwargs)
    return dataclasses.replace(right, error=np.asarray(right.error / 5))


@pytest.mark.parametrize(
    ("name", "function", "planted"),
    [
        ("simulated-prompts", "length_statistics", biased("entropy_variance", 2.0)),
        ("derivatives", "length_statistics", biased("log_partition_variance", 1.01)),
        ("entropy-share", "length_statistics", biased("entropy", 1.01)),
        ("needle-weight", "length_statistics", biased("fixed_weights", 1.3)),
        ("needle-temperature", "inverse_temperature", annealed_roots),
        ("freezing", "sqrt_log", log_n),
        ("prediction", "entropy_prediction", overconfident),
    ],
)
def test_a_planted_error_turns_the_claim_red(name, function, planted, monkeypatch):
    monkeypatch.setattr(module_of(name), function, planted)
    assert decide(CLAIMS[name], QUICK).verdict != "holds"


def test_there_are_seven_claims_in_their_order_and_each_has_a_control():
    assert [claim.number for claim in STUDY.claims] == list(range(1, 8))
    assert {claim.expected for claim in STUDY.claims} == {"holds"}
