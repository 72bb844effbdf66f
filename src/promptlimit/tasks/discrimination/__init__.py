"""Discrimination in context: the task, and the rules for its risks."""
