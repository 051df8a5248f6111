"""Rows by parts of the hash of several columns, in C."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

import torch

from pystachio.operators.kernels import native
from pystachio.operators.kernels.host_memory import empty

MOST_PARTS: Final = 256
"""As in native/groups.h."""


def mix_hashes(hashes: torch.Tensor, values: torch.Tensor, validity: torch.Tensor | None) -> None:
    """Take a column into `hashes` (int64 [rows], zeros before the first): equal integers of any dtype, and NULLs, keep
    equal hashes equal. The C library must be there."""
    library = native.library()
    assert library is not None
    values = values.contiguous()
    validity = None if validity is None else validity.contiguous()
    status = library.pystachio_mix_hashes(
        values.data_ptr(),
        values.itemsize,
        None if validity is None else validity.data_ptr(),
        len(values),
        hashes.data_ptr(),
    )
    assert status == native.Status.OK, "widths of integers"


def rows_by_part(
    hashes: torch.Tensor, bits: int, above: torch.Tensor | None = None, most: int = 1
) -> tuple[list[int], torch.Tensor]:
    """Where the rows of each part begin, and the end; the rows (int32) in that order.

    There are 2^bits parts for each number in [0, `most`), which `above` (int32 [rows]) are.
    """
    library = native.library()
    assert library is not None
    parts = most << bits
    offsets = empty(parts + 1, torch.int32)
    order = empty(len(hashes), torch.int32)
    above = None if above is None else above.to(torch.int32).contiguous()
    library.pystachio_split_rows(
        hashes.data_ptr(),
        None if above is None else above.data_ptr(),
        len(hashes),
        bits,
        parts,
        offsets.data_ptr(),
        order.data_ptr(),
    )
    return offsets.tolist(), order


def rows_by_values(
    columns: Sequence[tuple[torch.Tensor, torch.Tensor | None]],
    bits: int,
    above: torch.Tensor | None = None,
    most: int = 1,
) -> tuple[list[int], torch.Tensor]:
    """`rows_by_part` of the hashes of columns (at least one; values and validity as `mix_hashes` takes them), of which
    at most MOST_PARTS are."""
    library = native.library()
    assert library is not None
    parts, count = most << bits, len(columns)
    assert parts <= MOST_PARTS
    values = [column.contiguous() for column, _ in columns]
    validity = [None if valid is None else valid.contiguous() for _, valid in columns]
    rows = len(values[0])
    part_of = empty(rows, torch.uint8)
    offsets, order = empty(parts + 1, torch.int32), empty(rows, torch.int32)
    above = None if above is None else above.to(torch.int32).contiguous()
    status = library.pystachio_split_by_values(
        (ctypes.c_void_p * count)(*[column.data_ptr() for column in values]),
        (ctypes.c_int32 * count)(*[column.itemsize for column in values]),
        (ctypes.c_void_p * count)(*[None if valid is None else valid.data_ptr() for valid in validity]),
        count,
        None if above is None else above.data_ptr(),
        rows,
        bits,
        parts,
        part_of.data_ptr(),
        offsets.data_ptr(),
        order.data_ptr(),
    )
    assert status == native.Status.OK, "widths of integers"
    return offsets.tolist(), order
