"""Claims on depth: planted errors turn them red, and figures draw what they compute."""

import dataclasses
import importlib
import math
from types import ModuleType

import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from promptlimit.reporting import render
from promptlimit.studies import Setting, decide
from promptlimit.studies.depth import STUDY
from promptlimit.studies.depth.flows import closed_form, flow
from promptlimit.studies.depth.regression import descent_stack, softmax_errors

CLAIMS = {claim.name: claim for claim in STUDY.claims}
QUICK = Setting(quick=True)


def module_of(name: str) -> ModuleType:
    return importlib.import_module(CLAIMS[name].decide.__module__)


def slower(key_query, covariance, times, **settings):
    """Return the flow of a head whose scores are a thousandth less sharp."""
    return flow(0.999 * key_query, covariance, times, **settings)


def losing_rank(key_query, covariance, times, **settings):
    right = flow(key_query, covariance, times, **settings)
    spectrum, axes = np.linalg.eigh(right.value)
    spectrum[1:, -1] = 0.0
    thinned = (axes * spectrum[:, None, :]) @ axes.mT
    return dataclasses.replace(right, value=thinned)


def unbounded(attention, prompt, times, **settings):
    right = pl.depth_flow(attention, prompt, times, **settings)
    return right if right.tokens is None else dataclasses.replace(right, tokens=2 * right.tokens)


def of_another_head(key_query, covariance, time):
    return closed_form(1.1 * key_query, covariance, time)


def one_step_more(steps, dim, kernel):
    return descent_stack([*steps, 0.01], dim, kernel)


def one_step_less(task, lengths, depth=1):
    return pl.linear_optimum(task, lengths, depth=max(depth - 1, 1))


def too_good(task, lengths, depth=1):
    right = pl.linear_optimum(task, lengths, depth=depth)
    return dataclasses.replace(right, value=0.9 * right.bound) if depth > 1 else right


@pytest.mark.parametrize(
    ("name", "function", "planted", "verdict"),
    [
        ("closed-covariance", "flow", slower, "does not hold"),
        ("closed-covariance", "closed_form", of_another_head, "does not hold"),
        ("blow-up", "flow", slower, "does not hold"),
        ("low-rank-limits", "flow", slower, "does not hold"),
        ("constant-rank", "flow", losing_rank, "does not hold"),
        ("thin-layers", "flow", slower, "does not hold"),
        ("no-finite-blow-up", "depth_flow", unbounded, "does not hold"),
        ("depth-in-the-limit", "linear_optimum", one_step_less, "does not hold"),
        ("tied-layers", "descent_stack", one_step_more, "does not hold"),
        ("depth-and-ridge", "linear_optimum", too_good, "holds"),
    ],
)  # fmt: skip
def test_a_planted_error_turns_the_claim(name, function, planted, verdict, monkeypatch):
    monkeypatch.setattr(module_of(name), function, planted)
    assert decide(CLAIMS[name], QUICK).verdict == verdict


def test_figures_draw_what_they_compute(x64):
    figures = {figure.name: figure for figure in STUDY.figures}
    for name, panels in (("depth_and_length", 2), ("softmax_stacks", 1), ("blow_up", 1)):
        arrays = figures[name].compute(QUICK)
        drawn = STUDY.draw(name, arrays)
        assert len(drawn.axes) == panels
        assert render(drawn, "svg")
        if name == "depth_and_length":
            assert_allclose(arrays["bound"], arrays["mse"], rtol=1e-6)  # with noise they meet
            assert_allclose(arrays["mse"][:3, 1], [0.239785, 0.135299, 0.118646], atol=1e-6)
            assert_allclose(arrays["still"][:2], [1.153846, 0.361240], atol=1e-6)
            assert_allclose(arrays["moving"], [1.153846, 0.057501], atol=1e-6)
        if name == "blow_up":
            assert np.isnan(arrays["limit"][-1])
            assert np.isfinite(arrays["variances"]).all()


def test_layers_on_drawn_tokens_are_those_of_the_stack(x64):
    """Known errors at d = 5, L = 50, and one prompt through the attention object itself."""
    rng = np.random.default_rng(1)
    squares = softmax_errors(
        rng, [0.5, 0.4, 0.6, 0.3], dim=5, length=50, prompts=2000, sharpness=0.35
    )
    error = math.hypot(0.001, squares.std() / math.sqrt(squares.size))
    assert abs(squares.mean() - 0.099) < 4 * error
    seed = np.random.default_rng(2)
    squares = softmax_errors(seed, [0.9], [0.5, 0.4], dim=2, length=6, prompts=1, sharpness=0.7)
    again = np.random.default_rng(2)
    w, x = math.sqrt(0.2) * again.normal(size=2), again.normal(size=(2, 7))
    x = x.reshape(7, 2)
    y = x[:-1] @ w + math.sqrt(0.1) * again.normal(size=6)
    tokens = pl.Empirical(np.column_stack([x[:-1], y]))
    for steps, (square,) in zip(([0.9], [0.5, 0.4]), squares, strict=True):
        output = descent_stack(steps, 2, "softmax", 0.7)(tokens, np.append(x[-1], 0.0))
        assert_allclose((float(output[-1]) - x[-1] @ w) ** 2, square, rtol=1e-10)
