"""Aggregate: one row per group. Batches are folded where they are made, partial states are merged in one place."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Final, Protocol, TypeVar

import torch

from pystachio.operators.aggregate_fold import (
    finished,
    finished_together,
    merged,
    partial_batches,
    without_rows,
    without_values,
)
from pystachio.operators.aggregate_parts import can_split, gathered, in_key_order, split
from pystachio.operators.aggregate_plan import AggregatePlan, partial_schema, plan_aggregate
from pystachio.operators.batch import Batch, Schema
from pystachio.operators.expressions import AggregateCall
from pystachio.operators.kernels.selection import slice_batch
from pystachio.operators.operator import Operator, Output
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context
from pystachio.runtime.memory import Reservation

T = TypeVar("T")

_MERGE_ROWS: Final = 1 << 20
_MERGE_BYTES: Final = 64 << 20
"""Partial rows that wait for a merge. Merging later saves work, earlier memory."""

_SPLIT_ROWS: Final = 1 << 18
"""From so many rows on the last merge is done in parts, beside each other."""

_ORDERED_ROWS: Final = 1 << 16
"""For fewer rows it is not worth asking whether the groups are in order."""

_LANES: Final = 4
"""So many parts are finished and put out beside each other."""

_SMALL_BYTES: Final = 1 << 20
"""Up to here the memory of a merge is not worth a job of its own, after which it could be given back."""

_SMALLEST_GROUPED_BATCH: Final = 4096
"""Grouping a batch costs as much as merging this many rows with others."""

_BATCHES_PASSED_THROUGH: Final = 7
"""After a batch that did not shrink so many are not even tried."""


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
class PartialAggregate:
    """Streaming: each batch by itself as partial states, in the layout of `aggregate_plan`."""

    input: Operator
    plan: AggregatePlan

    prefers_large_batches: ClassVar[bool] = True

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def schema(self) -> Schema:
        return partial_schema(self.plan, self.input.schema)

    def label(self) -> str:
        return f"PartialAggregate {_described(self.plan, self.schema)}"

    async def open(self, ctx: Context, builds: tuple[Receiver[Batch], ...]) -> PartialFold:
        return PartialFold(self.plan, ctx.stream.device, ctx.settings.direct_addressing)


@dataclass(slots=True)
class _Gain:
    """Whether grouping batches pays. Threads may race here; the worst is a batch grouped in vain."""

    to_pass_through: int = 0

    def should_reduce(self) -> bool:
        if self.to_pass_through > 0:
            self.to_pass_through -= 1
            return False
        return True

    def record(self, rows: int, groups: int) -> None:
        if 2 * groups > rows:
            self.to_pass_through = _BATCHES_PASSED_THROUGH


class KeptStates(Protocol):
    """States that stay between batches until the end."""

    def finish(self) -> Iterator[Batch]: ...


@dataclass(frozen=True, slots=True, eq=False)
class PartialFold:
    """An opened PartialAggregate. `kept`: what programs folded in its place (`operators.fusion`)."""

    plan: AggregatePlan
    device: torch.device
    allow_direct: bool
    gain: _Gain = field(default_factory=_Gain)
    kept: list[KeptStates] = field(default_factory=list)

    def process(self, batch: Batch) -> Iterator[Batch]:
        large = batch.length >= _SMALLEST_GROUPED_BATCH
        reduce = self.plan.group_width == 0 or (large and self.gain.should_reduce())
        groups = 0
        for part in partial_batches(self.plan, batch, self.device, reduce=reduce, allow_direct=self.allow_direct):
            groups += part.length
            yield part
        if reduce and self.plan.group_width and len(self.plan.sets) <= 1 and not self.plan.tagged:
            self.gain.record(batch.length, groups)

    def finish(self) -> Iterator[Batch] | None:
        return chain.from_iterable(kept.finish() for kept in self.kept) if self.kept else None


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
        return f"Aggregate {_described(self.plan, self.schema)}"

    async def run(self, ctx: Context, inputs: tuple[Receiver[Batch], ...], out: Output) -> None:
        with await ctx.memory.reserve(0) as reservation:
            wholes, waiting, in_parts = await self._received(ctx, inputs[0], reservation)
            if not in_parts and sum(part.length for part in waiting) >= _ORDERED_ROWS:
                everything = [*wholes, *waiting]
                ordered = await ctx.stream.run(in_key_order, self.plan, everything, ctx.stream.device)
                if ordered is not None:
                    wholes, waiting, in_parts = ordered, [], True
                elif sum(part.length for part in everything) >= _SPLIT_ROWS and can_split(self.plan, ctx.stream.device):
                    wholes, waiting, in_parts = [], everything, True
                del everything, ordered
            if not in_parts:
                parts = [*wholes, *waiting]
                wholes.clear()
                waiting.clear()
                await self._put_out_at_once(ctx, parts, out, reservation)
                return
            if waiting:
                wholes = await self._merge(ctx, wholes, waiting, reservation, in_parts=True)
                waiting.clear()
            if self.plan.lists:
                await self._put_out_folded(ctx, wholes, out, reservation)
                return
            await _together([self._put_out(ctx, wholes, out, reservation) for _ in range(min(_LANES, len(wholes)))])

    async def _put_out_folded(self, ctx: Context, wholes: list[Batch], out: Output, reservation: Reservation) -> None:
        """A group's distinct values are in several parts: fold each part's, then merge what that makes of the group."""
        device, direct = ctx.stream.device, ctx.settings.direct_addressing
        parts = await _together(
            [ctx.stream.run(without_values, self.plan, whole, device, allow_direct=direct) for whole in wholes]
        )
        wholes.clear()
        # The parts, their concatenation and the result exist at once.
        await reservation.resize(3 * sum(part.nbytes for part in parts))
        rows = await ctx.stream.run(finished_together, self.plan, parts, device, allow_direct=direct)
        await reservation.resize(rows.nbytes)
        await out.emit(partial(_slices, rows, ctx.settings.batch_rows), last=True)

    async def _put_out_at_once(self, ctx: Context, parts: list[Batch], out: Output, reservation: Reservation) -> None:
        """Merge, finish and put out: in one job when it is little."""
        # The parts, their concatenation and the result exist at once.
        await reservation.resize(3 * sum(part.nbytes for part in parts))
        device, direct, batch_rows = ctx.stream.device, ctx.settings.direct_addressing, ctx.settings.batch_rows
        if reservation.nbytes <= _SMALL_BYTES:
            await out.emit(partial(self._finished_slices, parts, batch_rows, device, allow_direct=direct), last=True)
            return
        rows = await ctx.stream.run(self._finished, parts, device, allow_direct=direct)
        if rows is not None:
            await reservation.resize(rows.nbytes)
            await out.emit(partial(_slices, rows, batch_rows), last=True)

    def _finished_slices(
        self, parts: list[Batch], batch_rows: int, device: torch.device, *, allow_direct: bool
    ) -> Iterator[Batch]:
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

    async def _put_out(self, ctx: Context, wholes: list[Batch], out: Output, reservation: Reservation) -> None:
        """Finish and put out parts until none is left; what is out needs no more memory."""
        while wholes:
            whole = wholes.pop()
            rows = await ctx.stream.run(
                finished, self.plan, whole, ctx.stream.device, allow_direct=ctx.settings.direct_addressing
            )
            await reservation.resize(reservation.nbytes + rows.nbytes - whole.nbytes)
            del whole
            await out.emit(partial(_slices, rows, ctx.settings.batch_rows))
            await reservation.resize(reservation.nbytes - rows.nbytes)

    async def _received(
        self, ctx: Context, receiver: Receiver[Batch], reservation: Reservation
    ) -> tuple[list[Batch], list[Batch], bool]:
        """Partial batches with each group once, those that are still to be merged with them, and whether the former
        are parts that share no group."""
        waiting: list[Batch] = []
        waiting_rows, waiting_bytes = 0, 0
        enough_rows, enough_bytes = _MERGE_ROWS, _MERGE_BYTES
        wholes: list[Batch] = []
        in_parts = False
        async for batch in receiver:
            ctx.metrics.add_batch(rows_in=batch.length, batches=0)
            await reservation.resize(reservation.nbytes + batch.nbytes)
            waiting.append(batch)
            waiting_rows += batch.length
            waiting_bytes += batch.nbytes
            if waiting_rows >= enough_rows or waiting_bytes >= enough_bytes:
                if not wholes and await ctx.stream.run(in_key_order, self.plan, waiting, ctx.stream.device) is not None:
                    # No two batches share more than one group: merging them would change nothing.
                    enough_rows, enough_bytes = 2 * waiting_rows, 2 * waiting_bytes
                    continue
                rows = waiting_rows + sum(whole.length for whole in wholes)
                wholes = await self._merge(ctx, wholes, waiting, reservation, in_parts=in_parts)
                waiting, waiting_rows, waiting_bytes = [], 0, 0
                # What did not shrink would be merged in vain again and again: wait for a multiple of it.
                groups, held = sum(whole.length for whole in wholes), sum(whole.nbytes for whole in wholes)
                factor = 1 if 2 * groups <= rows else 4
                enough_rows = max(_MERGE_ROWS, factor * groups)
                enough_bytes = max(_MERGE_BYTES, factor * held)
                if not in_parts and 2 * groups > _MERGE_ROWS and can_split(self.plan, ctx.stream.device):
                    waiting, wholes, in_parts = wholes, [], True
        return wholes, waiting, in_parts

    async def _merge(
        self, ctx: Context, wholes: list[Batch], waiting: list[Batch], reservation: Reservation, *, in_parts: bool
    ) -> list[Batch]:
        """The rows of all with each group once: in one batch, or `in_parts`."""
        # The parts, their concatenation and the result exist at once.
        await reservation.resize(3 * sum(part.nbytes for part in (*wholes, *waiting)))
        if in_parts:
            pieces = await _together([ctx.stream.run(split, batch, self.plan.group_width) for batch in waiting])
            merging = gathered(pieces, wholes)
        else:
            merging = [[*wholes, *waiting]]
        direct = ctx.settings.direct_addressing
        result = await _together(
            [ctx.stream.run(merged, self.plan, parts, ctx.stream.device, allow_direct=direct) for parts in merging]
        )
        await reservation.resize(sum(whole.nbytes for whole in result))
        return result


async def _together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All of it at once; an error of a single one is not wrapped."""
    if len(work) == 1:
        return [await work[0]]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in work]
    return [task.result() for task in tasks]


def _slices(batch: Batch, rows: int) -> Iterator[Batch]:
    for start in range(0, batch.length, rows):
        yield slice_batch(batch, start, min(start + rows, batch.length))


def _described(plan: AggregatePlan, schema: Schema) -> str:
    keys = ", ".join(field.name for field in schema[: len(plan.keys)])
    functions = ", ".join(outcome.function for outcome in plan.outcomes)
    sets = f" sets={len(plan.sets)}" if plan.sets else ""
    return f"by [{keys}] of [{functions}]{sets}"
