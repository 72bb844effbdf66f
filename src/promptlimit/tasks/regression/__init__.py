"""In-context linear regression: the tasks, and the rules for their risks."""
