"""The bytes of one decoded column in a file: a header page and segments, each at a multiple of 4 KiB. A segment is as
it is in memory, so that to read it back is a check and no copy; integers that take at most seven eighths of that when
they are packed (`kernels.packing`) are packed.

The header (`header`) says whose column it is, its logical type, rows, representation, dtype, bounds, and each
segment's offset, length, xxh3 checksum and, if it is packed, the divisor. The places of segments follow from their
lengths, and their lengths from rows and dtype, so every field is checked against another one or against the file.
Numbers are little-endian. `encoding` writes it, `decoding` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pystachio.operators.chunks.header import PAGE_BYTES

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """What a file must hold to be the right one. `identity` names the file version, place and form of the column."""

    identity: str
    type: pa.DataType
    rows: int


def padded(nbytes: int) -> int:
    """In whole pages."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES
