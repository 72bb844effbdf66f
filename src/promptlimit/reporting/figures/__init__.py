"""One module per figure: `draw(data)` returns the figure of these arrays."""
