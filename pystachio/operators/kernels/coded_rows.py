"""Rows by what is true of their codes: a byte for each code, and a pass over the rows."""

from __future__ import annotations

import torch

from pystachio.operators.kernels import native, primitives
from pystachio.operators.kernels.host_memory import copied, empty, taken
from pystachio.operators.kernels.strings import index

_USUAL_SHARE = 8
"""At first there is room for one row in so many; where more are wanted, a second pass has room for all."""


def rows_of_codes(codes: torch.Tensor, is_wanted: torch.Tensor) -> torch.Tensor:
    """int64, ascending: positions of the rows of `codes` (any integers [rows], of the host) whose code is wanted.

    `is_wanted` (bool [entries]) has a value for each code.
    """
    rows = codes.shape[0]
    library = native.library(rows)
    if library is None or codes.itemsize > 4:
        chosen = taken(is_wanted, index(codes))
        return primitives(chosen.device).indices_of_true(chosen)
    codes, is_wanted = codes.contiguous(), is_wanted.contiguous()
    capacity = rows // _USUAL_SHARE + 1
    while True:
        found = empty(capacity, torch.int64)
        count = library.pystachio_coded_rows(
            *(codes.data_ptr(), codes.itemsize, rows, is_wanted.data_ptr(), is_wanted.shape[0]),
            *(found.data_ptr(), capacity),
        )
        assert count >= 0, "codes of a width that it knows"
        if count <= capacity:
            return found if count == capacity else copied(found[:count])
        capacity = count
