"""Refusals: a number that is not good enough, and a kind of number that cannot be had."""


class AccuracyError(ArithmeticError):
    """A quadrature measured its own error and found it too large to return a number."""


class KindUnavailableError(ValueError):
    """A kind of number that cannot be had for a problem; others may."""


class NotAnalyticError(KindUnavailableError):
    """A log-Laplace transform that cannot be continued to complex tilts; says why."""
