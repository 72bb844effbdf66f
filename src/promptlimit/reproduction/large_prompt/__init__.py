"""Boursier and Boyer: with a long prompt, softmax attention is linear attention."""

from promptlimit.reproduction._paper import Paper

PAPER = Paper(
    __name__,
    title="Softmax as Linear Attention in the Large-Prompt Regime: a Measure-based Perspective",
    citation="Boursier and Boyer, ICML 2026, arXiv:2512.11784",
    link="https://arxiv.org/abs/2512.11784",
    summary="Over an infinite prompt of Gaussian tokens softmax attention is linear attention, and a "
    "finite prompt approaches that limit at the rate the paper proves, in outputs, gradients, "
    "risks and training. Three statements of the experiments are true in a narrower form: a "
    "random start reaches the optimum only about half the time at long prompts. One, that softmax "
    "trains more stably, cannot be decided from what the paper shows.",
    key_figure="figure_1",
    order=0,
)
