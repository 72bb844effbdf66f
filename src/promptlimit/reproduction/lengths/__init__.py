"""Statements on length, entropy, needles and temperature, derived for this library."""

from promptlimit.reproduction._paper import Paper

PAPER = Paper(
    __name__,
    title="Length: entropy, needles and temperature",
    citation="derived for this library (docs/lengths.md)",
    summary="What a longer prompt does to the entropy of softmax weights and to the weight of one "
    "relevant token, computed as integrals whose cost does not depend on the length, and which "
    "temperature keeps that weight.",
    key_figure="needles",
)
