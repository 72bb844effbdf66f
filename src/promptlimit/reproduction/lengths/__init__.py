"""Statements on length, entropy, needles and temperature, derived for this library."""

from promptlimit.reproduction._paper import Paper

PAPER = Paper(
    __name__,
    title="Length: entropy, needles and temperature",
    citation="derived for this library (docs/lengths.md)",
)
