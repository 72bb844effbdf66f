r"""Claims on gradient descent in discrimination over infinite prompts, from two types of starts.

A head has the blocks $U_{11}$, $u_{12}$, $v_{21}$ and $v_{22}$ of claim 3 (module `experts`). Its
excess is its logistic risk minus the Bayes risk.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure
from scipy.special import ndtri

from promptlimit.attention import SoftmaxAttention
from promptlimit.reporting import INK, LIMIT, plot_series, selectable, shades
from promptlimit.rules import unwrap
from promptlimit.studies import (
    Check,
    Setting,
    at_most,
    control_at_least,
    control_at_most,
    rejected,
    share_at_least,
)
from promptlimit.studies.mixtures import STUDY
from promptlimit.tasks import (
    AbstractObjective,
    Discrimination,
    RiskProblem,
    bayes_risk,
    block_head,
    exact_objectives,
)

DIM, RATE = 20, 1e-2
BATCHES = (1, 16, 128)
TASK = Discrimination(np.array([[1.0], [-1.0]]) * np.eye(1, DIM), [0.5, 0.5], np.eye(DIM))
"""The classes of Figures 4 and 5: means ±e₁, covariance Γ = I, weights π = 1/2."""

StartName = Literal["gaussian", "structured"]


def side_by_side(
    query: np.ndarray, label_score: np.ndarray, value: np.ndarray, label_value: np.ndarray
) -> SoftmaxAttention:
    """Stack n heads with the blocks U_11 [n, d, d], u_12 [n, d], v_21 [n, d] and v_22 [n]."""
    blocks = zip(query, label_score, value, label_value, strict=True)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(block_head(*row) for row in blocks))


def start(name: StartName, seeds: int, rng: np.random.Generator) -> SoftmaxAttention:
    """Return random heads, stacked.

    "gaussian": all entries are standard normal. "structured": v_21 is standard normal, and all
    other entries are zero.
    """
    entries = [rng.normal(size=(seeds, *shape)) for shape in ((DIM, DIM), (DIM,), (DIM,), ())]
    if name == "structured":
        entries = [entry if place == 2 else 0.0 * entry for place, entry in enumerate(entries)]
    return side_by_side(*entries)


def even_start() -> SoftmaxAttention:
    """Return one deterministic head whose entries are distributed like standard normal numbers.

    The entries are the normal quantiles at multiples of the golden ratio modulo 1.
    """
    golden = (np.sqrt(5.0) - 1.0) / 2.0
    entries = ndtri(golden * np.arange(1.0, DIM**2 + 2 * DIM + 2) % 1.0)
    query, label_score, value, label_value = np.split(entries, np.cumsum([DIM**2, DIM, DIM]))
    return side_by_side(query.reshape(1, DIM, DIM), label_score[None], value[None], label_value)


@functools.cache
def _risk() -> AbstractObjective:
    """Return the logistic risk over an infinite prompt, as a function of the head."""
    with jax.ensure_compile_time_eval():
        problem = RiskProblem(TASK.bayes_head(), TASK, np.array([math.inf]))
        return unwrap(exact_objectives(problem, 4096))(0.0)


def exact_loss(head: SoftmaxAttention) -> Array:
    """Return the logistic risk of a head."""
    return _risk()(head)


def batch_loss(head: SoftmaxAttention, labels: Array, covariates: Array) -> Array:
    """Return the mean logistic loss of a head over queries."""
    w, b, r, s, s0 = TASK.coordinates(head)
    scores = covariates @ w + b + r * jax.nn.sigmoid(s0 + covariates @ s)
    return jnp.mean(jax.nn.softplus(-labels * scores))


@functools.partial(jax.jit, static_argnums=0)
def step(loss: Callable[..., Array], heads: SoftmaxAttention, *batches: Array) -> SoftmaxAttention:
    """Return the heads after a step of gradient descent, with one batch per head."""
    slopes = jax.vmap(jax.grad(loss))(heads, *batches)
    return jax.tree.map(lambda entry, slope: entry - RATE * slope, heads, slopes)


@jax.jit
def _risks(heads: SoftmaxAttention) -> Array:
    return jax.vmap(exact_loss)(heads)


def excesses(heads: SoftmaxAttention) -> np.ndarray:
    """Return the logistic risks of n heads minus the Bayes risk, [n]."""
    return np.asarray(_risks(heads)) - bayes_risk(TASK, math.inf).value


@functools.cache
def zero_excess() -> float:
    """Return the excess of the score 0."""
    return math.log(2.0) - float(bayes_risk(TASK, math.inf).value)


def draw(heads: int, batch: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return labels [heads, batch] and covariates [heads, batch, d] of random queries."""
    labels = np.where(rng.random((heads, batch)) < 0.5, 1.0, -1.0)
    covariates = rng.normal(size=(heads, batch, DIM))
    covariates[:, :, 0] += labels
    return labels, covariates


def descend(
    heads: SoftmaxAttention, batch: int | None, record: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return excesses of n heads after the numbers of steps in `record`, [record, n].

    Each step of descent uses `batch` queries, or the exact gradient if `batch` is None.
    """
    done, rows = 0, []
    for steps in record.astype(int).tolist():
        for _ in range(done, steps):
            if batch is None:
                heads = step(exact_loss, heads)
            else:
                heads = step(batch_loss, heads, *draw(len(heads.value), batch, rng))
        done = steps
        rows.append(excesses(heads))
    return np.array(rows)


def _ends(name: StartName, batch: int, steps: int, starts: int, seed: int) -> np.ndarray:
    """Return the excesses at the end of descent from random starts."""
    rng = np.random.default_rng([seed, batch, name == "gaussian"])
    return descend(start(name, starts, rng), batch, np.array([steps]), rng)[0]


def _stuck_share(words: str, excesses: np.ndarray) -> Check:
    """Return a check that nine tenths of the starts end with at least 0.1 `zero_excess`."""
    return share_at_least(
        f"{words}: starts with an excess above a tenth of that of the score 0",
        excesses >= 0.1 * zero_excess(),
        0.9,
    )


@STUDY.claim(24, reference="Figure 4", quick=False)
def gaussian_starts(setting: Setting) -> Iterator[Check]:
    r"""From starts with standard normal entries, training is slow and ends far from the Bayes score
    ($d = 20$, means $\pm e_1$, learning rate $10^{-2}$). The preprint does not state the batch
    size, and the statement depends on it: it is true with one query per step, but false with 128
    queries and with the exact gradient.
    """
    one = _ends("gaussian", 1, 10_000, 32, setting.seed)
    structured = _ends("structured", 1, 10_000, 32, setting.seed)
    some = _ends("gaussian", 16, 4000, 32, setting.seed)
    many = _ends("gaussian", 128, 3000, 16, setting.seed)
    exact = descend(even_start(), None, np.array([1000.0]), np.random.default_rng(0))[0, 0]
    far = 0.1 * zero_excess()
    yield _stuck_share("batch 1, 10,000 steps", one)
    yield share_at_least(
        "batch 1: pairs in which the Gaussian start has at least 1.5 times the excess of "
        "the structured start",
        one >= 1.5 * structured,
        0.75,
    )
    yield share_at_least(
        "pairs in which batch 1 after 10,000 steps has at least 3 times the excess of batch "
        "16 after 4,000 steps (an effect of gradient noise, derived here)",
        one >= 3.0 * some,
        0.75,
    )
    yield share_at_least(
        "batch 128, 3,000 steps: starts with an excess below a tenth of that of the score 0",
        many < far,
        0.9,
    )
    yield rejected(_stuck_share("batch 128, 3,000 steps", many))
    yield control_at_most(
        "excess after 1,000 steps of the exact gradient from a deterministic start with entries "
        "distributed like standard normal numbers",
        exact,
        far,
        basis="stated: a tenth of the excess of the score 0",
    )


@STUDY.claim(25, reference="Figure 5", quick=False)
def structured_starts(setting: Setting) -> Iterator[Check]:
    r"""From $U_{11} = 0$, $u_{12} = 0$, $v_{22} = 0$ and $v_{21} \sim \mathcal{N}(0, I)$ (the
    blocks of claim 3), stochastic gradient descent with learning rate $10^{-2}$ approaches the
    Bayes score from nine of ten starts ($d = 20$). The preprint does not state batch size, steps
    and seeds. Here the final excess is at most a tenth of that of the score 0 with a batch of 16,
    and at most a hundredth with a batch of 128.
    """
    rng = np.random.default_rng(setting.seed)

    def excesses(batch: int, steps: int, starts: int) -> np.ndarray:
        return descend(start("structured", starts, rng), batch, np.array([steps]), rng)[0]

    first = np.abs(excesses(1, 0, 32) - zero_excess()).max()
    still = jax.tree.map(jnp.zeros_like, even_start())
    saddle = descend(still, None, np.array([50.0]), rng)[0, 0]
    noisy = _trained("batch 1, 800 steps", excesses(1, 800, 32), 10)
    yield at_most(
        "excess before training, distance from that of the score 0",
        first,
        1e-9,
        basis=r"$U_{11} = 0$ and $v_{22} = 0$ give the score $v_1(2\sigma(0) - 1) = 0$; two "
        "quadratures to $10^{-12}$",
    )
    yield _trained("batch 16, 4,000 steps", excesses(16, 4000, 32), 10)
    yield _trained("batch 128, 1,500 steps", excesses(128, 1500, 16), 100)
    yield rejected(noisy)
    yield control_at_least(
        "excess from a start with $v_{21} = 0$ as well, a saddle",
        saddle,
        0.9 * zero_excess(),
        basis="theory: the gradient is 0 there, so the excess does not change; margin 0.9",
    )


def _trained(name: str, excesses: np.ndarray, part: int) -> Check:
    """Return a check that nine tenths of the starts end with at most 1/`part` of `zero_excess`."""
    words = f"{name}: starts with at most $1/{part}$ of the excess of the score 0"
    return share_at_least(words, excesses <= zero_excess() / part, 0.9)


def curves(name: StartName, setting: Setting) -> dict[str, np.ndarray]:
    """Return excesses along training, [batch, record, start], and along exact descent, [record]."""
    steps, seeds = (1000, 2) if setting.quick else (10_000, 3)
    record = np.unique(np.geomspace(1, steps, 25).round())
    runs = []
    for batch in BATCHES:
        heads = start(name, seeds, np.random.default_rng(setting.seed))
        runs.append(descend(heads, batch, record, np.random.default_rng([setting.seed, batch])))
    exact_record = record[record <= (200 if setting.quick else 2000)]
    same = start(name, seeds, np.random.default_rng(setting.seed))
    first = jax.tree.map(lambda entry: entry[:1], same)
    exact = descend(first, None, exact_record, np.random.default_rng(0))[:, 0]
    return {
        "batches": np.array(BATCHES),
        "steps": record,
        "excess": np.stack(runs),
        "exact_steps": exact_record,
        "exact": exact,
    }


@STUDY.figure(
    "Training from Gaussian starts", reference="Figure 4", section="paper", name="gaussian_starts"
)
def gaussian_curves(setting: Setting) -> dict[str, np.ndarray]:
    r"""Logistic risk minus the Bayes risk if all entries are standard normal at the start: $d =
    20$, means $\pm e_1$, $\Gamma = I$, $\pi = 1/2$, learning rate $10^{-2}$, infinite prompts. Thin
    lines are runs, thick lines their means. The preprint does not state batch size, steps and
    seeds; the figure shows three batch sizes, 10,000 steps and three starts. Dashed: descent with
    the exact gradient from the first start; this curve has no plateau. The result depends on the
    batch size: with one query per step the excess stays above 0.05; with 128 queries it becomes
    about a hundred times smaller.
    """
    return curves("gaussian", setting)


@STUDY.figure(
    "Training from structured starts",
    reference="Figure 5",
    section="paper",
    name="structured_starts",
)
def structured_curves(setting: Setting) -> dict[str, np.ndarray]:
    r"""Logistic risk minus the Bayes risk from $U_{11} = 0$, $u_{12} = 0$, $v_{22} = 0$ and $v_{21}
    \sim \mathcal{N}(0, I)$, the starts of Theorem 3.6: $d = 20$, means $\pm e_1$, $\Gamma = I$,
    $\pi = 1/2$, learning rate $10^{-2}$, infinite prompts. Thin lines are runs, thick lines their
    means. The preprint does not state batch size, steps and seeds; the figure shows three batch
    sizes, 10,000 steps and three starts. Dashed: descent with the exact gradient from the first
    start. Each curve levels off at the gradient noise of its batch size.
    """
    return curves("structured", setting)


@gaussian_curves.drawing
@structured_curves.drawing
def draw_curves(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axis = figure.subplots()
    colours = shades(len(data["batches"]))
    for batch, rows, colour in zip(data["batches"], data["excess"], colours, strict=True):
        label = f"batch {batch:g}"
        runs = axis.plot(data["steps"], rows, color=colour, linewidth=0.6, alpha=0.6)
        mean = axis.plot(data["steps"], rows.mean(axis=1), color=colour, label=label)
        selectable([*runs, *mean], label)
    exact = data["exact_steps"], data["exact"]
    plot_series(axis, *exact, "exact gradient", color=LIMIT, dashes=(4, 2))
    axis.set(xscale="log", yscale="log")
    axis.set_xlabel("steps of descent")
    axis.set_ylabel("excess risk over Bayes", color=INK)
    axis.legend(fontsize=8)
    return figure
