"""Parts of files as they are read back: checked, and unpacked where they are packed (`packing`). All of a job at once,
in C, where the library is there: each call waits for the interpreter at its end.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xxhash

from pystachio.operators.column import Bounds
from pystachio.operators.kernels import native, packing

Array = np.ndarray[Any, np.dtype[Any]]

_INTEGERS: Final = "i"


@dataclass(slots=True, eq=False)
class Segment:
    """`data` (uint8) is the memory of `values`, [rows] of some dtype, or is them packed by a `divisor`.

    `read` finds out what follows: whether they can be what was stored, the XXH3 of `data`, and the range of integers.
    """

    data: Array
    values: Array
    divisor: int | None
    is_whole: bool = True
    checksum: int = 0
    ends: Bounds | None = None


def read(segments: Sequence[Segment]) -> None:
    """Fill the values of those that are packed, and what is to be found out of all."""
    library = native.library()
    if library is None:
        for segment in segments:
            _read(segment)
        return
    asked = (native.Segment * len(segments))(*map(_described, segments))
    library.pystachio_read_segments(ctypes.addressof(asked), len(segments))
    for segment, found in zip(segments, asked, strict=True):
        segment.is_whole = found.status != native.Status.CORRUPT
        is_short = found.status == native.Status.NOT_HANDLED
        segment.checksum = xxhash.xxh3_64_intdigest(segment.data.data) if is_short else found.checksum
        if segment.divisor is not None or (found.width and not is_short):
            segment.ends = found.low, found.high


def _described(segment: Segment) -> Any:
    """A `native.Segment`, for an array of them."""
    data, values = segment.data, segment.values
    width = values.itemsize if values.dtype.kind == _INTEGERS else 0
    out = None if segment.divisor is None else _address(values)
    return _address(data), len(data), out, len(values), segment.divisor or 0, 0, 0, 0, width, 0


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _read(segment: Segment) -> None:
    segment.checksum = xxhash.xxh3_64_intdigest(segment.data.data)
    if segment.divisor is not None:
        segment.ends = packing.unpack(segment.data, segment.divisor, segment.values)
        segment.is_whole = segment.ends is not None
    elif segment.values.dtype.kind == _INTEGERS and len(segment.values):
        segment.ends = int(segment.values.min()), int(segment.values.max())
