"""From the codes of keys to the rows that have them: what a join builds on one side and asks with the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from pystachio.operators.column import Column
from pystachio.operators.kernels import direct, hash_table, primitives, ranks
from pystachio.operators.kernels.ascending import ascend
from pystachio.operators.kernels.direct import DirectTable
from pystachio.operators.kernels.host_memory import joined
from pystachio.operators.kernels.key_parts import RangedKeys
from pystachio.operators.kernels.keys import KeyCodes, KeyEncoding
from pystachio.operators.kernels.numbering import HashTable, Numbering, row_dtype
from pystachio.operators.kernels.pairs import Matches
from pystachio.operators.kernels.ranks import RankNumbering, RankTable

_DENSE_SLOTS_PER_ROW: Final = 4
"""Up to this many slots per row ranges are kept per code, else per distinct key."""

_RANKED_SLOTS_PER_ROW: Final = 2
"""From this many codes per row on the ranks of those that are there are smaller than a table of all..."""

_MOST_RANKED_SLOTS_PER_ROW: Final = 256
_SPARSE_RANKED_SLOTS: Final = 1 << 22
"""...and up to these many, or so many in all (1 MiB), a hash table is larger or slower."""

CodeTable = DirectTable | RankTable
"""Addressed by codes of a bounded range."""


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Which keys exist."""

    table: CodeTable | HashTable

    @property
    def nbytes(self) -> int:
        return self.table.nbytes

    def contains(self, codes: KeyCodes) -> torch.Tensor:
        """bool [rows]: True where the key exists."""
        return _as_flags(_lookup(self.table, codes))


@dataclass(frozen=True, slots=True, eq=False)
class UniqueIndex:
    """At most one row per key: `table` holds 1 + the number of the key, 0 for no key. `rows` [1 + keys] are 1 + the
    position of the row by that number, None: the same number."""

    table: CodeTable | HashTable
    rows: torch.Tensor | None

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + (0 if self.rows is None else self.rows.nbytes)

    def find(self, codes: KeyCodes) -> torch.Tensor:
        """int32 or int64 [rows]: 1 + the position of the row with that key, 0 where there is none."""
        found = _lookup(self.table, codes)
        return found if self.rows is None else self.rows.index_select(0, found)


@dataclass(frozen=True, slots=True, eq=False)
class RangeIndex:
    """Any number of rows per key, in compressed sparse rows.

    `groups` numbers the keys from 1, and 0 is an absent one; without it the code is the number, and the last an absent
    one. The rows of key g are `order[offsets[g]:offsets[g + 1]]`, or that range itself when `order` is None; that of an
    absent key is empty.
    """

    groups: CodeTable | HashTable | None
    offsets: torch.Tensor
    order: torch.Tensor | None

    @property
    def nbytes(self) -> int:
        order = 0 if self.order is None else self.order.nbytes
        return int(self.offsets.nbytes + order) + (0 if self.groups is None else self.groups.nbytes)

    @property
    def most(self) -> int:
        """How many rows the most frequent key has; at least one."""
        return max(1, int((self.offsets[1:] - self.offsets[:-1]).max()))

    def find(self, codes: KeyCodes) -> Matches:
        """The matching rows of each row."""
        group = codes.values if self.groups is None else _lookup(self.groups, codes)
        starts, counts = primitives(group.device).ranges_of(self.offsets, group)
        return Matches(starts, counts, self.order)


RowIndex = UniqueIndex | RangeIndex


def find_rows(index: UniqueIndex, encoding: KeyEncoding, columns: Sequence[Column]) -> torch.Tensor:
    """`index.find` of the columns' codes; on a device in one kernel where the keys are numbers."""
    keys = _ranged_keys(index.table, encoding, columns)
    if keys is None:
        return index.find(encoding.encode(columns))
    assert isinstance(index.table, DirectTable)
    found = index.table.lookup_range(keys)
    return found if index.rows is None else index.rows.index_select(0, found)


def contained(members: Members, encoding: KeyEncoding, columns: Sequence[Column]) -> torch.Tensor:
    """`members.contains` of the columns' codes; on a device in one kernel where the keys are numbers."""
    keys = _ranged_keys(members.table, encoding, columns)
    if keys is None:
        return members.contains(encoding.encode(columns))
    assert isinstance(members.table, DirectTable)
    return _as_flags(members.table.lookup_range(keys))


def is_addressable(span: int, rows: int, device: torch.device) -> bool:
    """Whether an index by codes below `span` is worth its memory for so many rows."""
    if not ranks.is_available(device, rows):
        return direct.is_addressable(span, rows)
    return span <= max(_MOST_RANKED_SLOTS_PER_ROW * rows, _SPARSE_RANKED_SLOTS)


def table_bytes(span: int, rows: int, device: torch.device) -> int:
    """What making a table addressed by codes below `span` takes for so many rows."""
    return ranks.nbytes(span) if _are_ranked(span, rows, device) else 8 * (span + 1)


def index_members(codes: KeyCodes, *, allow_direct: bool) -> Members:
    """An index that only answers whether a key exists."""
    rows, device = codes.values.shape[0], codes.values.device
    if not (allow_direct and codes.span is not None and is_addressable(codes.span, rows, device)):
        return Members(hash_table.number(_present(codes)[0].to(torch.int64)).table())
    if not _are_ranked(codes.span, rows, device):
        return Members(direct.members(codes.values, codes.span))
    return Members(ranks.number(_present(codes)[0], codes.span).table())


def index_rows(codes: KeyCodes, *, allow_direct: bool) -> RowIndex:
    """An index of the rows with these keys; rows that equal nothing (NULL keys) are left out."""
    values, kept = _present(codes)
    rows = values.shape[0]
    span = codes.span if allow_direct else None
    numbering: direct.DirectNumbering | RankNumbering | Numbering
    if span is not None and is_addressable(span, rows, values.device):
        is_ranked = _are_ranked(span, rows, values.device)
        in_order = ranks.of_ascending(values, span) if is_ranked and span > _DENSE_SLOTS_PER_ROW * rows else None
        if in_order is not None:
            return _index_in_order(*in_order, rows, kept)
        numbering = ranks.number(values, span) if is_ranked else direct.number(values, span)
    else:
        span = None
        numbering = hash_table.number(values.to(torch.int64))
    count = numbering.first.shape[0]
    if count == rows:
        places = kept
        if isinstance(numbering, RankNumbering) and not ascend([values.numpy()]):
            places = numbering.first if kept is None else kept.index_select(0, numbering.first)
        dtype = row_dtype(codes.values.shape[0])
        return UniqueIndex(numbering.table(), None if places is None else _with_none(places + 1).to(dtype))
    if span is not None and span <= _DENSE_SLOTS_PER_ROW * rows:
        offsets, order = _ranges(values, span, kept)
        return RangeIndex(None, torch.cat((offsets, offsets[-1:])), order)
    offsets, order = _ranges(numbering.numbers, count, kept)
    return RangeIndex(numbering.table(), _with_none(offsets), order)


def _index_in_order(table: RankTable, starts: torch.Tensor | None, rows: int, kept: torch.Tensor | None) -> RowIndex:
    """Of keys that never fall: those of each rank stand together. `starts`: where; None: each has one row."""
    order = None if kept is None else kept.to(row_dtype(int(kept[-1]) + 2))
    if starts is None:
        return UniqueIndex(table, None if order is None else _with_none(order + 1))
    return RangeIndex(table, joined((starts.new_zeros(1), starts, starts.new_tensor([rows])), starts.dtype), order)


def _ranged_keys(table: DirectTable | HashTable, encoding: KeyEncoding, columns: Sequence[Column]) -> RangedKeys | None:
    """None also on the CPU, where codes of 32 bits stay in the cache and cost less than the wide arithmetic."""
    if not isinstance(table, DirectTable) or table.values.device.type == "cpu":
        return None
    return encoding.as_range(columns)


def _as_flags(found: torch.Tensor) -> torch.Tensor:
    return found.view(torch.bool) if found.dtype == torch.uint8 else found != 0


def _with_none(values: torch.Tensor) -> torch.Tensor:
    return joined((values.new_zeros(1), values), values.dtype)


def _ranges(groups: torch.Tensor, count: int, kept: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Where the rows of each group begin ([count + 1]), and the rows by group (None: they are)."""
    offsets, order = primitives(groups.device).ranges(groups, count)
    if kept is not None:
        order = (kept if order is None else kept.index_select(0, order)).to(row_dtype(int(kept[-1]) + 2))
    return offsets, order


def _present(codes: KeyCodes) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The codes of the rows that equal something, and the positions of those rows (None: all)."""
    if codes.exact:
        return codes.values, None
    if codes.span is not None:
        present = torch.ne(codes.values, codes.span)
    elif codes.absent is not None:
        present = ~codes.absent
    else:
        return codes.values, None
    kernels = primitives(present.device)
    if kernels.all_true(present):
        return codes.values, None
    kept = kernels.indices_of_true(present)
    return codes.values.index_select(0, kept), kept


def _are_ranked(span: int, rows: int, device: torch.device) -> bool:
    return span >= _RANKED_SLOTS_PER_ROW * rows and ranks.is_available(device, rows)


def _lookup(table: CodeTable | HashTable, codes: KeyCodes) -> torch.Tensor:
    if isinstance(table, CodeTable):
        return table.lookup(codes.values)
    found = table.lookup(codes.values.to(torch.int64))
    return found if codes.absent is None else torch.where(codes.absent, 0, found)
