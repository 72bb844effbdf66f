"""The claim on softmax stacks at finite length, and what must turn it red."""

import pytest

from promptlimit.depth import fluctuation_bias, fluctuation_cov
from promptlimit.reproduction import Setting, decide
from promptlimit.reproduction.depth.claims import finite_stacks

QUICK = Setting(quick=True)


@pytest.fixture(scope="module")
def left_over():
    """Return the simulated stacks, once for every verdict."""
    drawn = {}
    simulate = finite_stacks.left_over

    def once(length, prompts, rng):
        if length not in drawn:
            drawn[length] = simulate(length, prompts, rng)
        return drawn[length]

    return once


@pytest.mark.slow
def test_the_claim_holds_and_planted_errors_turn_it_red(left_over, monkeypatch):
    monkeypatch.setattr(finite_stacks, "left_over", left_over)
    assert decide(finite_stacks.CLAIM, QUICK).verdict == "holds"

    def renamed(**names):
        """Return remainders of which some are taken for others."""

        def simulate(*given):
            right = left_over(*given)
            return right | {name.replace("_", " "): right[other] for name, other in names.items()}

        return simulate

    for name, planted in (
        ("fluctuation_cov", lambda *given, **options: 0.75 * fluctuation_cov(*given, **options)),
        ("fluctuation_bias", lambda *given: 2.0 * fluctuation_bias(*given)),
        ("left_over", renamed(masked="masked, as if not")),
        ("left_over", renamed(plain="without passing on")),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(finite_stacks, name, planted)
            assert decide(finite_stacks.CLAIM, QUICK).verdict == "does not hold"
    with monkeypatch.context() as patch:  # a control that sees nothing decides nothing
        patch.setattr(finite_stacks, "left_over", renamed(without_passing_on="plain"))
        assert decide(finite_stacks.CLAIM, QUICK).verdict == "not decidable here"
