"""Claims on denoising: planted errors turn them red, and what they are decided by is right."""

import functools
import importlib
from types import ModuleType

import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from promptlimit.reporting import render
from promptlimit.studies import Setting, decide
from promptlimit.studies.mixtures import STUDY
from promptlimit.studies.mixtures.denoisers import figure_law, fitted_excesses, least_gaps
from promptlimit.studies.mixtures.experts import aligned_parts
from promptlimit.studies.mixtures.finite_prompts import GatedDirection
from promptlimit.studies.mixtures.iteration import attractor
from promptlimit.studies.mixtures.trained_heads import DenoisingTraining, denoising_training

CLAIMS = {claim.name: claim for claim in STUDY.claims}
QUICK = Setting(quick=True)


def module_of(name: str) -> ModuleType:
    return importlib.import_module(CLAIMS[name].decide.__module__)


def evenly_mixed(weights, components):
    return pl.Mixture(np.full(len(components), 1 / len(components)), components)


def equal_masses(means, covariances, query):
    masses, outputs = aligned_parts(means, covariances, query)
    return np.full_like(masses, masses.mean()), outputs


def heads_of_half_the_noise(task):
    wrong = pl.Denoising(
        task.means,
        task.weights,
        within_variance=task.within_variance + 0.1,
        noise_variance=task.noise_variance,
    )
    return pl.tasks.bayes_heads(wrong)


def layer_without_residual(task):
    right = pl.tasks.bayes_layer(task)
    assert right.residual is not None
    return pl.Layer(right.heads, 0.0 * right.residual)


@pytest.mark.parametrize(
    ("name", "function", "planted"),
    [
        ("gated-experts", "Mixture", evenly_mixed),
        ("any-alignment", "aligned_parts", equal_masses),
        ("two-heads", "bayes_heads", heads_of_half_the_noise),
        ("one-head", "fitted_excesses", functools.partial(fitted_excesses, steps=4)),
        ("linear-stays-above", "limit_excess", lambda *given: 1.65),
        ("degenerate-mixture", "bayes_heads", heads_of_half_the_noise),
        ("iterated-denoising", "attractor", lambda strength: 1.001 * attractor(strength)),
        ("one-layer-for-all", "bayes_layer", layer_without_residual),
        ("noise-regimes", "attractor", lambda strength: 0.0),
    ],
)
def test_a_planted_error_turns_the_claim_red(name, function, planted, monkeypatch):
    monkeypatch.setattr(module_of(name), function, planted)
    assert decide(CLAIMS[name], QUICK).verdict == "does not hold"


def trained(softmax: float, linear: float, late: int):
    """Return training of 32 starts in which some heads are late: at the best affine map."""
    _, affine = least_gaps(figure_law())
    ends = np.where(np.arange(32) < late, affine, softmax)
    steps = np.array([0, 20_000])
    curves = np.stack([np.full(32, 10.0), ends], axis=1)
    return DenoisingTraining(steps, curves, np.full((32, 2), linear))


@pytest.mark.parametrize(
    ("training", "verdict"),
    [
        (trained(1e-4, 1.65, late=4), "holds"),
        (trained(1e-4, 1.65, late=24), "does not hold"),
        (trained(1e-4, 1.80, late=0), "does not hold"),
        (trained(1e-4, 1e-4, late=0), "not decidable here"),
    ],
    ids=["few starts are late", "most are", "linear heads stop elsewhere", "linear heads arrive"],
)
def test_starts_that_train_decide_the_claim_on_trained_heads(training, verdict, monkeypatch):
    claim = CLAIMS["trained-heads"]
    assert decide(claim, QUICK).verdict == "not decided in quick mode"
    monkeypatch.setattr(module_of("trained-heads"), "denoising_training", lambda *_, **__: training)
    assert decide(claim, Setting()).verdict == verdict


def test_training_that_is_quick_is_a_part_of_the_same_protocol():
    training = denoising_training(0, quick=True)
    assert training.softmax.shape == training.linear.shape == (2, len(training.steps))
    assert (training.softmax[:, -1] < 0.5 * training.softmax[:, 0]).all()


def test_a_gate_without_offsets_turns_the_bayes_denoiser_red(monkeypatch):
    module, claim = module_of("bayes-denoiser"), CLAIMS["bayes-denoiser"]
    assert decide(claim, QUICK).verdict == "holds"
    monkeypatch.setattr(pl.Denoising, "bayes", module.without_offsets)
    assert decide(claim, QUICK).verdict != "holds"


def test_claims_on_denoising_have_their_numbers_and_no_evidence_to_give():
    numbers = {1, 2, 14, 15, 16, 17, 18, 19, 20, 22, 23}
    own = [claim for claim in STUDY.claims if claim.number in numbers]
    assert {claim.number for claim in own} == numbers
    assert all(claim.expected == "holds" and not claim.evidence for claim in own)


def made_up(name: str) -> dict[str, np.ndarray]:
    if name == "figure_2":
        curve = np.geomspace(10.0, 1e-5, 6)[None] * np.array([[1.0], [2.0]])
        levels = {"least_linear": np.array(1.64), "least_affine": np.array(0.126)}
        return {"steps": np.arange(6.0), "softmax": curve, "linear": 2 + curve, **levels}
    (figure,) = (item for item in STUDY.figures if item.name == name)
    return dict(figure.compute(QUICK))


@pytest.mark.parametrize(
    ("name", "series"),
    [
        ("figure_2", ["two softmax heads", "two linear heads"]),
        ("figure_3", ["first step", "later steps", "limits"]),
    ],
)
def test_figures_draw_alike_and_name_their_series(name, series):
    data = made_up(name)
    (drawn,), (again,) = (render(STUDY.draw(name, data), "svg") for _ in range(2))
    assert drawn == again
    assert all(f'id="series:{label}"'.encode() in drawn for label in series)


def test_the_limits_of_iterated_denoising_are_where_paths_end():
    data = made_up("figure_3")
    for name in ("weak", "strong"):
        ends, limits = data[f"{name}.paths"][-1], data[f"{name}.limits"]
        away = np.linalg.norm(ends[:, None] - limits, axis=-1)
        assert away.min(axis=1).max() < 1e-9
        assert (len(limits) == 2) == (data[f"{name}.noise"] < 3)


def test_the_least_excess_of_a_gated_direction_is_that_of_the_librarys_layers():
    task = pl.Denoising([[3, 0], [0, 3]], [0.5, 0.5], within_variance=1, noise_variance=4)
    gate, length = 0.7, 200.0
    e = (task.means[0] - task.means[1]) / np.linalg.norm(task.means[0] - task.means[1])
    onto = np.outer(e, e), np.eye(2) - np.outer(e, e)

    def excess(numbers: np.ndarray) -> float:
        value, residual = (
            sum(number * part for number, part in zip(pair, onto, strict=True))
            for pair in (numbers[:2], numbers[2:])
        )
        head = pl.SoftmaxAttention(gate / task.query_variance * onto[0], value)
        layer = pl.Layer(head, residual)
        return float(pl.bayes_excess(layer, task, length, points=2**14).mse)

    # The excess is a quadratic polynomial in the four numbers: values at 15 places determine it.
    unit = np.eye(4)
    at_zero = excess(np.zeros(4))
    plus, minus = (np.array([excess(sign * row) for row in unit]) for sign in (1.0, -1.0))
    slope, hessian = (plus - minus) / 2, np.diag(plus + minus - 2 * at_zero)
    for i in range(4):
        for j in range(i):
            both = excess(unit[i] + unit[j]) - plus[i] - plus[j] + at_zero
            hessian[i, j] = hessian[j, i] = both
    least = at_zero - slope @ np.linalg.solve(hessian, slope) / 2
    found = GatedDirection(task).excess(gate, np.array([length]))
    assert_allclose(found, [least], rtol=1e-3)
