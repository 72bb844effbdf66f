"""Claims on remarks of the large-prompt paper: each notices a planted error."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

import promptlimit as pl
from promptlimit.dynamics import block_limit
from promptlimit.studies.large_prompt import STUDY, remarks
from promptlimit.tasks import linear_optimum
from studies.planted import turns_red

CLAIMS = {claim.name: claim for claim in STUDY.claims}


def query_too_heavy(*problem, including_query: bool = False, **options):
    found = pl.gradient_moments(*problem, including_query=including_query, **options)
    extra = 1e-3 if including_query and options.get("kind") != "estimate" else 0.0
    return dataclasses.replace(found, value=found.value * (1 + extra))


def best_for_other_lengths(task, lengths, *args, **options):
    return linear_optimum(task, np.ceil(1.1 * np.asarray(lengths)), *args, **options)


def risk_at_queries_of_the_prompt(head, task, lengths, **options):
    if isinstance(task, pl.LinearRegression) and math.isfinite(lengths):
        variances = {"noise_variance": task.noise_variance, "prior_variance": task.prior_variance}
        task = pl.LinearRegression(task.covariance, **variances)
    return pl.risk(head, task, lengths, **options)


def risk_without_the_noise_of_one_label(head, task, lengths, **options):
    found = pl.risk(head, task, lengths, **options)
    extra = 0.5 * task.noise_variance * (task.label_dim > 1)
    return dataclasses.replace(found, value=found.value - extra)


def limit_of_one_label(task, alpha, theta=None):
    one = pl.LinearRegression(task.covariance)
    b = float(block_limit(one, alpha, theta).value[-1, -1])
    right = block_limit(task, alpha, theta)
    labels = task.label_dim
    value = np.zeros_like(right.value)
    value[-labels:, -labels:] = b * np.eye(labels)
    return pl.SoftmaxAttention(right.key_query, value)


@pytest.mark.parametrize(
    ("name", "function", "planted"),
    [
        ("gradients-with-the-query-in-the-prompt", "gradient_moments", query_too_heavy),
        ("queries-of-another-law", "linear_optimum", best_for_other_lengths),
        ("queries-of-another-law", "risk", risk_at_queries_of_the_prompt),
        ("labels-of-several-dimensions", "block_limit", limit_of_one_label),
        ("labels-of-several-dimensions", "risk", risk_without_the_noise_of_one_label),
    ],
)
def test_a_planted_error_turns_a_remark_red(
    name: str, function: str, planted: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remarks, function, planted)
    assert turns_red(CLAIMS[name])
