"""Boursier and Boyer: with a long prompt, softmax attention is linear attention."""

from promptlimit.studies import Study

STUDY = Study(
    title="Softmax as Linear Attention in the Large-Prompt Regime: a Measure-based Perspective",
    citation="Boursier and Boyer, ICML 2026, arXiv:2512.11784",
    link="https://arxiv.org/abs/2512.11784",
    summary="The statements of the paper are decided one by one; most hold as stated, five hold "
    "with a change. Beyond the paper: averaged over tasks, the squared gap is a power of the "
    "length $L$ if the scores do not read labels and falls more slowly than every power if "
    "they do, although at nearly all of the paper's starts this shows only beyond $10^{27}$ "
    "tokens. Long training and long prompts do not commute: at times of order $L$ the "
    "parameters of softmax attention leave the limit of the theory by a distance of order "
    "one, while the risks agree. Trained at one length and tested at longer ones, linear "
    "attention has the smaller risk, unless training uses very short prompts. Only about half "
    "of the random starts reach the optimum at every length, and anisotropic covariates slow "
    "learning only under the law that a public copy of the code draws. Softmax attention "
    "trains more stably in one sense: descent diverges at larger learning rates than for "
    "linear attention.",
    key_figure="figure_1",
    order=0,
)
