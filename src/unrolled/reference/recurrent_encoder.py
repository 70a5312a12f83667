"""Recurrent encoder."""

from __future__ import annotations

from unrolled import config
from unrolled.parameters import Sizes
from unrolled.reference.cells import cell_type
from unrolled.reference.layer import Weights, under
from unrolled.reference.recurrence import Recurrent
from unrolled.reference.symbol_encoder import SymbolEncoder

__all__ = ["RecurrentEncoder"]


class RecurrentEncoder(SymbolEncoder):
    """Recurrent layers over the symbols, in one or both directions.

    Parameters
    ----------
    settings : config.RecurrentEncoder
    sizes : Sizes
    parameters : dict
        Named as in the inventory, without ``encoder.``.
    """

    def __init__(self, settings: config.RecurrentEncoder, sizes: Sizes, parameters: Weights) -> None:
        layers = Recurrent.from_parameters(
            cell_type(settings),
            under(parameters, "layers"),
            dropout=settings.dropout,
            is_reversed=settings.is_reversed,
        )
        super().__init__(layers, sizes, parameters, dropout=settings.dropout)
