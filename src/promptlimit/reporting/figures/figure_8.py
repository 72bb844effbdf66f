"""Figure 8 of the paper."""
