"""Direct addressing where few codes of the range are used: a bit for each code, and how many there are before.

The rank of a code among those that are there is its number (Jacobson, "Space-efficient Static Trees and Graphs", 1989):
a quarter of a byte per code, where a table of numbers takes four.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from pystachio.operators.kernels import native
from pystachio.operators.kernels.host_memory import copied, empty

_CODES_PER_WORD: Final = 64
_WORD_BYTES: Final = 16

MOST_ROWS: Final = (1 << 31) - 2


@dataclass(frozen=True, slots=True, eq=False)
class RankTable:
    """`words` (int64 [span // 64 + 1, 2]): the bits of 64 codes, lowest first, and how many smaller codes there are."""

    words: torch.Tensor
    span: int

    @property
    def nbytes(self) -> int:
        return int(self.words.nbytes)

    def lookup(self, codes: torch.Tensor) -> torch.Tensor:
        """int32 [rows]: 1 + the rank of each code (int32 or int64 [rows], in [0, span]), 0 for one that is absent."""
        library, codes = native.library(codes.shape[0]), codes.contiguous()
        assert library is not None, "made by it"
        found = empty(codes.shape[0], torch.int32)
        status = library.pystachio_find_ranks(
            self.words.data_ptr(), self.span, codes.data_ptr(), codes.itemsize, codes.shape[0], found.data_ptr()
        )
        assert status == native.Status.OK, "codes in their span"
        return found


@dataclass(frozen=True, slots=True, eq=False)
class RankNumbering:
    """Like `numbering.Numbering`, numbers being ranks: `numbers` [rows] and `first`, the position of a row of each."""

    ranks: RankTable
    numbers: torch.Tensor
    first: torch.Tensor

    def table(self) -> RankTable:
        return self.ranks


def is_available(device: torch.device, rows: int) -> bool:
    """Whether so many rows can be ranked there."""
    return device.type == "cpu" and rows <= MOST_ROWS and native.library() is not None


def nbytes(span: int) -> int:
    """Of the table of so many codes."""
    return _WORD_BYTES * (span // _CODES_PER_WORD + 1)


def of_ascending(codes: torch.Tensor, span: int) -> tuple[RankTable, torch.Tensor | None] | None:
    """The table of `codes` (int32 or int64 [rows], in [0, span)) that never fall, and the first row of each rank
    (int32), None where no two are equal; None for codes in another order. Where that `is_available`."""
    codes, rows = codes.contiguous(), codes.shape[0]
    if rows == 0 or int(codes[0]) > int(codes[-1]):
        return None
    library = native.library(rows + span // _CODES_PER_WORD)
    assert library is not None
    words = torch.from_numpy(np.empty((span // _CODES_PER_WORD + 1, 2), np.int64))
    starts = empty(rows, torch.int32)
    distinct = library.pystachio_rank_ascending(
        codes.data_ptr(), codes.itemsize, rows, span, words.data_ptr(), starts.data_ptr()
    )
    if distinct < 0:
        return None
    return RankTable(words, span), None if distinct == rows else starts[:distinct]


def number(codes: torch.Tensor, span: int) -> RankNumbering:
    """The distinct ones of `codes` (int32 or int64 [rows], in [0, span)), where that `is_available`."""
    codes, rows = codes.contiguous(), codes.shape[0]
    library = native.library(rows + span // _CODES_PER_WORD)
    assert library is not None
    words = torch.zeros((span // _CODES_PER_WORD + 1, 2), dtype=torch.int64)
    numbers, first = (empty(rows, torch.int32) for _ in range(2))
    distinct = library.pystachio_rank_codes(
        codes.data_ptr(), codes.itemsize, rows, span, words.data_ptr(), numbers.data_ptr(), first.data_ptr()
    )
    assert distinct >= 0, "codes in their span"
    return RankNumbering(RankTable(words, span), numbers, first if distinct == rows else copied(first[:distinct]))
