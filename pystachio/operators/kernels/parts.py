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


def rows_by_part(
    hashes: torch.Tensor, bits: int, above: torch.Tensor | None = None, most: int = 1
) -> tuple[list[int], torch.Tensor]:
    """Where the rows of each part begin, and the end; the rows (int32) in that order.

    There are 2^bits parts for each number in [0, `most`), which `above` (int32 [rows]) are.
    """
    library = native.library()
    assert library is not None
    parts = most << bits
    offsets = torch.empty(parts + 1, dtype=torch.int32)
    order = torch.empty(len(hashes), dtype=torch.int32)
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
