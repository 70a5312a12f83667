"""How commands that compute much have matrix products computed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unrolled.inference.engines import EngineName

__all__ = ["fast_products"]


def fast_products(engine: EngineName = "torch") -> AbstractContextManager[None]:
    """In the mode that is the faster one here and exact; a tenth of a second finds it. Other engines have no choice."""
    from unrolled.inference.engines import choose_engine

    if choose_engine(engine) != "torch":
        return nullcontext()
    from unrolled.models.matrix_products import matrix_mode, probe_matrix_mode

    return matrix_mode(probe_matrix_mode())
