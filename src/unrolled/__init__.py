"""Sequence models, unrolled: train them on your own pairs or text, decode, and look inside."""

__version__ = "0.1.0"
