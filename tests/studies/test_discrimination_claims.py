"""The claims on discrimination: what they stand on, and that planted errors turn them red."""

import importlib
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from promptlimit.studies import Setting, decide
from promptlimit.studies.mixtures import STUDY
from promptlimit.studies.mixtures.descent import (
    RATE,
    batch_loss,
    draw,
    even_start,
    exact_loss,
    excesses,
    start,
    step,
    zero_excess,
)
from promptlimit.studies.mixtures.discrimination import (
    C1,
    THREE,
    Classes,
    distances,
)

NUMBERS = (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 21, 24, 25)
CLAIMS = {claim.number: claim for claim in STUDY.claims if claim.number in NUMBERS}
QUICK = Setting(quick=True)


def module_of(number: int) -> ModuleType:
    return importlib.import_module(CLAIMS[number].decide.__module__)


def test_every_claim_on_discrimination_is_there():
    assert tuple(CLAIMS) == NUMBERS


def test_distances_are_those_to_the_nearest_head_of_each_family():
    d, (slope, intercept) = C1.dim, C1.bayes
    theta = np.random.default_rng(5).normal(size=d * d + 2 * d + 1)
    zeta = C1.coordinates(theta)
    free_gate = np.vstack([np.zeros((d + 2, d)), np.eye(d)])  # r = 0 and any s
    at_bayes = np.concatenate([slope, [intercept, 0.0], np.zeros(d)])
    constant = np.zeros((2 * d + 2, 1))  # s = 0 and any r, made up for in b
    constant[d], constant[d + 1] = -C1.positive, 1.0
    expected = []
    for directions in (free_gate, constant):
        for move in (np.ones(directions.shape[1]), -2.0 * np.ones(directions.shape[1])):
            assert C1.excess(at_bayes + directions @ move) < 1e-20  # all of the family is Bayes
        nearest, *_ = np.linalg.lstsq(directions, zeta - at_bayes)
        expected.append(np.linalg.norm(zeta - at_bayes - directions @ nearest))
    assert_allclose(np.ravel(distances(C1, theta[None])), expected, rtol=1e-12)


def left_after(excess: dict[tuple[str, int | None], float]):
    """Return descent that ends at these excesses, by the size of the start and the batch."""

    def descend(heads, batch, record, rng):
        del rng
        name = "gaussian" if heads.key_query.any() else "structured"
        if not heads.value.any():
            name = "zero"
        first = zero_excess()
        ends = [excess[name, batch] if steps > 0 else first for steps in record]
        return np.repeat(np.array(ends)[:, None], len(heads.value), axis=1)

    return descend


STRUCTURED = {
    ("structured", 1): 0.1, ("structured", 16): 0.01, ("structured", 128): 1e-3,
    ("zero", None): 0.33,
}  # fmt: skip
GAUSSIAN = {
    ("gaussian", 1): 0.15, ("gaussian", 16): 0.01, ("gaussian", 128): 5e-3,
    ("gaussian", None): 1e-3, ("structured", 1): 0.02,
}  # fmt: skip


@pytest.mark.parametrize(
    ("number", "ends", "planted", "verdict"),
    [
        (25, STRUCTURED, {}, "holds"),
        (25, STRUCTURED, {("structured", 16): 0.05}, "does not hold"),
        (25, STRUCTURED, {("structured", 128): 0.01}, "does not hold"),
        (25, STRUCTURED, {("structured", 1): 0.01}, "not decidable here"),
        (25, STRUCTURED, {("zero", None): 0.01}, "not decidable here"),
        (24, GAUSSIAN, {}, "holds"),
        (24, GAUSSIAN, {("gaussian", 1): 0.02}, "does not hold"),
        (24, GAUSSIAN, {("structured", 1): 0.15}, "does not hold"),
        (24, GAUSSIAN, {("gaussian", 128): 0.15}, "not decidable here"),
        (24, GAUSSIAN, {("gaussian", None): 0.15}, "not decidable here"),
    ],
)
def test_ends_of_training_decide_the_claims_on_starts(number, ends, planted, verdict, monkeypatch):
    monkeypatch.setattr(module_of(number), "descend", left_after(ends | planted))
    assert decide(CLAIMS[number], Setting()).verdict == verdict


def test_a_start_at_zero_has_the_excess_of_the_score_zero(x64):
    heads = even_start()
    assert_allclose(excesses(jax.tree.map(jnp.zeros_like, heads)), zero_excess(), rtol=1e-9)
    entries = np.concatenate([np.ravel(heads.key_query), np.ravel(heads.value)])
    moving = entries[entries != 0.0]
    assert moving.size == 441
    assert abs(moving.mean()) < 0.01
    assert abs(moving.std() - 1.0) < 0.02


@pytest.mark.parametrize("classes", [C1, THREE], ids=["d = 2", "d = 3"])
def test_slopes_and_curvatures_are_those_of_differences(classes):
    theta = 0.7 * np.random.default_rng(0).normal(size=classes.dim**2 + 2 * classes.dim + 1)
    steps = 1e-5 * np.eye(theta.size)
    slopes = [
        (
            classes.excess(classes.coordinates(theta + step))
            - classes.excess(classes.coordinates(theta - step))
        )
        / 2e-5
        for step in steps
    ]
    assert_allclose(classes.gradient(theta), slopes, atol=1e-9)
    bends = [(classes.gradient(theta + s) - classes.gradient(theta - s)) / 2e-5 for s in steps]
    assert_allclose(classes.hessian(theta), bends, atol=1e-8)


def test_the_exact_step_of_descent_is_the_mean_of_steps_on_large_batches(x64):
    rng = np.random.default_rng(0)
    one = jax.tree.map(lambda entry: 0.3 * entry, start("gaussian", 1, rng))
    exact = step(exact_loss, one)
    many = jax.tree.map(lambda entry: jnp.repeat(entry, 30, axis=0), one)
    drawn = step(batch_loss, many, *draw(30, 4000, rng))
    for before, after, values in zip(*map(jax.tree.leaves, (one, exact, drawn)), strict=True):
        slopes = (np.asarray(before) - np.asarray(values)) / RATE
        away = np.abs(slopes.mean(axis=0) - np.asarray(before - after)[0] / RATE)
        assert (away <= 5 * slopes.std(axis=0) / 30**0.5).all()


@pytest.mark.parametrize("number", [6, 9])
def test_a_jacobian_without_labels_turns_claims_red(number, monkeypatch):
    right = Classes.jacobian

    def wrong(self, theta):
        changed = right(self, theta)
        changed[:, -1] = 0.0
        changed[:, -self.dim - 1] = 0.0
        return changed

    monkeypatch.setattr(Classes, "jacobian", wrong)
    assert decide(CLAIMS[number], QUICK).verdict != "holds"


def test_a_gate_that_is_read_with_the_wrong_sign_turns_claim_8_red(monkeypatch):
    module = module_of(8)
    monkeypatch.setattr(module, "_DIRECTION", -module._DIRECTION)
    right = module._point

    def wrong(classes, size, *, corrected=True):
        point = right(classes, size, corrected=corrected)
        point[-2:] *= -1
        return point

    monkeypatch.setattr(module, "_point", wrong)
    assert decide(CLAIMS[8], QUICK).verdict != "holds"


def test_a_balance_with_the_wrong_slope_turns_claim_12_red(monkeypatch):
    module = module_of(12)
    right = module.gradient

    def wrong(state):
        slopes = right(state)
        slopes[25:] *= 1.01
        return slopes

    monkeypatch.setattr(module, "gradient", wrong)
    assert decide(CLAIMS[12], QUICK).verdict == "does not hold"
