"""One module a claim: its statement, the numbers that decide it, and its negative controls."""
