"""Attention through depth: flows of Gaussian tokens, regression in context, finite prompts."""

from promptlimit.studies import Study

STUDY = Study(
    title="Attention through Depth",
    citation="Castin, Ablin, Carrillo and Peyré 2025 (continuous depth); von Oswald et al. 2023, "
    "Ahn, Cheng, Daneshmand and Sra 2023, and Bordelon, Letey and Pehlevan 2025 (regression in "
    "depth); results derived here are marked as such",
    link="https://arxiv.org/abs/2501.18322",
    summary="In continuous depth, softmax attention moves the covariance of Gaussian tokens along "
    "a flow with a closed form. The flow of an infinite prompt can blow up at a finite depth; that "
    "of a finite prompt never does. In regression in context, the best linear layers come close "
    "to ridge regression as their number grows, but with label noise they do not reach it. The "
    "variance and the bias of a softmax stack over $L$ tokens are of order $1/L$, with constants "
    "in closed form.",
    key_figure="blow_up",
)
