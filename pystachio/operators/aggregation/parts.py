"""Partial batches in parts: rows of one group are in one part, so that parts are merged by themselves and at once.

Tables of a part stay in the processor's caches. The idea is radix partitioning (Manegold, Boncz and Kersten,
"Optimizing main-memory join on modern hardware", 2002).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final

import numpy as np
import torch

from pystachio.operators.aggregation.plan import AggregatePlan
from pystachio.operators.batch import Batch, column_nbytes
from pystachio.operators.column import BytesColumn, Column, DictionaryColumn, FixedColumn, ViewColumn
from pystachio.operators.kernels import native
from pystachio.operators.kernels.key_parts import float_bits
from pystachio.operators.kernels.parts import MOST_PARTS, PartsOfRows, parts_of_values
from pystachio.operators.kernels.selection import (
    concat_batches,
    has_one_value,
    own_texts,
    plain,
    slice_batch,
    take,
    widen,
)
from pystachio.operators.kernels.strings import index
from pystachio.operators.kernels.texts import hash_texts, hashed
from pystachio.operators.kernels.views import all_in_place
from pystachio.operators.placement import rebuilt, tensors_of

_PART_BITS: Final = 5
_FEW_PART_BITS: Final = 3
FEW_ROWS: Final = 1 << 21
_FEWEST_PART_BITS: Final = 2
_FEWEST_ROWS: Final = 1 << 19
"""So many rows or fewer make fewer parts, each of which has its price."""
_BITS: Final = 8
_FEWEST_RUN_BITS: Final = 3
"""Of the hash, for parts and their runs together: as many runs as pay for a sort by them."""
_MOST_TAGS: Final = 8
_MOST_KEPT: Final = 1.25
"""So many times the bytes of their texts may be kept alive by the views of all parts."""
IN_PLACE_BYTES: Final = 24
"""What a row of a text in place takes in a part: a view and a hash."""


@dataclass(slots=True, eq=False)
class Part:
    """Partial batches that share no group with other parts. `is_merged`: there is one, with each group once. `tag` is
    that of all rows, if that is known."""

    batches: list[Batch]
    is_merged: bool = False
    tag: int | None = None
    runs: list[np.ndarray] = field(default_factory=list)
    """Where the runs of each batch begin and end, as long as all are as they were split: rows of different runs are of
    different groups, and tables of a run stay in the innermost caches."""
    nbytes: int = field(init=False)
    """With its share of the memory that the views of all parts keep alive together."""

    def __post_init__(self) -> None:
        self.nbytes = sum(batch.nbytes for batch in self.batches)

    def add(self, batch: Batch, runs: np.ndarray) -> None:
        """Rows as they were split."""
        if len(self.runs) == len(self.batches):
            self.runs.append(runs)
        self.batches.append(batch)
        self.nbytes += sum(map(_share, batch.columns))
        self.is_merged = False

    def replace(self, merged: Batch) -> None:
        """All batches by one that has each group once."""
        self.batches, self.is_merged, self.runs, self.nbytes = [merged], True, [], merged.nbytes

    def take(self) -> tuple[list[Batch], np.ndarray | None]:
        """The batches, which are given up, and the `runs` of their rows one after the other."""
        batches, runs = self.batches, self.runs
        self.batches, self.runs, self.nbytes = [], [], 0
        if not batches or len(runs) < len(batches):
            return batches, None
        starts = accumulate((batch.length for batch in batches), initial=0)
        return batches, np.stack([edges + start for edges, start in zip(runs, starts, strict=False)])

    @property
    def rows(self) -> int:
        return sum(batch.length for batch in self.batches)


def _share(column: Column) -> int:
    """Bytes of a column as it was split."""
    if not isinstance(column, ViewColumn):
        return column_nbytes(column)
    own = sum(tensor.nbytes for tensor in (column.views, column.hashes, column.validity) if tensor is not None)
    return own + int(_MOST_KEPT * column.text_bytes)


def no_parts(plan: AggregatePlan, rows: int) -> list[Part]:
    """As many as pay for about so many rows: a power of two for each tag."""
    bits = _FEWEST_PART_BITS if rows <= _FEWEST_ROWS else _FEW_PART_BITS if rows <= FEW_ROWS else _PART_BITS
    tags = _tags(plan)
    return [Part([], tag=part >> bits if tags > 1 else None) for part in range(tags << bits)]


def _tags(plan: AggregatePlan) -> int:
    """Rows of different tags are of different groups, and each part is narrower if it has those of one only."""
    return len(plan.lists) + 1 if plan.tagged and len(plan.lists) < _MOST_TAGS else 1


def can_split(plan: AggregatePlan, device: torch.device) -> bool:
    """Whether parts pay: they are for the processors of a CPU, and strings are hashed in C."""
    return plan.group_width > 0 and device.type == "cpu" and native.library() is not None


def texts_in_place(batches: Sequence[Batch]) -> frozenset[int]:
    """The columns whose texts need not move with their rows: all of them are most of what they keep alive."""
    found: list[int] = []
    for position, columns in enumerate(zip(*(batch.columns for batch in batches), strict=True)):
        texts = [column for column in columns if isinstance(column, BytesColumn | ViewColumn)]
        if texts and len(texts) == len(columns):
            held = [tensor for column in texts for tensor in _held(column)]
            kept = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in held}
            if sum(kept.values()) <= _MOST_KEPT * sum(_text_bytes(column) for column in texts):
                found.append(position)
    return frozenset(found)


def _held(column: BytesColumn | ViewColumn) -> tuple[torch.Tensor, ...]:
    return column.held if isinstance(column, ViewColumn) else (column.data,)


def _text_bytes(column: BytesColumn | ViewColumn) -> int:
    return column.text_bytes if isinstance(column, ViewColumn) else int(column.offsets[-1] - column.offsets[0])


def split_all(
    plan: AggregatePlan, batches: Sequence[Batch], parts: int, in_place: frozenset[int]
) -> list[tuple[Batch, np.ndarray]]:
    """The rows of all batches by the values of their groups: a batch and its `Part.runs` for each of the `no_parts`.

    The texts of the columns `in_place` stay where they are.
    """
    batch, tags = concat_batches([_seen(batch, in_place) for batch in batches]), _tags(plan)
    columns = [
        hashed(column)
        if position < plan.group_width and position in in_place and isinstance(column, ViewColumn)
        else column
        for position, column in enumerate(batch.columns)
    ]
    values = [(_integers(column), column.validity) for column in columns[: plan.group_width]]
    tag: torch.Tensor | None = None
    if tags > 1:
        known = batch.columns[plan.key_width]
        assert isinstance(known, FixedColumn)
        tag = known.values
    bits = (parts // tags).bit_length() - 1
    run_bits = min(max(_BITS - bits, _FEWEST_RUN_BITS), (MOST_PARTS // parts).bit_length() - 1)
    by_parts = parts_of_values(values, bits + run_bits, tag, tags)
    ordered = Batch(tuple(_in_parts(column, by_parts) for column in columns), batch.length, batch.ready)
    ordered = own_texts(ordered, [position for position in range(len(columns)) if position not in in_place])
    split: list[tuple[Batch, np.ndarray]] = []
    for part in range(parts):
        own = by_parts.edges[part << run_bits : ((part + 1) << run_bits) + 1]
        split.append((slice_batch(ordered, int(own[0]), int(own[-1])), own - own[0]))
    return split


def _seen(batch: Batch, in_place: frozenset[int]) -> Batch:
    """The batch with views of those columns."""
    columns = [
        all_in_place(column) if isinstance(column, BytesColumn) and position in in_place else column
        for position, column in enumerate(batch.columns)
    ]
    return Batch(tuple(columns), batch.length, batch.ready)


def _in_parts(column: Column, by_parts: PartsOfRows) -> Column:
    """The rows in the order of their parts."""
    match column:
        case FixedColumn() if has_one_value(column):
            return column
        case BytesColumn():
            return take(column, by_parts.order)
        case ViewColumn(views=views, validity=validity, hashes=hashes):
            validity = None if validity is None else by_parts.scattered(validity)
            hashes = None if hashes is None else by_parts.scattered(hashes)
            return replace(column, views=by_parts.scattered(views), validity=validity, hashes=hashes)
        case _:
            return rebuilt(column, [by_parts.scattered(tensor) for tensor in tensors_of(column)])


def _integers(column: Column) -> torch.Tensor:
    """Integers [rows] that are equal where values are, in whatever representation; anything under NULLs."""
    if isinstance(column, DictionaryColumn) and isinstance(column.dictionary.values, BytesColumn):
        if len(column.dictionary) == 0:
            return torch.zeros(len(column), dtype=torch.int64)
        known = column.dictionary.derived.get("hashes")
        if known is None:
            known = column.dictionary.derived.setdefault("hashes", hash_texts(column.dictionary.values))
        assert isinstance(known, torch.Tensor)
        return known.index_select(0, index(column.codes))
    if isinstance(column, BytesColumn | ViewColumn):
        return hash_texts(column)
    column = plain(column)
    if isinstance(column, FixedColumn):
        return float_bits(column.values) if column.values.dtype.is_floating_point else column.values
    # What does not fit one limb only shares its part with others.
    return widen(column).low
