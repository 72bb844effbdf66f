"""The claim on softmax stacks at finite length, and what must turn it red."""

import pytest

from promptlimit.depth import fluctuation_bias, fluctuation_cov
from promptlimit.studies import Setting, decide
from promptlimit.studies.depth import finite_stacks

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


def test_the_claim_holds_and_planted_errors_turn_it_red(left_over, monkeypatch):
    monkeypatch.setattr(finite_stacks, "left_over", left_over)
    assert decide(finite_stacks.finite_stacks, QUICK).verdict == "holds"

    def renamed(**names):
        """Return remainders of which some are taken for others."""

        def simulate(*given):
            right = left_over(*given)
            return right | {name.replace("_", " "): right[other] for name, other in names.items()}

        return simulate

    for name, planted, verdict in (
        (
            "fluctuation_cov",
            lambda *given, **options: 0.75 * fluctuation_cov(*given, **options),
            "does not hold",
        ),
        ("fluctuation_bias", lambda *given: 2.0 * fluctuation_bias(*given), "does not hold"),
        ("left_over", renamed(masked="masked, as if not"), "does not hold"),
        ("left_over", renamed(plain="without passing on"), "not decidable here"),
        ("left_over", renamed(without_passing_on="plain"), "not decidable here"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(finite_stacks, name, planted)
            assert decide(finite_stacks.finite_stacks, QUICK).verdict == verdict
