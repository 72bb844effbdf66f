"""Attention through depth: flows of Gaussian tokens, regression in context, finite prompts."""

from promptlimit.reproduction._paper import Paper

PAPER = Paper(
    __name__,
    title="Attention through Depth",
    citation="Castin, Ablin, Carrillo and Peyré 2025 (continuous depth); von Oswald et al. 2023, "
    "Ahn, Cheng, Daneshmand and Sra 2023, and Bordelon, Letey and Pehlevan 2025 (regression in "
    "depth); what is derived here says so",
    link="https://arxiv.org/abs/2501.18322",
    summary="Layers of softmax attention move the covariance of Gaussian tokens along a flow with a "
    "closed form. The flow of an infinite prompt can blow up at a finite depth; the flow of a "
    "finite prompt never does. The best linear layers approach ridge regression as their number "
    "grows, but at a fixed length with noise they do not reach it.",
    key_figure="blow_up",
)
