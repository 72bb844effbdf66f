"""Every claim comes out as recorded, and a planted error in the library turns it red."""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import pytest

import promptlimit.attention._heads as heads
import promptlimit.attention._kernels as kernels
from promptlimit.experiments import claims, decide
from promptlimit.measures import Empirical, Gaussian

CLAIMS = {claim.name: claim for claim in claims()}


def test_claims_are_numbered_once_and_named_once() -> None:
    numbers = [claim.number for claim in claims()]
    assert numbers == sorted(set(numbers))
    assert set(numbers) >= {1, 2, 3, 6, 7, 8}
    assert len(CLAIMS) == len(numbers)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMS)
def test_every_verdict_is_the_one_on_record(name: str) -> None:
    result = decide(CLAIMS[name], seed=0)
    assert result.verdict == result.expected, [c for c in result.checks if not c.passed]
    assert any(check.role == "control" for check in result.checks)


@pytest.fixture
def planting(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Replace library code for one test; what was compiled before and during it is forgotten."""
    jax.clear_caches()
    yield monkeypatch
    jax.clear_caches()


def read_with(read: Callable) -> dict[str, kernels.Kernel]:
    return {
        "softmax": kernels.Kernel(read, kernels.affine_softmax),
        "linear": kernels.Kernel(kernels.read_linear, kernels.affine_linear),
    }


def wrong_sign(prompt, tilt):
    return prompt.tilted_mean(-tilt)


def biased(prompt, tilt):
    return (
        prompt.tilted_mean(tilt) * 1.02
        if isinstance(prompt, Empirical)
        else prompt.tilted_mean(tilt)
    )


def too_large(prompt, tilt):
    return 3.0 * prompt.tilted_mean(tilt)


def forgets_the_mean(prompt, tilt):
    return prompt.tilted_mean(tilt) - prompt.mean


PLANTED = {
    "gaussian-limit": wrong_sign,
    "strong-law": biased,
    "linear-is-the-limit": forgets_the_mean,
    "elementary-bounds": too_large,
    "gradient-formulas": wrong_sign,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_error_turns_the_claim_red(name: str, planting: pytest.MonkeyPatch) -> None:
    planting.setattr(kernels, "_KERNELS", read_with(PLANTED[name]))
    assert decide(CLAIMS[name], seed=0).verdict != "holds"


@pytest.mark.slow
def test_a_query_that_weighs_too_much_turns_claim_6_red(planting: pytest.MonkeyPatch) -> None:
    def heavy(self: Empirical, query) -> Empirical:
        tokens = jnp.concatenate([self.tokens, query[None]])
        share = jnp.full(len(tokens), 0.9 / self.length).at[-1].set(0.1)
        return Empirical(tokens, share)

    planting.setattr(Empirical, "including", heavy)
    assert decide(CLAIMS["query-in-the-prompt"], seed=0).verdict == "does not hold"


@pytest.mark.slow
def test_a_wrong_push_forward_turns_claim_1_red(planting: pytest.MonkeyPatch) -> None:
    def shifted(self: heads.SoftmaxAttention, prompt: Gaussian) -> Gaussian:
        matrix, _ = self.affine_limit(prompt)
        return Gaussian(matrix @ prompt.location, matrix @ prompt.covariance @ matrix.T)

    planting.setattr(heads.AbstractAttention, "push_forward", shifted)
    assert decide(CLAIMS["gaussian-limit"], seed=0).verdict == "does not hold"
