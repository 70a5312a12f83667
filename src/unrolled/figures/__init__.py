"""Figures: one function a figure; each takes arrays and returns a matplotlib `Figure` with a caption.

Only matplotlib's object API is used: no pyplot, no display, no global setting is read back or changed.
`save` writes a figure as PNG or SVG. Importing this room needs matplotlib; without it, the import raises
`MissingExtraError`.
"""

from unrolled.errors import MissingExtraError

try:
    import matplotlib
except ImportError as absent:
    raise MissingExtraError("matplotlib", extra="train", purpose="drawing figures") from absent

from unrolled.figures.attention import attention
from unrolled.figures.canvas import save

__all__ = ["attention", "save"]
