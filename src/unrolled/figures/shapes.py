"""Arrays of the sizes that a figure needs, or an error that says which."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unrolled.errors import ShapeError

__all__ = ["Floats", "array_of"]

Floats = npt.NDArray[np.float64]


def array_of(values: npt.ArrayLike, expected: tuple[int | None, ...], what: str, axes: str) -> Floats:
    """Values as a float64 array with at least one number.

    Parameters
    ----------
    values : array
        What a caller gave.
    expected : tuple
        The size of each axis, None where any will do.
    what, axes : str
        Names of the array and of its axes, for the error message.

    Raises
    ------
    ShapeError
        If a size differs, or there is nothing to draw.
    """
    array = np.asarray(values, dtype=np.float64)
    fits = array.ndim == len(expected) and all(
        want is None or want == got for want, got in zip(expected, array.shape, strict=True)
    )
    if not fits:
        sizes = ", ".join("any" if want is None else str(want) for want in expected)
        raise ShapeError(f"{what}: expected shape {axes} = ({sizes}), got {array.shape}")
    if not array.size:
        raise ShapeError(f"{what}: nothing to draw, got shape {axes} = {array.shape}; every axis needs one entry")
    return array
