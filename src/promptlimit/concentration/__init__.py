"""How fast finite prompts approach their limit: bounds, lemmas, and rates read off a curve."""
