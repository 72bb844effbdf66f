"""The refusal to return a number that is not good enough."""


class AccuracyError(ArithmeticError):
    """A quadrature measured its own error and found it too large to return a number."""
