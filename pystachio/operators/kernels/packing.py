"""Integers in as many bits as they need, for disks (packing.h says how): blocks of 1024 values, each with its lowest
value and a width of its own, after "The FastLanes Compression Layout" (Afroozeh and Boncz, VLDB 2023).

In C, and in numpy where there is no C library: the bytes are the same. `segments` unpacks.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from pystachio.operators.column import Bounds
from pystachio.operators.kernels import native

BLOCK_ROWS: Final = 1024
_BYTES_PER_BIT: Final = BLOCK_ROWS // 8

Array = np.ndarray[Any, np.dtype[Any]]


def most_packed_bytes(rows: int, bits: int) -> int:
    """What integers take at most whose distances from the lowest one fit so many bits."""
    blocks = -(-rows // BLOCK_ROWS)
    return _head_bytes(blocks) + blocks * bits * _BYTES_PER_BIT


def pack(values: Array, validity: Array | None, out: Array) -> tuple[int, int] | None:
    """Put signed integers ([rows], contiguous) into `out` (uint8); those under NULLs (false in `validity`, bool [rows])
    are not kept. The bytes that they take there and their common divisor; None when there is not
    so much room."""
    library = native.library()
    if library is None:
        return _pack(values, validity, out)
    valid = None if validity is None else validity.ctypes.data
    divisor = library.pystachio_common_divisor(values.ctypes.data, values.itemsize, len(values), valid) or 1
    nbytes = library.pystachio_pack(
        values.ctypes.data, values.itemsize, len(values), valid, divisor, out.ctypes.data, len(out)
    )
    return None if nbytes < 0 else (nbytes, divisor)


def _pack(values: Array, validity: Array | None, out: Array) -> tuple[int, int] | None:
    divisor = _common_divisor(values if validity is None else values[validity])
    blocks = -(-len(values) // BLOCK_ROWS)
    rows = np.zeros((blocks, BLOCK_ROWS), values.dtype)
    rows.reshape(-1)[: len(values)] = values
    valid = np.zeros(rows.shape, np.bool_)
    valid.reshape(-1)[: len(values)] = True if validity is None else validity
    limits = np.iinfo(values.dtype)
    lowest = np.where(valid, rows, limits.max).min(1, initial=limits.max)
    lowest[~valid.any(1)] = 0
    unsigned = np.dtype(f"u{values.itemsize}")
    distances = np.where(valid, (rows - lowest[:, None]).view(unsigned), 0) // unsigned.type(divisor)
    widths = [int(distance).bit_length() for distance in distances.max(1)]
    nbytes = _head_bytes(blocks) + sum(widths) * _BYTES_PER_BIT
    if nbytes > len(out):
        return None
    head = 8 * blocks
    out[:nbytes] = 0
    out[:head].view("<i8")[:] = lowest
    out[head : head + blocks] = widths
    at = _head_bytes(blocks)
    for distance, width in zip(distances, widths, strict=True):
        _pack_block(distance, width, out[at : at + width * _BYTES_PER_BIT])
        at += width * _BYTES_PER_BIT
    return nbytes, divisor


def _pack_block(distances: Array, width: int, out: Array) -> None:
    bits = 8 * distances.itemsize
    lanes = out.view(distances.dtype).reshape(width, BLOCK_ROWS // bits)
    for row, values in enumerate(distances.reshape(bits, BLOCK_ROWS // bits)):
        word, shift = divmod(row * width, bits)
        if width:
            lanes[word] |= values << values.dtype.type(shift)
        if shift + width > bits:
            lanes[word + 1] |= values >> values.dtype.type(bits - shift)


def unpack(packed: Array, divisor: int, out: Array) -> Bounds | None:
    """Fill `out` (signed integers [rows], contiguous, rows > 0) with what was packed; their range. None when `packed`
    (uint8) is not so many values. In numpy: `segments` has it in C."""
    blocks = -(-len(out) // BLOCK_ROWS)
    head, start = 8 * blocks, _head_bytes(blocks)
    if len(packed) < start:
        return None
    lowest, widths = packed[:head].view("<i8"), packed[head : head + blocks].tolist()
    if max(widths) > 8 * out.itemsize or len(packed) != start + sum(widths) * _BYTES_PER_BIT:
        return None
    unsigned = np.dtype(f"u{out.itemsize}")
    distances = np.zeros((blocks, BLOCK_ROWS), unsigned)
    for block, width in enumerate(widths):
        if width:
            end = start + width * _BYTES_PER_BIT
            _unpack_block(packed[start:end].view(unsigned), width, distances[block])
            start = end
    limits = np.iinfo(out.dtype)
    for least, furthest in zip(lowest.tolist(), distances.max(1).tolist(), strict=True):
        if least < limits.min or least + furthest * divisor > limits.max:
            return None  # it has wrapped
    distances *= unsigned.type(divisor % (1 << 8 * out.itemsize))
    distances += lowest.astype(unsigned)[:, None]
    out[:] = distances.reshape(-1)[: len(out)].view(out.dtype)
    return int(out.min()), int(out.max())


def _unpack_block(packed: Array, width: int, out: Array) -> None:
    kind, bits = out.dtype.type, 8 * out.itemsize
    lanes, rows = packed.reshape(width, BLOCK_ROWS // bits), out.reshape(bits, BLOCK_ROWS // bits)
    mask = kind((1 << width) - 1)
    for row in range(bits):
        word, shift = divmod(row * width, bits)
        rows[row] = lanes[word] >> kind(shift)
        if shift + width > bits:
            rows[row] |= lanes[word + 1] << kind(bits - shift)
        rows[row] &= mask


def _common_divisor(values: Array) -> int:
    """Of the differences of any two."""
    if not len(values):
        return 1
    wide = values.astype(np.int64)
    distances = np.unique((wide - wide.min()).view(np.uint64))
    return int(np.gcd.reduce(distances)) or 1


def _head_bytes(blocks: int) -> int:
    return 8 * blocks + -(-blocks // 8) * 8
