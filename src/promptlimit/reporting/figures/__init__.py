"""One module per figure: `draw(data)` draws it from arrays."""
