"""A planted error in the library turns the claim that speaks of it red.

That every claim comes out as recorded is in test_reproduction.py; what flips those of training, in
test_study.py.
"""

import dataclasses
import importlib
from collections.abc import Callable
from types import ModuleType

import jax
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.dynamics import ball_gap, block_limit, gradient_flow
from promptlimit.measures import Empirical, Gaussian
from promptlimit.studies.large_prompt import STUDY
from promptlimit.studies.large_prompt.gaps import Simulated
from studies.planted import turns_red

CLAIMS = {claim.name: claim for claim in STUDY.claims}


def test_claims_are_numbered_once_and_named_once() -> None:
    numbers = [claim.number for claim in STUDY.claims]
    assert numbers == sorted(set(numbers))
    assert numbers[:19] == list(range(1, 20))
    assert len(CLAIMS) == len(numbers)


def test_a_verdict_other_than_holds_comes_with_its_evidence() -> None:
    for claim in STUDY.claims:
        assert bool(claim.evidence) == (claim.expected != "holds"), claim.name


class Misread:
    """A head whose output, or gradient, is wrong; its programs are those of the right one."""

    def __init__(self, right: pl.AbstractAttention, read: Callable):
        self._right, self._read = right, read

    def __call__(self, prompt, query):
        return self._read(self._right, prompt, query)

    def jacobian(self, prompt, query, *, wrt):
        return self._right.jacobian(prompt, -query, wrt=wrt)

    def __getattr__(self, name: str):
        return getattr(self._right, name)


def wrong_sign(head, prompt, query):
    return head(prompt, -query)


def too_large(head, prompt, query):
    return 3.0 * head(prompt, query)


def planted(head: type, read: Callable) -> type[Misread]:
    class Planted(Misread):
        def __init__(self, *given, **options):
            super().__init__(head(*given, **options), read)

    return Planted


@pytest.mark.parametrize(
    ("name", "head", "read"),
    [
        ("gaussian-limit", pl.SoftmaxAttention, wrong_sign),
        ("linear-is-the-limit", pl.SoftmaxAttention, wrong_sign),
        ("elementary-bounds", pl.SoftmaxAttention, too_large),
        ("gradient-formulas", pl.Factored, wrong_sign),
    ],
)
def test_a_planted_error_turns_the_claim_red(
    name: str, head: type, read: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_of(name), head.__name__, planted(head, read))
    assert turns_red(CLAIMS[name])


def test_tokens_that_are_two_per_cent_too_large_turn_claim_2_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module_of("strong-law"), "Empirical", lambda x: Empirical(1.02 * x))
    assert turns_red(CLAIMS["strong-law"])


def module_of(name: str) -> ModuleType:
    return importlib.import_module(CLAIMS[name].decide.__module__)


def twenty_per_cent_off(moments: Callable, field: str) -> Callable:
    def wrong(*args, kind: str = "auto", **kwargs):
        found = moments(*args, kind=kind, **kwargs)
        factor = 1.0 if kind == "estimate" else 1.2
        return dataclasses.replace(found, **{field: np.asarray(factor * getattr(found, field))})

    return wrong


@pytest.mark.parametrize(
    ("simulated", "function", "field"),
    [
        ("simulated", "prompt_moments", "mse"),
        ("simulated_gradients", "gradient_moments", "value"),
    ],
)
def test_a_gap_off_by_a_fifth_is_noticed(
    simulated: str, function: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = module_of("output-gap")
    right = getattr(module, function)
    monkeypatch.setattr(module, function, twenty_per_cent_off(right, field))
    with jax.enable_x64(True):
        checks = getattr(module, simulated)(0, Simulated(4000, (20,)))
    assert not all(check.passed for check in checks)


def test_a_rate_off_by_a_twentieth_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of("output-gap")
    right = module.library_output_gap

    def slower(attention, law, queries, lengths, **options):
        found = right(attention, law, queries, lengths, **options)
        return dataclasses.replace(found, value=found.value * found.lengths**0.05)

    monkeypatch.setattr(module, "library_output_gap", slower)
    assert max(module.distances_from_the_rate((1.0,))) > module.RATE_TOLERANCE


@pytest.mark.parametrize("wrt", ["key_query", None])
def test_a_bound_below_the_gap_is_noticed(wrt: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    gaps = importlib.import_module("promptlimit.concentration._gaps")
    module = module_of("output-gap")
    right = gaps.bound_gap
    monkeypatch.setattr(gaps, "bound_gap", lambda *given: 1e-3 * right(*given))
    assert module.gap_over_bound(wrt) > 1.0


def test_a_query_that_weighs_too_much_turns_claim_6_red(monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of("query-in-the-prompt")
    right = module.prompt_moments

    def heavy(attention, law, query, length, *, including_query: bool):
        found = right(attention, law, query, length, including_query=including_query)
        return dataclasses.replace(found, mse=found.mse + (0.001 if including_query else 0.0))

    monkeypatch.setattr(module, "prompt_moments", heavy)
    assert turns_red(CLAIMS["query-in-the-prompt"])


def test_a_wrong_push_forward_turns_claim_1_red(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(self: pl.SoftmaxAttention, prompt: Gaussian) -> Gaussian:
        matrix, _ = self.affine_limit(prompt)
        return Gaussian(matrix @ prompt.location, matrix @ prompt.covariance @ matrix.T)

    monkeypatch.setattr(pl.AbstractAttention, "push_forward", shifted)
    assert turns_red(CLAIMS["gaussian-limit"])


def limit_off_by_a_thousandth(task, alpha, theta=None):
    right = block_limit(task, alpha, theta)
    return pl.SoftmaxAttention(1.001 * right.key_query, right.value)


def slower_at_long_prompts(start, task, lengths, *args, **kwargs):
    """A flow whose long prompts behave like short ones."""
    given = np.asarray(lengths, float)
    few = np.where((given >= 1000) & np.isfinite(given), 10.0, given)
    flows = gradient_flow(start, task, few, *args, **kwargs)
    return dataclasses.replace(flows, lengths=given if given.ndim else given.item())


def longer_prompts_alike(task, length, *args, **kwargs):
    return ball_gap(task, min(length, 100), *args, **kwargs)


@pytest.mark.parametrize(
    ("name", "function", "planted"),
    [
        ("uniform-convergence", "ball_gap", longer_prompts_alike),
        ("flows-converge", "gradient_flow", slower_at_long_prompts),
        ("flow-limits", "block_limit", limit_off_by_a_thousandth),
        ("learning-in-context", "gradient_flow", slower_at_long_prompts),
    ],
)
def test_a_planted_error_in_a_flow_turns_its_claim_red(
    name: str, function: str, planted: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_of(name), function, planted)
    assert turns_red(CLAIMS[name])


def test_claims_on_training_are_those_from_the_thirteenth() -> None:
    assert [claim.number for claim in STUDY.claims if claim.after_parts] == list(range(13, 20))
