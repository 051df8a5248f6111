"""From a physical plan to a graph of tasks: chains of streaming operators run inside the task that feeds them.

A *pipe* leads from one or more producers (breakers) through opened streaming *stages* into a channel. A producer's
batches pass all stages in one job on a worker thread, so a chain of filters, projections and join probes costs one hop.
A union is a pipe with several producers. When the last producer ends, each stage may put out what it kept
(`Transform.finish`), then the channel closes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

import pyarrow as pa

from pystachio.errors import DataError
from pystachio.operators.arrow import literal_at
from pystachio.operators.batch import Batch, Schema
from pystachio.operators.coalesce import LEAST_ROWS, Coalesced
from pystachio.operators.expressions import Literal
from pystachio.operators.fusion.flow import Flow, can_fuse
from pystachio.operators.join import Join
from pystachio.operators.operator import (
    Breaker,
    NotWanted,
    Operator,
    Produced,
    Streaming,
    Transform,
    is_breaker,
    is_streaming,
)
from pystachio.operators.spool import Spool
from pystachio.operators.union_all import UnionAll
from pystachio.runtime.channels import Channel, Receiver
from pystachio.runtime.context import Context
from pystachio.runtime.executor import PlanScope, TaskSpec
from pystachio.runtime.memory import Reservation
from pystachio.runtime.slots import Slot

_JOB_OUTPUT_BYTES = 16 << 20
"""A worker job pauses after this much output, so that a join that multiplies rows respects its channel's bound."""

_FEW_REPLAYED_ROWS = 1 << 16
"""So many rows of a spool go through a consumer's stages in one job."""

_FIRST_JOB_SECONDS = 0.01
_JOB_SECONDS = 0.03
"""And after this long, so that a plan can be cancelled and others get their turn; first earlier, because the consumer
may soon have all it wants."""


@dataclass(frozen=True)
class PhysicalPlan:
    """What runs: `scalars[i]` feeds the slot ("scalar", i); `names` are the result's column names.

    One plan may run many times, and at once: what can be said of it is worked out once.
    """

    root: Operator
    scalars: tuple[Operator, ...]
    names: tuple[str, ...]

    @property
    def schema(self) -> Schema:
        return self.root.schema

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """Of the result."""
        return pa.schema(
            [pa.field(name, field.type, field.nullable) for name, field in zip(self.names, self.schema, strict=True)]
        )

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Every operator object once, parents first; the root's tree, then the scalars'."""
        found: dict[int, Operator] = {}
        left = [*reversed(self.scalars), self.root]
        while left:
            operator = left.pop()
            if id(operator) not in found:
                found[id(operator)] = operator
                left.extend(reversed(operator.inputs))
        return tuple(found.values())

    @cached_property
    def operator_names(self) -> Mapping[int, str]:
        """A unique name per operator object (by `id`): what metrics and errors call it."""
        return {id(each): f"{number}:{type(each).__name__}" for number, each in enumerate(self.operators)}

    @cached_property
    def runtime_filters(self) -> tuple[int, ...]:
        """The slots of all runtime filters."""
        joins = [operator for operator in self.operators if isinstance(operator, Join)]
        return tuple(id_ for join in joins for id_ in join.runtime_filters if id_ is not None)


@dataclass(frozen=True, slots=True)
class Graph:
    """A plan ready to run. The client takes the answer from `results`; until it has, the plan does not end."""

    tasks: list[TaskSpec]
    results: Receiver[Batch]


def build_graph(plan: PhysicalPlan, scope: PlanScope) -> Graph:
    """The tasks of the plan and the end of its last channel."""
    return _Builder(plan, scope).build()


def operators_of(plan: PhysicalPlan) -> Sequence[Operator]:
    """`PhysicalPlan.operators`."""
    return plan.operators


def operator_names(plan: PhysicalPlan) -> Mapping[int, str]:
    """`PhysicalPlan.operator_names`."""
    return plan.operator_names


@dataclass(slots=True)
class _Stage:
    """A streaming operator of a pipe; `opened` holds its transform once its builds are read."""

    operator: Streaming
    ctx: Context
    builds: tuple[Receiver[Batch], ...]
    opened: Slot[Transform] = field(default_factory=Slot)
    _is_opening: bool = False

    async def transform(self) -> Transform:
        """Waits for a task that reads builds; without any, whoever comes first opens the operator."""
        if not self.builds and not self._is_opening:
            await self.open()
        return await self.opened.wait()

    async def open(self) -> None:
        self._is_opening = True
        transform = await self.operator.open(self.ctx, self.builds)
        if self.operator.prefers_large_batches:
            transform = Coalesced(transform, min(LEAST_ROWS, self.ctx.settings.batch_rows))
        self.opened.set(transform)


@dataclass(slots=True, eq=False)
class _Pipe:
    """The way of `producers` through `stage` into the `onward` pipe; the last pipe has neither, only the channel."""

    channel: Channel[Batch]
    stage: _Stage | None = None
    onward: _Pipe | None = None
    producers: int = 0
    has_finished: bool = False
    """The last producer's last job has put out what the stage kept."""
    _flow: Flow | None = None

    def behind(self, stage: _Stage) -> _Pipe:
        """A pipe that feeds this one through `stage`."""
        self.producers += 1
        return _Pipe(self.channel, stage, self)

    async def flow(self, ctx: Context) -> Flow:
        """Through the opened stages from here to the channel; waits for the builds of joins."""
        if self._flow is None:
            opened: list[tuple[Transform, Context]] = []
            pipe: _Pipe | None = self
            while pipe is not None:
                if pipe.stage is not None:
                    opened.append((await pipe.stage.transform(), pipe.stage.ctx))
                pipe = pipe.onward
            if self._flow is None:
                self._flow = Flow(opened, fused=can_fuse(ctx))
        return self._flow

    async def finishing(self, ctx: Context) -> list[_Ending]:
        """The stages that end with the only producer left, once it has pushed its last batch."""
        ending: list[_Ending] = []
        pipe = self
        while pipe.producers == 1 and pipe.stage is not None and pipe.onward is not None:
            ending.append((pipe, pipe.stage, await pipe.stage.transform(), await pipe.onward.flow(ctx)))
            pipe = pipe.onward
        return ending

    async def producer_ended(self, ctx: Context) -> None:
        """The last one puts out what the stage kept, and ends its part of the onward pipe."""
        self.producers -= 1
        if self.producers:
            return
        self._flow = None  # and what its programs hold of joins
        if self.stage is not None and self.onward is not None:
            left = None if self.has_finished else (await self.stage.transform()).finish()
            if left is not None:
                rest = await self.onward.flow(ctx)
                with suppress(NotWanted):  # the consumer has all it wanted
                    await self.drain(ctx, rest.push_finished(left, self.stage.ctx))
            await self.onward.producer_ended(ctx)
        else:
            self.channel.close()

    async def drain(self, ctx: Context, batches: Iterator[Batch]) -> None:
        """Pull `batches` on a worker and send them on; NotWanted when the consumer has all it wants."""
        ended, seconds = False, _FIRST_JOB_SECONDS
        while not ended:
            produced, ended = await ctx.stream.run(_pull, batches, seconds)
            seconds = _JOB_SECONDS
            if self.channel.abandoned:
                raise NotWanted
            for batch in produced:
                await self.send(batch)

    async def send(self, batch: Batch) -> None:
        if self.channel.abandoned:
            raise NotWanted
        await self.channel.send(batch)


@dataclass(slots=True)
class _PipeOutput:
    """`operator.Output` of one breaker."""

    pipe: _Pipe
    ctx: Context

    async def emit(self, produce: Callable[[], Iterable[Produced]], *, last: bool | Callable[[], bool] = False) -> None:
        flow = await self.pipe.flow(self.ctx)
        batches = flow.push(_produced(produce), self.ctx)
        if last is not False:
            batches = chain(batches, _finished(await self.pipe.finishing(self.ctx), last))
        await self.pipe.drain(self.ctx, batches)

    async def send(self, batch: Batch) -> None:
        if self.pipe.stage is not None:
            await self.emit(lambda: (batch,))
        elif batch.length:
            self.ctx.metrics.add_batch(rows_out=batch.length, nbytes=batch.nbytes)
            await self.pipe.send(batch)


class _Builder:
    def __init__(self, plan: PhysicalPlan, scope: PlanScope) -> None:
        self._plan = plan
        self._scope = scope
        self._names = plan.operator_names
        self._tasks: list[TaskSpec] = []
        self._spools: dict[int, Slot[tuple[list[Batch], _SharedReservation]]] = {}

    def build(self) -> Graph:
        slots = self._scope.slots
        slots.update({("scalar", index): Slot() for index in range(len(self._plan.scalars))})
        slots.update({("filter", id_): Slot() for id_ in self._plan.runtime_filters})
        for index, scalar in enumerate(self._plan.scalars):
            self._scalar(index, scalar)
        channel: Channel[Batch] = self._scope.channel(
            "result", producer=self._names[id(self._plan.root)], for_client=True
        )
        self._place(self._plan.root, _Pipe(channel))
        return Graph(self._tasks, channel.receiver())

    def _add(self, name: str, run: Callable[[], Coroutine[object, object, None]]) -> None:
        self._tasks.append(TaskSpec(name, run))

    def _channel_from(self, operator: Operator, name: str, ctx: Context) -> Receiver[Batch]:
        """The output of `operator` for the consumer whose context is `ctx`."""
        channel: Channel[Batch] = self._scope.channel(name, producer=self._names[id(operator)])
        self._place(operator, _Pipe(channel))
        return channel.receiver(ctx.metrics)

    def _place(self, operator: Operator, pipe: _Pipe) -> None:
        """Add the tasks of the sub-plan `operator`, whose output goes into `pipe`."""
        name = self._names[id(operator)]
        if isinstance(operator, UnionAll):
            for child in operator.inputs:
                self._place(child, pipe)
        elif isinstance(operator, Spool):
            self._replay(operator, pipe, name)
        elif is_streaming(operator):
            ctx = self._scope.context(name)
            builds = tuple(self._channel_from(child, f"{name} build", ctx) for child in operator.inputs[1:])
            stage = _Stage(operator, ctx, builds)
            if builds:
                self._add(f"{name} open", stage.open)
            self._place(operator.inputs[0], pipe.behind(stage))
        elif is_breaker(operator):
            self._break(operator, pipe, name)
        else:
            raise AssertionError(f"{type(operator).__name__} is neither streaming nor a breaker")

    def _break(self, operator: Breaker, pipe: _Pipe, name: str) -> None:
        ctx = self._scope.context(name)
        receivers = tuple(self._channel_from(child, f"{name} input", ctx) for child in operator.inputs)
        pipe.producers += 1

        async def run() -> None:
            try:
                await operator.run(ctx, receivers, _PipeOutput(pipe, ctx))
            except* NotWanted:
                pass  # the consumer has all it wanted
            for receiver in receivers:
                receiver.close()
            await pipe.producer_ended(ctx)

        self._add(name, run)

    def _replay(self, spool: Spool, pipe: _Pipe, name: str) -> None:
        ctx = self._scope.context(name)
        if id(spool) not in self._spools:
            slot: Slot[tuple[list[Batch], _SharedReservation]] = Slot()
            self._spools[id(spool)] = slot
            receiver = self._channel_from(spool.input, f"{name} input", ctx)

            async def collect() -> None:
                batches, held = await spool.collect(ctx, receiver)
                slot.set((batches, _SharedReservation(held, spool.consumers)))

            self._add(f"{name} collect", collect)
        shared = self._spools[id(spool)]
        pipe.producers += 1

        async def replay() -> None:
            batches, held = await shared.wait()
            out = _PipeOutput(pipe, ctx)
            with suppress(NotWanted):  # this consumer has all it wanted; the others read on
                if pipe.stage is not None and sum(batch.length for batch in batches) <= _FEW_REPLAYED_ROWS:
                    await out.emit(lambda: batches, last=True)
                else:
                    for batch in batches:
                        await out.send(batch)
            await pipe.producer_ended(ctx)
            held.release_one()

        self._add(f"{name} replay", replay)

    def _scalar(self, index: int, operator: Operator) -> None:
        ctx = self._scope.context(f"scalar {index}")
        receiver = self._channel_from(operator, f"scalar {index}", ctx)
        slot = self._scope.slots[("scalar", index)]
        type_ = operator.schema[0].type

        async def take_value() -> None:
            value = Literal(None, type_)
            rows = 0
            async for batch in receiver:
                rows += batch.length
                if rows > 1:
                    raise DataError("a scalar subquery returned more than one row", hint="aggregate it or add LIMIT 1")
                value = await ctx.stream.run(literal_at, batch.columns[0], 0)
            slot.set(value)

        self._add(f"scalar {index}", take_value)


class _SharedReservation:
    """Released when the last of `holders` lets go."""

    def __init__(self, reservation: Reservation, holders: int) -> None:
        self._reservation = reservation
        self._holders = holders

    def release_one(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._reservation.release()


def _produced(produce: Callable[[], Iterable[Produced]]) -> Iterator[Produced]:
    """Made on the worker, not before."""
    yield from produce()


_Ending = tuple[_Pipe, _Stage, Transform, Flow]
"""A stage at its end: its pipe, the opened stage, and the flow behind it."""


def _finished(ending: Sequence[_Ending], last: bool | Callable[[], bool]) -> Iterator[Batch]:
    """What the stages kept, through those behind them; on the worker, after the last batch, if it is the `last`."""
    if not (last is True or (last is not False and last())):
        return
    for pipe, stage, transform, onward in ending:
        pipe.has_finished = True
        left = transform.finish()
        if left is not None:
            yield from onward.push_finished(left, stage.ctx)


def _pull(batches: Iterator[Batch], seconds: float) -> tuple[list[Batch], bool]:
    """Batches until enough bytes are made or enough time has passed; True when there are no more."""
    produced: list[Batch] = []
    nbytes = 0
    end = time.perf_counter() + seconds
    for batch in batches:
        if batch.length:
            produced.append(batch)
            nbytes += batch.nbytes
        if nbytes >= _JOB_OUTPUT_BYTES or time.perf_counter() >= end:
            return produced, False
    return produced, True
