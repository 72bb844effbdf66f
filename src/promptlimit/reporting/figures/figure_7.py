"""Figure 7 of the paper."""

from promptlimit.reporting._training_figures import draw_distances

draw = draw_distances
