"""Fixtures of the models' tests."""

from conftest_models import batch, model, translator

__all__ = ["batch", "model", "translator"]
