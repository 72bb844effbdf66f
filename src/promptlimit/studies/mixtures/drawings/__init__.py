"""One module for each computation of figures: it draws them from arrays, without jax."""
