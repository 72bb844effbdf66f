"""Gabet, Boursier and Boyer: on Gaussian mixtures softmax attention selects."""

from promptlimit.reproduction._paper import Paper

PAPER = Paper(
    __name__,
    title="Softmax Attention on Gaussian Mixtures",
    citation="Gabet, Boursier and Boyer, preprint, October 2026",
    summary="Over a mixture of Gaussians softmax attention selects components, which linear attention "
    "cannot. Two heads are the Bayes denoiser of two components of equal norm, and one head is "
    "enough to classify. Every statement holds; some are sharpened or derived here.",
    key_figure="selection_transition",
)
