"""Rows by parts of the hash of several columns, in C."""

from __future__ import annotations

import torch

from pystachio.operators.kernels import native


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


def rows_by_part(hashes: torch.Tensor, bits: int) -> tuple[list[int], torch.Tensor]:
    """Where the rows of each of the 2^bits parts begin, and the end; the rows (int32) in that order."""
    library = native.library()
    assert library is not None
    offsets = torch.empty((1 << bits) + 1, dtype=torch.int32)
    order = torch.empty(len(hashes), dtype=torch.int32)
    library.pystachio_split_rows(hashes.data_ptr(), len(hashes), bits, offsets.data_ptr(), order.data_ptr())
    return offsets.tolist(), order
