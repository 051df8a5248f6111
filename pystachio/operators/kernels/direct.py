"""Direct addressing: a table with one slot per code of a bounded key. The fastest index where the range allows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.key_parts import RangedKeys

SPARSE_SLOTS: Final = 1 << 24
"""Up to this many slots (64 MB of row numbers) a table pays however few of them are used."""

SLOTS_PER_ROW: Final = 16


def is_addressable(span: int | None, rows: int) -> bool:
    """Whether a table of `span` slots is worth its memory for `rows` keys."""
    return span is not None and span <= max(SLOTS_PER_ROW * rows, SPARSE_SLOTS)


@dataclass(frozen=True, slots=True, eq=False)
class DirectTable:
    """`values` [span + 1]: one per code, and at `span` that of a key which is not in the table."""

    values: torch.Tensor

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes)

    @property
    def span(self) -> int:
        """How many codes there may be."""
        return self.values.shape[0] - 1

    def lookup(self, codes: torch.Tensor) -> torch.Tensor:
        """The value of each code (int32 or int64 [rows], in [0, span])."""
        return self.values.index_select(0, codes)

    def lookup_range(self, keys: RangedKeys) -> torch.Tensor:
        """The value of each key, whose code is what it is above `keys.low`: the codes are never written to memory."""
        return primitives(keys.values.device).lookup_within(self.values, keys.values, keys.low, keys.kept)


@dataclass(frozen=True, slots=True, eq=False)
class DirectNumbering:
    """Like `numbering.Numbering`, with the code as the slot: `occupants` [span + 1] hold 1 + the number of each code, 0
    where no row has it."""

    occupants: torch.Tensor
    numbers: torch.Tensor
    first: torch.Tensor

    def table(self) -> DirectTable:
        return DirectTable(self.occupants)


def number(codes: torch.Tensor, span: int) -> DirectNumbering:
    """The distinct ones of `codes` (int32 or int64 [rows], in [0, span))."""
    return DirectNumbering(*primitives(codes.device).number_codes(codes, span))


def members(codes: torch.Tensor, span: int) -> DirectTable:
    """A table of uint8: 1 for each of `codes` (in [0, span]; `span` is nobody's)."""
    values = torch.zeros(span + 1, dtype=torch.uint8, device=codes.device)
    values.index_fill_(0, codes.to(torch.int64), 1)
    values[span] = 0
    return DirectTable(values)
