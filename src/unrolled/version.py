"""The version of this package, in a file of its own so that every floor can read it."""

__version__ = "0.1.0"
