"""One module a figure: its caption and the arrays it is drawn from."""
