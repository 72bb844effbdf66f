"""Figure 6 of the paper."""
