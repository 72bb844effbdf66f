"""Statements on prompts whose tokens are not independent, and on pairs of heads."""

from promptlimit.studies import Study

STUDY = Study(
    title="Prompts beyond independent tokens, and pairs of heads",
    citation="derived for this library (docs/prompts.md)",
    summary="Known tokens, sinks, slopes over positions, Markov chains, draws without replacement "
    "and importance weights all have exact moments at every length. A sink makes an induction head "
    "the Bayes predictor of a bigram; a slope over positions (ALiBi) leaves the output random "
    "however long the prompt is; the limit of a chain depends on its stationary law alone, and its "
    "fluctuations on all lags. Two softmax heads with small opposite scores are linear attention "
    "on one token fewer.",
    key_figure="induction_head",
)
