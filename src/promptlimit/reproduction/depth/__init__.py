"""Attention through depth: Gaussian tokens stay Gaussian, and what finite prompts add."""

from promptlimit.reproduction._paper import Paper

PAPER = Paper(
    __name__,
    title="Attention through Depth",
    citation="Castin, Ablin, Carrillo and Peyré 2025; Ahn, Cheng, Daneshmand and Sra 2023",
)
