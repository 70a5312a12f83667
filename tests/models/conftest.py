"""Fixtures of the models' tests."""

from conftest_models import batch, model

__all__ = ["batch", "model"]
