"""Figure 5 of the paper."""
