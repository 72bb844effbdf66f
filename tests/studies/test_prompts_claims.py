"""Claims on prompts: all hold, planted errors turn them red, and their figures are drawn."""

import dataclasses
import importlib

import numpy as np
import pytest

from promptlimit.finite import prompt_moments
from promptlimit.lengths import importance_sampling
from promptlimit.studies import Setting, decide
from promptlimit.studies.prompts import STUDY
from promptlimit.tasks import InContextBigram, bayes_risk, linear_optimum

QUICK = Setting(quick=True)
CLAIMS = {claim.name: claim for claim in STUDY.claims}


def test_every_claim_holds_and_has_a_control() -> None:
    assert [claim.number for claim in STUDY.claims] == sorted(c.number for c in STUDY.claims)
    for claim in STUDY.claims:
        result = decide(claim, QUICK)
        assert result.verdict == claim.expected == "holds", claim.name
        assert any(check.role == "control" for check in result.checks)


def heavier_chain(attention, law, query, lengths, **options):
    found = prompt_moments(attention, law, query, lengths, **options)
    return dataclasses.replace(found, mse=np.asarray(1.001 * found.mse))


def moved_bias(attention, law, query, lengths, **options):
    found = prompt_moments(attention, law, query, lengths, **options)
    return dataclasses.replace(found, bias=1.01 * found.bias)


class WrongSink(InContextBigram):
    @property
    def bayes_sink(self) -> float:
        return 1.01 * self.symbols * self.concentration


def wrong_bayes_risk(task, lengths):
    found = bayes_risk(task, lengths)
    return dataclasses.replace(found, value=1.001 * found.value)


def faster(*args, **options):
    found = importance_sampling(*args, **options)
    return dataclasses.replace(
        found, effective_samples=found.effective_samples * found.lengths**0.05
    )


def one_token_fewer(task, lengths):
    return linear_optimum(task, lengths - 1)


@pytest.mark.parametrize(
    ("name", "function", "planted"),
    [
        ("small-opposite-heads", "linear_optimum", one_token_fewer),
        ("two-heads-miss", "linear_optimum", one_token_fewer),
        ("induction-sink", "InContextBigram", WrongSink),
        ("slope", "_LEADING", 1.5),
        ("chain", "prompt_moments", heavier_chain),
        ("known-tokens", "prompt_moments", moved_bias),
        ("nishimori", "bayes_risk", wrong_bayes_risk),
        ("without-replacement", "_factor", lambda size: 0.5),
        ("importance-rates", "importance_sampling", faster),
    ],
)
def test_a_planted_error_turns_the_claim_red(name, function, planted, monkeypatch):
    module = importlib.import_module(CLAIMS[name].decide.__module__)
    monkeypatch.setattr(module, function, planted)
    assert decide(CLAIMS[name], QUICK).verdict != "holds"


@pytest.mark.parametrize("figure", STUDY.figures, ids=lambda figure: figure.name)
def test_figures_are_drawn(figure) -> None:
    arrays = figure.compute(QUICK)
    assert all(np.isfinite(array).all() for array in arrays.values())
    assert STUDY.draw(figure.name, arrays).axes
