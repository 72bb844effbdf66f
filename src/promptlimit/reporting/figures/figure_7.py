"""Figure 7 of the paper."""
