"""Orders of many rows of a host by radix sort from the highest bits on (McIlroy, Bostic, McIlroy, "Engineering Radix
Sort", 1993): parts by the bits in which words differ, each split again until it is in order.

What is not wanted is not put in order, parts of different threads have nothing in common, and rows that are in order
already are seen to be.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import torch

from pystachio.operators.kernels import native
from pystachio.operators.kernels.host_memory import empty

_ROW_BYTES: Final = 16
"""Of a row in a part: its word and its number."""
_MOST_PARTS: Final = 3072
"""`sort.h` says it too."""


def is_available(device: torch.device) -> bool:
    """Whether rows are put in order there in C."""
    return device.type == "cpu" and native.library() is not None


class SplitRows:
    """Rows in parts that stand in order among themselves; each of `shares` (at most so many, about equally long) is
    some of them, for `sort` to put in order. `order` (int64 [wanted]) are the first rows when all were sorted."""

    def __init__(
        self, words: Sequence[torch.Tensor], wanted: int | None = None, shares: int = 1, workers: int = 1
    ) -> None:
        """`words` (int64 [rows] each, the most significant first) compare like the rows; ties stay as they are. Of
        `workers` none shall have to put more rows in order than its part of them, where the first word allows that."""
        library = native.library()
        assert library is not None, "where it is available"
        words = [word.contiguous() for word in words]
        rows = words[0].shape[0]
        wanted = rows if wanted is None else min(wanted, rows)
        self._split = np.empty((rows, 2), np.int64)
        edges = np.empty(_MOST_PARTS + 1, np.int64)
        to = self._split.ctypes.data
        parts = library.pystachio_sort_split(words[0].data_ptr(), rows, rows // workers, to, edges.ctypes.data)
        self._edges: list[int] = edges[: parts + 1].tolist()
        # Each row of a part holds its first word.
        self._words = [None, *words[1:]]
        self._other = np.empty((rows, 2), np.int64)
        self.order = empty(wanted, torch.int64)
        self.shares = self._shared(shares)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self._split, self._other, self.order, *self._words) if array is not None)

    def rows_of(self, share: range) -> int:
        """How many rows a share has."""
        return self._edges[share.stop] - self._edges[share.start]

    def sort(self, share: range) -> None:
        """Put the rows of a share in order: in any thread, each once."""
        library = native.library()
        assert library is not None, "it was there"
        words = (ctypes.c_void_p * len(self._words))(
            *(None if word is None else word.data_ptr() for word in self._words)
        )
        split, other, order = self._split.ctypes.data, self._other.ctypes.data, self.order.data_ptr()
        for part in share:
            start, stop = self._edges[part], self._edges[part + 1]
            if stop > start:
                library.pystachio_sort_part(
                    words,
                    len(words),
                    split + _ROW_BYTES * start,
                    other + _ROW_BYTES * start,
                    stop - start,
                    len(self.order) - start,
                    order + self.order.itemsize * start,
                )

    def _shared(self, shares: int) -> list[range]:
        """Only parts of which something is wanted."""
        wanted = len(self.order)
        needed = sum(start < wanted for start in self._edges[:-1])
        limits = [wanted * number // shares for number in range(1, shares)]
        bounds = [0, *np.searchsorted(self._edges[:needed], limits).tolist(), needed]
        return [range(first, last) for first, last in pairwise(bounds) if last > first]


def sorted_rows(words: Sequence[torch.Tensor], wanted: int | None = None) -> torch.Tensor:
    """The positions (int64) of the first `wanted` rows, or of all, in the order of `words`, ties as they stand."""
    split = SplitRows(words, wanted)
    for share in split.shares:
        split.sort(share)
    return split.order
