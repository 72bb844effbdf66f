"""Gabet, Boursier and Boyer: softmax attention selects components of Gaussian mixtures."""

from promptlimit.studies import Study

STUDY = Study(
    title="Softmax Attention on Gaussian Mixtures",
    citation="Gabet, Boursier and Boyer, preprint, October 2026",
    summary="Over a mixture of Gaussians, softmax attention selects components, which linear "
    "attention cannot do. Over infinite prompts, one head attains the Bayes score for two Gaussian "
    "classes, and two heads are the Bayes denoiser of two components of equal norm. Every "
    "statement holds; some are sharpened or extended here, and the protocols of the training "
    "figures, which the preprint leaves open, are chosen here.",
    key_figure="selection_transition",
)
