"""Figure 6 of the paper."""

from promptlimit.reporting._training_figures import draw_ends

draw = draw_ends
