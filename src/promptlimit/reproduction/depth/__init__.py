"""Attention layers one upon another: Castin et al. in continuous depth, Ahn et al. in context."""

from promptlimit.reproduction._paper import Paper

PAPER = Paper(
    __name__,
    title="Attention Through Depth",
    citation="Castin, Ablin, Carrillo and Peyré 2025 (continuous depth); von Oswald et al. 2023, "
    "Ahn et al. 2023 and Bordelon, Letey and Pehlevan 2025 (regression in depth); what is derived "
    "here says so",
    link="https://arxiv.org/abs/2501.18322",
)
