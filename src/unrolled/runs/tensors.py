"""Named arrays as safetensors bytes, and the refusal of everything else.

A safetensors file is a length, a JSON header and raw numbers: reading it executes nothing. Anything that could execute
code when opened (a pickle, PyTorch's zip archives of pickles) is recognised by its first bytes and refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import numpy as safetensors_numpy

from unrolled.errors import CheckpointError

__all__ = ["Arrays", "check_tensors", "decode_tensors", "encode_tensors", "foreign_reason"]

Arrays = Mapping[str, NDArray[Any]]

_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"  # the opcode that starts every pickle since protocol 2
_LENGTH_BYTES = 8


def encode_tensors(tensors: Arrays) -> bytes:
    """Named arrays as the bytes of a safetensors file; equal arrays give equal bytes."""
    return safetensors_numpy.save({name: np.asarray(array, order="C") for name, array in tensors.items()})


def decode_tensors(content: bytes, where: Path) -> dict[str, NDArray[Any]]:
    """The named arrays of a safetensors file.

    Raises
    ------
    CheckpointError
        If the bytes are a pickle, another format, or a truncated file; the message names `where`.
    """
    reason = foreign_reason(content)
    if reason is not None:
        raise CheckpointError(f"{where} is refused: {reason}; expected safetensors, which holds numbers only")
    try:
        return safetensors_numpy.load(content)
    except SafetensorError as error:
        raise CheckpointError(f"{where} is damaged: {_describe_damage(content)} ({error})") from error


def foreign_reason(content: bytes) -> str | None:
    """Why bytes are not those of a safetensors file, judged by how they start; none if they may be."""
    if content.startswith(_ZIP):
        return "it is a zip archive such as torch.save writes, whose pickle could run code when opened"
    if content.startswith(_PICKLE) and not _starts_with_header(content):
        return "it is a pickle, which could run code when opened"
    if len(content) > _LENGTH_BYTES and not _starts_with_header(content):
        return "it is not a safetensors file"
    return None


def _starts_with_header(content: bytes) -> bool:
    """Whether the header's JSON object follows its 8 bytes of length, as in every safetensors file."""
    return content[_LENGTH_BYTES : _LENGTH_BYTES + 1] == b"{"


def _describe_damage(content: bytes) -> str:
    header_size = int.from_bytes(content[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + header_size
    try:
        header = json.loads(content[_LENGTH_BYTES:start])
        end = start + max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    except (ValueError, KeyError, TypeError):
        return "its header cannot be read"
    return f"expected {end} bytes, got {len(content)}"


def check_tensors(tensors: Arrays, expected: Mapping[str, tuple[int, ...]], *, where: Path) -> None:
    """Check that the arrays are exactly those of the inventory.

    Parameters
    ----------
    tensors : mapping of str to array
        What a file holds.
    expected : mapping of str to tuple of int
        Name and shape of every weight of the model.
    where : Path
        The file, for the message.

    Raises
    ------
    CheckpointError
        For an unknown tensor, a missing one, one of another shape, or one with non-finite values. Nothing is ever
        filled in.
    """
    unknown, missing = sorted(tensors.keys() - expected.keys()), sorted(expected.keys() - tensors.keys())
    if unknown:
        also = f" (and {len(missing)} missing, first {missing[0]})" if missing else ""
        raise CheckpointError(f"{where}: unknown tensor {unknown[0]}{also}; the file is not of this model")
    if missing:
        raise CheckpointError(f"{where}: missing tensor {missing[0]} ({len(missing)} in all); no value is made up")
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise CheckpointError(f"{where}: tensor {name} has shape {tensors[name].shape}, expected {shape}")
        if not np.isfinite(tensors[name]).all():
            raise CheckpointError(f"{where}: tensor {name} holds non-finite values")
