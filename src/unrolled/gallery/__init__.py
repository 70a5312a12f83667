"""A run in pictures: each figure of `unrolled.figures` drawn for a trained run, and one page that holds them all.

Importing this room needs PyTorch and matplotlib; without them, the import raises `MissingExtraError`.
"""

from unrolled.gallery.page import report
from unrolled.gallery.pictures import PICTURES, draw
from unrolled.gallery.view import View

__all__ = ["PICTURES", "View", "draw", "report"]
