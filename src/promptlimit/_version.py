"""The version: nothing is imported here, so that every module may ask."""

__version__ = "0.3.0"
