"""Continuous depth: the equation against closed forms, thin layers and tokens moved by hand."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl

RNG = np.random.default_rng(3)
U = 0.3 * RNG.standard_normal((3, 3))
V = 0.3 * RNG.standard_normal((3, 3))
G = np.array([[1.0, 0.3, 0.0], [0.3, 0.8, -0.2], [0.0, -0.2, 0.5]])
MEAN = np.array([0.3, -0.2, 0.5])


def test_one_dimension_is_the_formula(x64):
    u, v, s, m, times = 0.4, 0.7, 1.2, 0.5, np.array([0.0, 0.3, 0.9, 1.3])
    head, law = pl.SoftmaxAttention([[u]], [[v]]), pl.Gaussian([m], [[s]])
    left = 1 - 2 * v * u * s * times
    for method, digits in [("closed", 1e-8), ("ode", 1e-7)]:
        flow = pl.depth_flow(head, law, times, method=method)
        assert_allclose(flow.cov[:, 0, 0], s / left, rtol=digits)
        assert_allclose(flow.mean[:, 0], m * np.exp(v * times) / np.sqrt(left), rtol=digits)
        assert (flow.kind, flow.error.shape) == ("limit", (4, 1, 1))
    closed = pl.depth_flow(head, law, times)
    past = pl.depth_flow(head, law, [1.0, 2.0], method="ode")
    assert closed.blow_up is not None
    assert past.blow_up is not None
    assert_allclose(closed.blow_up, 1 / (2 * v * u * s), rtol=1e-14)
    assert_allclose(past.blow_up, 1 / (2 * v * u * s), rtol=1e-8)
    assert np.isnan(past.cov[1]).all()
    assert np.isnan(pl.depth_flow(head, law, [2.0, 3.0]).cov).all()


def test_the_equation_follows_the_closed_form(x64):
    heads = pl.MultiHead(
        [pl.SoftmaxAttention(U, 0.5 * np.eye(3)), pl.SoftmaxAttention(V, -0.8 * np.eye(3))]
    )
    law, times = pl.Gaussian(MEAN, G), [0.0, 0.4, 0.8]
    closed, solved = (pl.depth_flow(heads, law, times, method=one) for one in ("closed", "ode"))
    B = 0.5 * (U + U.T) - 0.8 * (V + V.T)
    for time, cov in zip(times, closed.cov, strict=True):
        assert_allclose(cov, G @ np.linalg.inv(np.eye(3) - time * B @ G), atol=1e-13)
    assert_allclose(solved.cov, closed.cov, atol=1e-7)
    assert_allclose(solved.mean, closed.mean, atol=1e-7)
    assert (closed.error == 0).all()
    assert (solved.error[1:] > 0).all()
    assert solved.blow_up is None
    root = np.linalg.cholesky(G)
    assert closed.blow_up is not None
    assert_allclose(closed.blow_up, 1 / np.linalg.eigvalsh(root.T @ B @ root)[-1], rtol=1e-12)


def test_many_thin_layers_reach_the_flow(x64):
    head, law = pl.SoftmaxAttention(U, V), pl.Gaussian(MEAN, G)
    flow = pl.depth_flow(head, law, [0.3])
    errors = []
    for count in (40, 80):
        thin = pl.Layer(pl.SoftmaxAttention(U, 0.3 / count * V))
        image = pl.Stack([thin] * count).push_forward(law)
        errors.append(np.abs(np.asarray(image.cov) - flow.cov[0]).max())
    assert_allclose(errors[0] / errors[1], 2.0, rtol=0.05)
    linear = pl.depth_flow(pl.LinearAttention(U, V), law, [0.3])
    thin = pl.Layer(pl.LinearAttention(U, 0.3 / 40 * V))
    image = pl.Stack([thin] * 40).push_forward(law)
    assert_allclose(np.asarray(image.mean), linear.mean[0], atol=0.01)
    assert np.abs(linear.mean - flow.mean).max() > 0.02


def test_tokens_move_with_the_output_of_attention(x64):
    tokens = RNG.standard_normal((7, 3))
    heads = pl.MultiHead([pl.SoftmaxAttention(U, V), pl.LinearAttention(V, U)])
    flow = pl.depth_flow(heads, pl.Empirical(tokens), [0.0, 1e-6, 0.1])
    prompt = pl.Empirical(tokens)
    moved = np.array([heads(prompt, token) for token in tokens])
    assert flow.tokens is not None
    assert_allclose((flow.tokens[1] - flow.tokens[0]) / 1e-6, moved, rtol=1e-4, atol=1e-6)
    assert_allclose(flow.cov[2], np.cov(flow.tokens[2].T, bias=True), rtol=1e-12)
    assert (flow.kind, flow.blow_up) == ("exact", None)
    with pytest.raises(ArithmeticError, match="tokens of linear heads may grow without bound"):
        pl.depth_flow(heads, pl.Empirical(tokens), [5.0])
    weighted = pl.Empirical(tokens[:2], [0.25, 0.75])
    bounded = pl.depth_flow(pl.SoftmaxAttention(U, V), weighted, [5.0])
    assert bounded.blow_up == math.inf
    assert bounded.tokens is not None
    mean = 0.25 * bounded.tokens[0, 0] + 0.75 * bounded.tokens[0, 1]
    assert_allclose(bounded.mean[0], mean, rtol=1e-12)
    reach = np.exp(5.0 * np.linalg.norm(V, 2)) * np.linalg.norm(tokens[:2], axis=1).max()
    assert np.linalg.norm(bounded.tokens[0], axis=1).max() < reach


def test_ranks_fall_below_a_threshold_and_not_to_zero(x64):
    head = pl.SoftmaxAttention(-np.diag([1.0, 0.0]), np.eye(2))
    flow = pl.depth_flow(head, pl.Gaussian(np.zeros(2), np.eye(2)), [0.0, 1e6])
    assert flow.blow_up == math.inf
    assert flow.ranks().tolist() == [2, 2]
    assert flow.ranks(1e-3).tolist() == [2, 1]
    assert_allclose(flow.cov[1], np.diag([1 / (1 + 2e6), 1.0]), atol=1e-15)


def test_the_plot_has_a_line_per_eigenvalue_and_the_blow_up(x64):
    head = pl.SoftmaxAttention(0.5 * np.eye(2), np.eye(2))
    flow = pl.depth_flow(head, pl.Gaussian(np.zeros(2), np.diag([1.0, 0.5])), [0.0, 0.5, 2.0])
    ax = flow.plot()
    assert len(ax.lines) == 3
    assert_allclose(np.asarray(ax.lines[0].get_ydata()), [1.0, 2.0])
    assert flow.to_xarray().attrs == {"kind": "limit", "blow_up": 1.0}


def test_errors_suggest_a_fix():
    head, law = pl.SoftmaxAttention(U, V), pl.Gaussian(MEAN, G)
    refusals = {
        "`times` must be at least 0 and strictly increasing, got [1.0, 0.0].": (
            head, law, [1.0, 0.0], "auto",
        ),
        "`attention` must have softmax heads whose value matrices are multiples of the identity "
        "for method='closed', got other heads. Pass method='ode'.": (head, law, [1.0], "closed"),
        "`attention` must have softmax heads whose value matrices are multiples of the identity "
        "for method='closed', got other heads. Pass method='ode'. ": (
            pl.LinearAttention(U, np.eye(3)), law, [1.0], "closed",
        ),
        "`attention` must consist of heads without a residual in continuous depth, got Layer. Pass "
        "a head or a MultiHead: each step adds the identity itself.": (
            pl.Layer(head), law, [1.0], "auto",
        ),
        "`attention` must have inputs and outputs of dimension 1, as `prompt` has, got tokens, "
        "queries and outputs of dimensions (3, 3, 3).": (
            head, pl.Gaussian([0.0], [[1.0]]), [1.0], "auto",
        ),
        "`prompt` must be a Gaussian or an Empirical measure in continuous depth, got Rademacher. "
        "Pass Empirical(law.sample(...)) for another law.": (
            head, pl.Rademacher([1.0, 1.0, 1.0]), [1.0], "auto",
        ),
    }  # fmt: skip
    for sentence, (attention, prompt, times, method) in refusals.items():
        with pytest.raises(ValueError, match="must") as refusal:
            pl.depth_flow(attention, prompt, times, method=method)
        assert str(refusal.value) == sentence.strip()
    for wrong in (0.0, -1.0, np.nan, 1.0):
        with pytest.raises(ValueError, match=r"^`rtol` must be between 1e-13 and 0\.001, got"):
            pl.depth_flow(head, law, [1.0], rtol=wrong)
