"""Boursier and Boyer: with a long prompt, softmax attention is linear attention."""

from promptlimit.reproduction._paper import Paper

PAPER = Paper(
    __name__,
    title="Softmax as Linear Attention in the Large-Prompt Regime: a Measure-based Perspective",
    citation="Boursier and Boyer, ICML 2026, arXiv:2512.11784",
    link="https://arxiv.org/abs/2512.11784",
)
