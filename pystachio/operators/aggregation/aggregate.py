"""Aggregate: one row per group. Batches are folded where they are made, partial states are merged in one place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from pystachio.operators.aggregation.different_groups import share_no_group
from pystachio.operators.aggregation.fold import (
    finished,
    finished_together,
    merged,
    without_rows,
    without_values,
)
from pystachio.operators.aggregation.key_ranges import KeyRanges
from pystachio.operators.aggregation.partial import PartialAggregate, described
from pystachio.operators.aggregation.parts import (
    FEW_ROWS,
    IN_PLACE_BYTES,
    Part,
    can_split,
    no_parts,
    split_all,
    texts_in_place,
)
from pystachio.operators.aggregation.plan import AggregatePlan, plan_aggregate
from pystachio.operators.batch import Batch, Schema
from pystachio.operators.column import BytesColumn, ViewColumn
from pystachio.operators.expressions import AggregateCall
from pystachio.operators.kernels.selection import slice_batch
from pystachio.operators.operator import Operator, Output
from pystachio.operators.small import MOST_COLUMNS, holds_little, is_small
from pystachio.operators.together import together
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context
from pystachio.runtime.memory import Reservation

_MERGE_ROWS: Final = 1 << 20
_MERGE_BYTES: Final = 64 << 20
_MERGE_SHARE: Final = 32
_MOST_MERGE_BYTES: Final = 256 << 20
"""Partial rows that wait for a merge; of bytes a share of the budget, between bounds. Merging later saves work, earlier
memory."""

_SPLIT_ROWS: Final = 1 << 18
"""From so many rows on the last merge is done in parts, beside each other."""

_MANY_ROWS: Final = 1 << 15
"""A batch with so many partial rows is of many groups: they are merged in parts from the beginning."""

_PORTION_ROWS: Final = 1 << 16
"""Fewer rows are not split by themselves."""

_ORDERED_ROWS: Final = 1 << 16
"""For fewer rows it is not worth asking whether the groups are in order."""

_LANES: Final = 4
"""So many parts are finished and put out beside each other."""

_TOGETHER_BYTES: Final = 4 << 20
"""Parts that need no merge are put out together up to here."""


def aggregate(
    input: Operator,
    keys: tuple[int, ...],
    calls: tuple[AggregateCall, ...],
    schema: Schema,
    grouping_sets: tuple[tuple[int, ...], ...],
) -> Aggregate:
    """The physical form of `planner.logical.Aggregate`. Raises Unsupported for an unknown aggregate function."""
    plan = plan_aggregate(input.schema, keys, calls, grouping_sets)
    return Aggregate(PartialAggregate(input, plan), plan, schema)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Breaker: merges partial states, then puts out keys, values and (with grouping sets) the index of the set."""

    input: Operator
    plan: AggregatePlan
    schema: Schema

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    def label(self) -> str:
        return f"Aggregate {described(self.plan, self.schema)}"

    async def run(self, ctx: Context, inputs: tuple[Receiver[Batch], ...], out: Output) -> None:
        with await ctx.memory.reserve(0) as reservation:
            ranges = KeyRanges(self.plan, ctx.stream.device)
            waiting, parts = await self._received(ctx, inputs[0], reservation, ranges)
            rows = sum(batch.length for batch in waiting)
            if not parts and rows >= _ORDERED_ROWS and ranges.are_possible(waiting):
                clustered = await ctx.stream.run(ranges.parts, waiting)
                if clustered is not None:
                    waiting, parts = [], clustered
                    del clustered
            if not parts and self._is_worth_parts(waiting, rows, ctx.stream.device):
                parts = no_parts(self.plan, rows)
            if not parts:
                await self._put_out_at_once(ctx, waiting, out, reservation)
                return
            await self._split(ctx, waiting, parts, reservation)
            parts = [part for part in parts if part.rows] or parts[:1]
            # What is cut from common memory stays until all parts are done; a lane has its copy and its result.
            nbytes = [part.nbytes for part in parts]
            await reservation.resize(sum(nbytes) + 2 * _LANES * max(nbytes, default=0))
            if self.plan.lists:
                await self._put_out_folded(ctx, parts, out, reservation)
                return
            await together([self._put_out(ctx, parts, out, reservation) for _ in range(min(_LANES, len(parts)))])

    def _is_worth_parts(self, waiting: Sequence[Batch], rows: int, device: torch.device) -> bool:
        """Distinct values are merged twice when they are in parts: few are not worth it."""
        if rows < _ORDERED_ROWS or not can_split(self.plan, device):
            return False
        return rows >= _SPLIT_ROWS or (not self.plan.lists and _are_many(waiting))

    async def _put_out_folded(self, ctx: Context, parts: list[Part], out: Output, reservation: Reservation) -> None:
        """A group's distinct values are in several parts: fold each part's, then merge what that makes of the group."""
        device, direct = ctx.stream.device, ctx.settings.direct_addressing
        folded = await together(
            [ctx.stream.run(self._folded_part, part, device, allow_direct=direct) for part in parts]
        )
        parts.clear()
        # The parts, their concatenation and the result exist at once.
        await reservation.resize(3 * sum(part.nbytes for part in folded))
        rows = await ctx.stream.run(finished_together, self.plan, folded, device, allow_direct=direct)
        await reservation.resize(rows.nbytes)
        await out.emit(partial(_slices, rows, ctx.settings.batch_rows), last=True)

    async def _put_out_at_once(self, ctx: Context, parts: list[Batch], out: Output, reservation: Reservation) -> None:
        """Merge, finish and put out: in one job when it is little."""
        # The parts, their concatenation and the result exist at once.
        await reservation.resize(3 * sum(part.nbytes for part in parts))
        device, direct, batch_rows = ctx.stream.device, ctx.settings.direct_addressing, ctx.settings.batch_rows
        if holds_little(reservation.nbytes, ctx.memory.budget()):
            slices = partial(self._finished_slices, parts, batch_rows, device, allow_direct=direct)
            small = is_small(parts) and len(self.schema) <= MOST_COLUMNS
            await out.emit(slices, last=True, small=small)
            return
        rows = await ctx.stream.run(self._finished, parts, device, allow_direct=direct)
        if rows is not None:
            await reservation.resize(rows.nbytes)
            await out.emit(partial(_slices, rows, batch_rows), last=True)

    def _finished_slices(
        self, parts: list[Batch], batch_rows: int, device: torch.device, *, allow_direct: bool
    ) -> Iterator[Batch]:
        if len(parts) > 1 and not self.plan.lists and share_no_group(parts, self.plan.group_width):
            while parts:
                yield from _slices(finished(self.plan, parts.pop(0), device, allow_direct=allow_direct), batch_rows)
            return
        rows = self._finished(parts, device, allow_direct=allow_direct)
        if rows is not None:
            yield from _slices(rows, batch_rows)

    def _finished(self, parts: list[Batch], device: torch.device, *, allow_direct: bool) -> Batch | None:
        """The output; None for no group. The parts are given up."""
        if not parts:
            parts = without_rows(self.plan, self.input.schema, device)
        if not parts:
            return None
        groups = merged(self.plan, parts, device, allow_direct=allow_direct)
        parts.clear()
        return finished(self.plan, groups, device, allow_direct=allow_direct)

    async def _put_out(self, ctx: Context, parts: list[Part], out: Output, reservation: Reservation) -> None:
        """Merge, finish and put out parts until none is left, small ones together."""
        device, direct, batch_rows = ctx.stream.device, ctx.settings.direct_addressing, ctx.settings.batch_rows
        while parts:
            some = [parts.pop()]
            nbytes = some[0].nbytes
            while parts and parts[-1].is_merged and nbytes + parts[-1].nbytes <= _TOGETHER_BYTES:
                some.append(parts.pop())
                nbytes += some[-1].nbytes
            # The results, which are no larger.
            await reservation.resize(reservation.nbytes + nbytes)
            await out.emit(partial(self._finished_parts, some, batch_rows, device, allow_direct=direct))
            await reservation.resize(reservation.nbytes - nbytes)

    def _finished_parts(
        self, parts: list[Part], batch_rows: int, device: torch.device, *, allow_direct: bool
    ) -> Iterator[Batch]:
        while parts:
            yield from _slices(self._finished_part(parts.pop(0), device, allow_direct=allow_direct), batch_rows)

    def _merged_part(self, part: Part, device: torch.device, *, allow_direct: bool) -> Batch:
        """Each group once. The part's batches are given up."""
        batches, runs = part.take()
        if part.is_merged:
            return batches[0]
        return merged(self.plan, batches, device, allow_direct=allow_direct, runs=runs, tag=part.tag)

    def _finished_part(self, part: Part, device: torch.device, *, allow_direct: bool) -> Batch:
        whole = self._merged_part(part, device, allow_direct=allow_direct)
        return finished(self.plan, whole, device, allow_direct=allow_direct)

    def _folded_part(self, part: Part, device: torch.device, *, allow_direct: bool) -> Batch:
        whole = self._merged_part(part, device, allow_direct=allow_direct)
        return without_values(self.plan, whole, device, allow_direct=allow_direct)

    async def _received(
        self, ctx: Context, receiver: Receiver[Batch], reservation: Reservation, ranges: KeyRanges
    ) -> tuple[list[Batch], list[Part]]:
        """Partial batches that are still to be merged, and parts, if it came to that. `ranges` are of the former."""
        waiting: list[Batch] = []
        waiting_rows, waiting_bytes = 0, 0
        merge_bytes = min(max(_MERGE_BYTES, ctx.memory.budget() // _MERGE_SHARE), _MOST_MERGE_BYTES)
        enough_rows, enough_bytes = _MERGE_ROWS, merge_bytes
        parts: list[Part] = []
        device = ctx.stream.device
        is_first = True
        async for batch in receiver:
            ctx.metrics.add_batch(rows_in=batch.length, batches=0)
            await reservation.resize(reservation.nbytes + batch.nbytes)
            waiting.append(batch)
            waiting_rows += batch.length
            waiting_bytes += batch.nbytes
            if waiting_rows < enough_rows and waiting_bytes < enough_bytes:
                continue
            if is_first and await ctx.stream.run(ranges.merging_is_vain, waiting):
                enough_rows, enough_bytes = 2 * waiting_rows, 2 * waiting_bytes
                continue
            is_first = False
            if not parts and can_split(self.plan, device) and _are_many(waiting):
                if waiting_rows < FEW_ROWS and waiting_bytes < merge_bytes:
                    # Perhaps that was all.
                    enough_rows = FEW_ROWS
                    continue
                parts = no_parts(self.plan, 2 * FEW_ROWS)
            if parts:
                await self._split(ctx, waiting, parts, reservation)
                shrank = await self._shrunk(ctx, parts, reservation)
                held_rows, held_bytes = sum(part.rows for part in parts), sum(part.nbytes for part in parts)
                waiting_rows, waiting_bytes = 0, 0
            else:
                rows = waiting_rows
                ranges.forget()
                waiting = [await self._merge(ctx, waiting, reservation)]
                held_rows, held_bytes = waiting[0].length, waiting[0].nbytes
                shrank = 2 * held_rows <= rows
                waiting_rows, waiting_bytes = held_rows, held_bytes
            # What did not shrink would be merged in vain again and again: wait for a multiple of it.
            factor = 1 if shrank else 4
            enough_rows = waiting_rows + max(_MERGE_ROWS, factor * held_rows)
            enough_bytes = waiting_bytes + max(merge_bytes, factor * held_bytes)
        return waiting, parts

    async def _split(self, ctx: Context, waiting: list[Batch], parts: list[Part], reservation: Reservation) -> None:
        """Move the batches into the parts."""
        if not waiting:
            return
        has_texts = any(isinstance(column, BytesColumn | ViewColumn) for batch in waiting for column in batch.columns)
        in_place = await ctx.stream.run(texts_in_place, waiting) if has_texts else frozenset()
        views = IN_PLACE_BYTES * len(in_place) * sum(batch.length for batch in waiting)
        await reservation.resize(reservation.nbytes + sum(batch.nbytes for batch in waiting) + views)
        pieces = await together(
            [ctx.stream.run(split_all, self.plan, some, len(parts), in_place) for some in _portions(waiting)]
        )
        waiting.clear()
        for split in pieces:
            for part, (batch, runs) in zip(parts, split, strict=True):
                if batch.length or not part.batches:
                    part.add(batch, runs)
        await reservation.resize(sum(part.nbytes for part in parts))

    async def _shrunk(self, ctx: Context, parts: list[Part], reservation: Reservation) -> bool:
        """Merge the parts if one of them says that they become half of what they are."""
        # The parts, their concatenation and the result exist at once.
        await reservation.resize(3 * sum(part.nbytes for part in parts))
        device, direct = ctx.stream.device, ctx.settings.direct_addressing
        model = max(parts, key=lambda part: part.rows)
        rows, merging, shrinks = model.rows, [model], False
        while merging:
            wholes = await together(
                [ctx.stream.run(self._merged_part, part, device, allow_direct=direct) for part in merging]
            )
            for part, whole in zip(merging, wholes, strict=True):
                part.replace(whole)
            shrinks = 2 * model.rows <= rows
            merging = [part for part in parts if part is not model] if shrinks and merging == [model] else []
        await reservation.resize(sum(part.nbytes for part in parts))
        return shrinks

    async def _merge(self, ctx: Context, waiting: list[Batch], reservation: Reservation) -> Batch:
        """The rows of all with each group once."""
        # The parts, their concatenation and the result exist at once.
        await reservation.resize(3 * sum(part.nbytes for part in waiting))
        direct = ctx.settings.direct_addressing
        whole = await ctx.stream.run(merged, self.plan, waiting, ctx.stream.device, allow_direct=direct)
        await reservation.resize(whole.nbytes)
        return whole


def _are_many(waiting: Sequence[Batch]) -> bool:
    """Whether a batch alone has so many groups that tables of all would leave the processor's caches."""
    return any(batch.length >= _MANY_ROWS for batch in waiting)


def _portions(batches: Sequence[Batch]) -> Iterator[list[Batch]]:
    """The batches in lists of enough rows to be worth a job."""
    portion: list[Batch] = []
    rows = 0
    for batch in batches:
        portion.append(batch)
        rows += batch.length
        if rows >= _PORTION_ROWS:
            yield portion
            portion, rows = [], 0
    if portion:
        yield portion


def _slices(batch: Batch, rows: int) -> Iterator[Batch]:
    for start in range(0, batch.length, rows):
        yield slice_batch(batch, start, min(start + rows, batch.length))
