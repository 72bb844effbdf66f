"""One module for each computation of figures: their words, and the arrays they are drawn from."""
