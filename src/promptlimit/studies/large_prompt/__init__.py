"""Boursier and Boyer: with a long prompt, softmax attention is linear attention."""

from promptlimit.studies import Study

STUDY = Study(
    title="Softmax as Linear Attention in the Large-Prompt Regime: a Measure-based Perspective",
    citation="Boursier and Boyer, ICML 2026, arXiv:2512.11784",
    link="https://arxiv.org/abs/2512.11784",
    summary="Over an infinite prompt of centred Gaussian tokens, softmax attention is linear "
    "attention. The outputs and gradients of finite prompts approach this limit polynomially in "
    "the length, as the paper proves, and training over long prompts follows training over the "
    "infinite one. Three statements about the experiments hold with a change: only about half of "
    "the random starts reach the optimum at every length; from most starts the two heads stay "
    "closer together over 1000 tokens than over 10, but not from each length to the next; and "
    "anisotropic covariates slow learning only under the law that a public copy of the code "
    "draws. That softmax attention trains more stably cannot be decided here.",
    key_figure="figure_1",
    order=0,
)
