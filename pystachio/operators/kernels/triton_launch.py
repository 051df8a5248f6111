"""Triton's kernels as functions from tensors to tensors: the twins of those in `portable` with the same names.

Imported only where Triton is installed. Tensors may be on any device that Triton compiles for, or on the CPU under its
interpreter (`TRITON_INTERPRET=1`), where the tests run them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from pystachio.operators.kernels import triton_programs as programs
from pystachio.operators.kernels.hash_rounds import FIRST_MULTIPLIER, SECOND_MULTIPLIER, RoundsTable
from pystachio.operators.kernels.numbering import capacity_for

MOST_SLOTS: Final = 64
"""Of kernels that keep a number per group in registers: each row is compared with every slot."""
MOST_ROWS: Final = 1 << 30

_ELEMENTS: Final = 4096
_BLOCK: Final = 1024
_PROBING_BLOCK: Final = 256
"""A program goes on until the last of its rows has ended its search: small ones wait for fewer others."""
_PROGRAMS_PER_MULTIPROCESSOR: Final = 8
_INTERPRETED_PROGRAMS: Final = 3


def group_sums(values: torch.Tensor, codes: torch.Tensor, slots: int, kept: torch.Tensor | None = None) -> torch.Tensor:
    """See `portable.group_sums`; at most MOST_SLOTS slots and MOST_ROWS rows."""
    rows, width = codes.shape[0], _power_of_two(slots)
    block = _block(width)
    partial = torch.zeros((_programs(rows, block, codes.device), width), dtype=torch.int64, device=codes.device)
    mask = values if kept is None else _bytes(kept)
    programs.sum_by_code[(partial.shape[0],)](
        *(values.contiguous(), codes.contiguous(), mask, partial, rows),
        BLOCK=block,
        SLOTS=width,
        MASKED=kept is not None,
    )
    return partial.sum(0)[:slots]


def group_rows(codes: torch.Tensor, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """See `portable.group_rows`; at most MOST_SLOTS slots and MOST_ROWS rows."""
    rows, width = codes.shape[0], _power_of_two(slots)
    block = _block(width)
    shape = (_programs(rows, block, codes.device), width)
    counts, last = (torch.zeros(shape, dtype=torch.int64, device=codes.device) for _ in range(2))
    programs.count_by_code[(shape[0],)](codes.contiguous(), counts, last, rows, BLOCK=block, SLOTS=width)
    return counts.sum(0)[:slots], last.amax(0)[:slots]


def indices_of_true(mask: torch.Tensor) -> torch.Tensor:
    """See `portable.indices_of_true`; at most MOST_ROWS rows."""
    kept, ends = _kept(mask)
    positions = torch.empty(_total(ends), dtype=torch.int64, device=mask.device)
    if positions.shape[0]:
        programs.write_positions[(ends.shape[0],)](kept, ends, positions, mask.shape[0], BLOCK=_BLOCK)
    return positions


def compact(mask: torch.Tensor, columns: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """See `portable.compact`; at most MOST_ROWS rows. Rows are counted once for all columns."""
    kept, ends = _kept(mask)
    total = _total(ends)
    if total == mask.shape[0]:
        return tuple(columns)
    chosen = tuple(torch.empty(total, dtype=column.dtype, device=mask.device) for column in columns)
    for column, into in zip(columns, chosen, strict=True):
        if total:
            arguments = (kept, ends, _bytes(column), _bytes(into), mask.shape[0])
            programs.write_values[(ends.shape[0],)](*arguments, BLOCK=_BLOCK)
    return chosen


def lookup_within(
    table: torch.Tensor, values: torch.Tensor, low: int, kept: torch.Tensor | None = None
) -> torch.Tensor:
    """See `portable.lookup_within`; at most MOST_ROWS rows."""
    rows = values.shape[0]
    found = torch.empty(rows, dtype=table.dtype, device=values.device)
    if rows:
        high = low + table.shape[0] - 2
        mask = values if kept is None else _bytes(kept)
        programs.lookup_between[(-(-rows // _BLOCK),)](
            *(table, values.contiguous(), mask, found, low, high, rows), BLOCK=_BLOCK, MASKED=kept is not None
        )
    return found


def insert_keys(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A table of `keys` (int64 [rows], at most MOST_ROWS): int32 [slots] 1 + the row in each slot (0: free), and int32
    [rows] the same for each row's key. The host waits for nothing; `hash_rounds` looks after every round who is left.
    """
    keys, rows = keys.contiguous(), keys.shape[0]
    capacity = capacity_for(rows)
    occupants = torch.zeros(capacity + 1, dtype=torch.int32, device=keys.device)
    winners = torch.empty(rows, dtype=torch.int32, device=keys.device)
    if rows:
        programs.insert_keys[(-(-rows // _PROBING_BLOCK),)](
            *(keys, occupants, winners, rows), BLOCK=_PROBING_BLOCK, **_hashing(capacity)
        )
    return occupants[:capacity], winners


def find_keys(table: RoundsTable, keys: torch.Tensor) -> torch.Tensor:
    """`table.lookup(keys)`; at most MOST_ROWS rows."""
    keys, rows = keys.contiguous(), keys.shape[0]
    found = torch.empty(rows, dtype=table.values.dtype, device=keys.device)
    if rows:
        programs.find_keys[(-(-rows // _PROBING_BLOCK),)](
            *(table.keys, table.values, keys, found, table.empty, rows),
            BLOCK=_PROBING_BLOCK,
            **_hashing(table.keys.shape[0]),
        )
    return found


def _hashing(capacity: int) -> dict[str, int]:
    return {"FIRST": FIRST_MULTIPLIER, "SECOND": SECOND_MULTIPLIER, "SHIFT": 64 - (capacity.bit_length() - 1)}


def _kept(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mask as bytes, and how many rows are kept up to the end of each block of rows (int64 [blocks])."""
    kept = _bytes(mask)
    counts = torch.zeros(-(-mask.shape[0] // _BLOCK), dtype=torch.int32, device=mask.device)
    if counts.shape[0]:
        programs.count_kept[(counts.shape[0],)](kept, counts, mask.shape[0], BLOCK=_BLOCK)
    return kept, torch.cumsum(counts, 0, dtype=torch.int64)


def _total(ends: torch.Tensor) -> int:
    """The one number that the host waits for."""
    return int(ends[-1]) if ends.shape[0] else 0


def _bytes(values: torch.Tensor) -> torch.Tensor:
    """Without bool, whose loads and stores Triton treats as single bits."""
    values = values.contiguous()
    return values.view(torch.uint8) if values.dtype == torch.bool else values


def _programs(rows: int, block: int, device: torch.device) -> int:
    """Enough to fill the device, each with rows of its own; one even without rows, since it writes the zeros."""
    most = _INTERPRETED_PROGRAMS
    if device.type == "cuda":
        most = _PROGRAMS_PER_MULTIPROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(-(-rows // block), most))


def _block(width: int) -> int:
    """Rows that are compared with all slots at once, as many as the registers of a program take."""
    return max(32, min(_BLOCK, _ELEMENTS // width))


def _power_of_two(slots: int) -> int:
    return max(2, 1 << (slots - 1).bit_length())
