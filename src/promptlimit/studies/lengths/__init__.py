"""Statements on length, entropy, needles and temperature, derived for this library."""

from promptlimit.studies import Study

STUDY = Study(
    title="Length: entropy, needles and temperature",
    citation="derived for this library (docs/lengths.md)",
    summary="What a longer prompt does to the entropy of the softmax weights and to the weight of "
    "one relevant token, the needle, among Gaussian scores. Both are integrals whose cost does "
    "not depend on the length. A closed formula gives the temperature that keeps the weight of "
    "the needle; the rules in use, which grow like the logarithm of the length, do not keep it.",
    key_figure="needles",
)
