"""Rows by parts of the hash of several columns, in C."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
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


@dataclass(frozen=True, eq=False)
class PartsOfRows:
    """Which part each row is in, `part_of` (uint8 [rows]), and where the rows of each part begin when they are in the
    order of parts (int32 [parts + 1])."""

    part_of: torch.Tensor
    offsets: torch.Tensor

    @cached_property
    def edges(self) -> np.ndarray:
        """`offsets` as int64."""
        return self.offsets.numpy().astype(np.int64)

    @cached_property
    def order(self) -> torch.Tensor:
        """int32 [rows]: the rows by parts, those of one part as they stand."""
        order = empty(len(self.part_of), torch.int32)
        self._scatter(None, order)
        return order

    def scattered(self, values: torch.Tensor) -> torch.Tensor:
        """The rows of `values` ([rows], or [rows, 2] of 8 bytes each) in that order."""
        values = values.contiguous()
        out = torch.empty_like(values)
        self._scatter(values, out)
        return out

    def _scatter(self, values: torch.Tensor | None, out: torch.Tensor) -> None:
        library = native.library()
        assert library is not None
        status = library.pystachio_scatter(
            None if values is None else values.data_ptr(),
            out.itemsize * (1 if out.dim() == 1 else out.shape[1]),
            self.part_of.data_ptr(),
            len(self.part_of),
            self.offsets.data_ptr(),
            len(self.offsets) - 1,
            out.data_ptr(),
        )
        assert status == native.Status.OK, "widths of values"


def parts_of_values(
    columns: Sequence[tuple[torch.Tensor, torch.Tensor | None]],
    bits: int,
    above: torch.Tensor | None = None,
    most: int = 1,
) -> PartsOfRows:
    """The parts of `rows_by_part` by the hashes of columns (at least one; values and validity as `mix_hashes` takes
    them), of which at most MOST_PARTS are."""
    library = native.library()
    assert library is not None
    parts, count = most << bits, len(columns)
    assert parts <= MOST_PARTS
    values = [column.contiguous() for column, _ in columns]
    validity = [None if valid is None else valid.contiguous() for _, valid in columns]
    rows = len(values[0])
    part_of, offsets = empty(rows, torch.uint8), empty(parts + 1, torch.int32)
    above = None if above is None else above.to(torch.int32).contiguous()
    status = library.pystachio_parts_of_values(
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
    )
    assert status == native.Status.OK, "widths of integers"
    return PartsOfRows(part_of, offsets)
