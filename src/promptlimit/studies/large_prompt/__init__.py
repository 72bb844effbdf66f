"""Boursier and Boyer: with a long prompt, softmax attention is linear attention."""

from promptlimit.studies import Study

STUDY = Study(
    title="Softmax as Linear Attention in the Large-Prompt Regime: a Measure-based Perspective",
    citation="Boursier and Boyer, ICML 2026, arXiv:2512.11784",
    link="https://arxiv.org/abs/2512.11784",
    summary="Every statement of the paper is decided here: most hold as stated, five hold with a "
    "change. Five findings go beyond the paper. Averaged over tasks, the squared gap is a power of "
    "the prompt length $L$ if the scores do not read labels; if they do, it falls more slowly than "
    "every power (derived, not proved), but at nearly all of the paper's starts this shows only "
    "beyond $10^{27}$ tokens. Training for a time of order $L$ moves the parameters of softmax "
    "attention away from the limit of the theory by a distance of order one, although the risks "
    "agree. On prompts longer than those of the training, linear attention has a smaller risk than "
    "softmax attention, unless both were trained on very short prompts. Only about half of the "
    "random starts reach the optimum at every length, and anisotropic covariates slow learning "
    "only under the law that a public copy of the paper's code draws. Gradient descent diverges at "
    "smaller learning rates for linear attention than for softmax attention, which in this sense "
    "trains more stably.",
    key_figure="figure_1",
    order=0,
)
