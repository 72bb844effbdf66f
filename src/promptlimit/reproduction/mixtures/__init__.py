"""Gabet, Boursier and Boyer: on Gaussian mixtures softmax attention selects."""

from promptlimit.reproduction._paper import Paper

PAPER = Paper(
    __name__,
    title="Softmax Attention on Gaussian Mixtures",
    citation="Gabet, Boursier and Boyer, preprint, October 2026",
)
