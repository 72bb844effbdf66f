"""Figure 4 of the paper."""
