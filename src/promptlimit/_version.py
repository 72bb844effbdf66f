"""The version. This module imports nothing, so that every module can import it."""

__version__ = "0.3.0"
