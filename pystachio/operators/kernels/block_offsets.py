"""Offsets of texts in a quarter of their bytes (`column.BlockOffsets`), for columns of the hot cache; on a CPU, in C.

Two bytes for each text instead of eight: of short ones, offsets are a tenth of what a column takes in memory. A slice
has plain offsets again.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from pystachio.operators.column import BLOCK_ENTRIES, BlockOffsets, BytesColumn, Column
from pystachio.operators.kernels import native
from pystachio.operators.kernels.host_memory import Memory, empty

_LEAST_ROWS: Final = 1 << 12
"""Fewer are not worth pages of their own."""

_ENTRY_BYTES: Final = 2
_BASE_BYTES: Final = 8


def packed(column: Column, memory: Memory) -> Column:
    """The column, with offsets of two bytes in `memory` if it has texts of which no block spans 64 KiB. Raises what
    `memory` does."""
    library = native.library()
    if library is None or not isinstance(column, BytesColumn) or len(column) < _LEAST_ROWS:
        return column
    offsets = column.places
    if not isinstance(offsets, torch.Tensor) or offsets.device.type != "cpu" or not offsets.is_contiguous():
        return column
    blocks = -(-len(offsets) // BLOCK_ENTRIES)
    split = blocks * _BASE_BYTES
    (room,) = memory([split + blocks * BLOCK_ENTRIES * _ENTRY_BYTES])
    whole = torch.from_numpy(np.frombuffer(room, np.uint8))
    bases, within = whole[:split].view(torch.int64), whole[split:].view(torch.int16)
    if not library.pystachio_pack_offsets(offsets.data_ptr(), len(offsets), bases.data_ptr(), within.data_ptr()):
        return column
    return BytesColumn(column.type, BlockOffsets(bases, within, len(offsets)), column.data, column.validity)


def sliced(blocks: BlockOffsets, start: int, stop: int) -> tuple[torch.Tensor, int, int]:
    """The offsets of the rows [start, stop), from 0, and where their bytes begin and end. Raises IndexError."""
    if not 0 <= start <= stop < blocks.entries:
        raise IndexError("rows outside the strings")
    library = native.library(stop - start)
    if library is None:
        whole = blocks.expanded()[start : stop + 1]
        first, last = int(whole[0]), int(whole[-1])
        return whole - first, first, last
    offsets = empty(stop + 1 - start, torch.int64)
    first = library.pystachio_block_offsets(
        blocks.bases.data_ptr(), blocks.within.data_ptr(), start, len(offsets), offsets.data_ptr()
    )
    return offsets, first, first + int(offsets[-1])
