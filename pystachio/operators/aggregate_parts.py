"""Partial batches in parts: rows of one group are in one part, so that parts are merged by themselves and at once.

Tables of a part stay in the processor's caches. The idea is radix partitioning (Manegold, Boncz and Kersten,
"Optimizing main-memory join on modern hardware", 2002).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import torch

from pystachio.operators.aggregate_fold import merged
from pystachio.operators.aggregate_plan import AggregatePlan
from pystachio.operators.batch import Batch
from pystachio.operators.column import BytesColumn, Column, DictionaryColumn, FixedColumn
from pystachio.operators.kernels import native, primitives
from pystachio.operators.kernels.key_parts import float_bits
from pystachio.operators.kernels.selection import plain, slice_batch, take_batch, widen
from pystachio.operators.kernels.strings import index
from pystachio.operators.kernels.texts import hash_texts

PART_BITS: Final = 5
PARTS: Final = 1 << PART_BITS

_FACTOR: Final = 0x9E3779B97F4A7C15 - (1 << 64)
_NULL: Final = 0x5851F42D4C957F2D


def can_split(plan: AggregatePlan, device: torch.device) -> bool:
    """Whether parts pay: they are for the processors of a CPU, and strings are hashed in C."""
    return plan.group_width > 0 and device.type == "cpu" and native.library() is not None


def split(batch: Batch, width: int) -> list[Batch]:
    """The rows of the batch by the value of its first `width` columns: PARTS batches."""
    mixed = torch.zeros(batch.length, dtype=torch.int64)
    for column in batch.columns[:width]:
        mixed = (mixed ^ _hash(column)) * _FACTOR
        mixed ^= mixed >> 32
    parts = ((mixed * _FACTOR) >> (64 - PART_BITS)) & (PARTS - 1)
    offsets, order = primitives(mixed.device).ranges(parts, PARTS)
    ordered = batch if order is None else take_batch(batch, order)
    edges = offsets.tolist()
    return [slice_batch(ordered, start, stop) for start, stop in pairwise(edges)]


def in_key_order(plan: AggregatePlan, batches: Sequence[Batch], device: torch.device) -> list[Batch] | None:
    """The partial batches such that each group is in one of them, if that takes no more than putting them in order.

    So it is when the input is clustered by its only key: the ranges of the batches meet at their ends at most, where
    two halves of a group are merged. None when it is not, or not simple to see.
    """
    if plan.group_width != 1 or device.type != "cpu":
        return None
    ranges: list[tuple[int, int, Batch]] = []
    for batch in batches:
        key = batch.columns[0]
        if not isinstance(key, FixedColumn) or key.validity is not None or key.values.dtype.is_floating_point:
            return None
        values = key.values.numpy()
        if len(values) == 0:
            continue
        if not (values[1:] > values[:-1]).all():
            return None
        ranges.append((int(values[0]), int(values[-1]), batch))
    ranges.sort(key=lambda known: known[:2])
    if any(low < high for (_, high, _), (low, _, _) in pairwise(ranges)):
        return None
    ordered: list[Batch] = []
    for low, high, batch in ranges:
        if ordered and int(ordered[-1].columns[0].values[-1]) == low:  # type: ignore[union-attr]
            before = ordered.pop()
            edges = [slice_batch(before, before.length - 1, before.length), slice_batch(batch, 0, 1)]
            shared = merged(plan, edges, device, allow_direct=True)
            ordered += [slice_batch(before, 0, before.length - 1), shared]
            batch = slice_batch(batch, 1, batch.length)
        if low < high or batch.length:
            ordered.append(batch)
    return [batch for batch in ordered if batch.length]


def _hash(column: Column) -> torch.Tensor:
    """int64 [rows], equal where values are, in whatever representation."""
    hashes = _of_values(column)
    return hashes if column.validity is None else torch.where(column.validity, hashes, _NULL)


def _of_values(column: Column) -> torch.Tensor:
    if isinstance(column, DictionaryColumn) and isinstance(column.dictionary.values, BytesColumn):
        if len(column.dictionary) == 0:
            return torch.zeros(len(column), dtype=torch.int64)
        known = column.dictionary.derived.get("hashes")
        if known is None:
            known = column.dictionary.derived.setdefault("hashes", hash_texts(column.dictionary.values))
        assert isinstance(known, torch.Tensor)
        return known.index_select(0, index(column.codes))
    column = plain(column)
    if isinstance(column, BytesColumn):
        return hash_texts(column)
    if isinstance(column, FixedColumn) and column.values.dtype.is_floating_point:
        return float_bits(column.values)
    # What does not fit one limb only shares its part with others.
    return column.values.to(torch.int64) if isinstance(column, FixedColumn) else widen(column).low


def gathered(pieces: Sequence[Sequence[Batch]], wholes: Sequence[Batch]) -> list[list[Batch]]:
    """For each part what is to be merged (at least one batch): its whole, if there are any, and its pieces."""
    merging = []
    for part in range(PARTS):
        batches = [*wholes[part : part + 1], *(batch[part] for batch in pieces)]
        merging.append([batch for batch in batches if batch.length] or batches[:1])
    return merging
