"""What cannot be had, as an exception of its own: a caller may then take another kind."""


class KindUnavailableError(ValueError):
    """A kind of gap that cannot be had for a problem; others may."""
