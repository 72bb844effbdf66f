"""Figure 8 of the paper."""

from promptlimit.reporting._training_figures import draw_risks

draw = draw_risks
