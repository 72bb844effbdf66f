"""Denoising with a Gaussian mixture: the tasks, and the rules for their risks."""
