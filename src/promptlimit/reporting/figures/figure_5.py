"""Figure 5 of the paper."""

from promptlimit.reporting._start_figures import draw_gaps

draw = draw_gaps
