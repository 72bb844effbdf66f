"""One module a figure: `draw(data)` returns it from the arrays its recipe computed."""
