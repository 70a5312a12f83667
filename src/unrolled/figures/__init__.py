"""Figures: one function a figure; each takes arrays and returns a matplotlib `Figure` with a caption.

Only matplotlib's object API is used: no pyplot, no display, and no global setting is changed. `save` writes a figure
as PNG or SVG. Importing this room needs matplotlib; without it, the import raises `MissingExtraError`.
"""

from unrolled.errors import MissingExtraError

try:
    import matplotlib
except ImportError as absent:
    raise MissingExtraError("matplotlib", extra="train", purpose="drawing figures") from absent

from unrolled.figures.attention import attention, attention_heads
from unrolled.figures.canvas import save
from unrolled.figures.confusion import symbol_confusion
from unrolled.figures.curves import length_curve, training_curves
from unrolled.figures.dynamics import gates_over_time, gradient_norms, jacobian_spectrum
from unrolled.figures.series import Curve, Panel, series

__all__ = [
    "Curve",
    "Panel",
    "attention",
    "attention_heads",
    "gates_over_time",
    "gradient_norms",
    "jacobian_spectrum",
    "length_curve",
    "save",
    "series",
    "symbol_confusion",
    "training_curves",
]
