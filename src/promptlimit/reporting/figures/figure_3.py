"""Figure 3 of the paper."""
