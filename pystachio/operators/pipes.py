"""Pipes: the ways of batches from producers through opened streaming operators into a channel (`pipeline`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

from pystachio.operators.batch import Batch
from pystachio.operators.coalesce import LEAST_ROWS, Coalesced
from pystachio.operators.filter import Filter
from pystachio.operators.fusion.flow import Flow, can_fuse
from pystachio.operators.joins.probe import JoinProbe
from pystachio.operators.operator import NotWanted, Produced, Streaming, Transform
from pystachio.operators.project import Project
from pystachio.operators.small import BRIEF_SECONDS, MOST_COLUMNS, is_light
from pystachio.runtime.channels import Channel, Receiver
from pystachio.runtime.context import Context
from pystachio.runtime.slots import Slot

_JOB_OUTPUT_BYTES = 16 << 20
"""A worker job pauses after this much output, so that a join that multiplies rows respects its channel's bound."""

_FIRST_JOB_SECONDS = 0.01
_JOB_SECONDS = 0.03
"""And after this long, so that a plan can be cancelled and others get their turn; first earlier, because the consumer
may soon have all it wants."""


@dataclass(slots=True)
class Stage:
    """A streaming operator of a pipe; `opened` holds its transform once its builds are read."""

    operator: Streaming
    ctx: Context
    builds: tuple[Receiver[Batch], ...]
    opened: Slot[Transform] = field(default_factory=Slot)
    _is_opening: bool = False
    _puts_out_no_more: bool = False
    """An opened join, for each row."""

    @property
    def keeps_small(self) -> bool:
        """Whether it makes little of few rows, and little of that is work."""
        operator = self.operator
        if len(operator.schema) > MOST_COLUMNS:
            return False
        if len(operator.inputs) > 1:
            return self._puts_out_no_more
        match operator:
            case Filter(predicate=predicate):
                return is_light((predicate,))
            case Project(expressions=expressions):
                return is_light(expressions)
            case _:
                return True

    async def transform(self) -> Transform:
        """Waits for a task that reads builds; without any, whoever comes first opens the operator."""
        if not self.builds and not self._is_opening:
            await self.open()
        return await self.opened.wait()

    async def open(self) -> None:
        self._is_opening = True
        self.has_opened(await self.operator.open(self.ctx, self.builds))

    def has_opened(self, transform: Transform) -> None:
        """`open` is done, or need not be."""
        self._is_opening = True
        self._puts_out_no_more = isinstance(transform, JoinProbe) and transform.puts_out_no_more
        if self.operator.prefers_large_batches:
            transform = Coalesced(transform, min(LEAST_ROWS, self.ctx.settings.batch_rows))
        self.opened.set(transform)


@dataclass(slots=True, eq=False)
class Pipe:
    """The way of `producers` through `stage` into the `onward` pipe; the last pipe has neither, only the channel."""

    channel: Channel[Batch]
    stage: Stage | None = None
    onward: Pipe | None = None
    producers: int = 0
    is_shared: bool = False
    """It has, or had, several producers."""
    has_finished: bool = False
    """The last producer's last job has put out what the stage kept."""
    _flow: Flow | None = None

    def behind(self, stage: Stage) -> Pipe:
        """A pipe that feeds this one through `stage`."""
        self.add_producer()
        return Pipe(self.channel, stage, self)

    def add_producer(self) -> None:
        self.is_shared |= self.producers > 0
        self.producers += 1

    async def flow(self, ctx: Context) -> Flow:
        """Through the opened stages from here to the channel; waits for the builds of joins."""
        if self._flow is None:
            opened: list[tuple[Transform, Context]] = []
            pipe: Pipe | None = self
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
            transform = await self.stage.transform()
            left = None if self.has_finished else transform.finish()
            if left is not None:
                rest = await self.onward.flow(ctx)
                with suppress(NotWanted):  # the consumer has all it wanted
                    await self.drain(ctx, rest.push_finished(left, self.stage.ctx))
            del left
            transform.close()
            await self.onward.producer_ended(ctx)
        else:
            self.channel.close()

    @property
    def keeps_small(self) -> bool:
        """Whether few rows that are put in stay few and are all that comes: no join may put out more for them, no stage
        computes much or puts out many columns, and no other producer has left rows with one. Once all are opened."""
        pipe: Pipe | None = self
        while pipe is not None:
            if pipe.is_shared:
                return False
            if pipe.stage is not None and not pipe.stage.keeps_small:
                return False
            pipe = pipe.onward
        return True

    async def drain(self, ctx: Context, batches: Iterator[Batch], *, small: bool = False) -> None:
        """Pull `batches` on a worker (or on the loop, when they are `small`) and send them on; NotWanted when the
        consumer has all it wants."""
        ended, seconds = False, _FIRST_JOB_SECONDS
        while not ended:
            if small:
                produced, ended = await ctx.stream.run_small(_pull, batches, BRIEF_SECONDS)
            else:
                produced, ended = await ctx.stream.run(_pull, batches, seconds)
                seconds = _JOB_SECONDS
            small = False
            if self.channel.abandoned:
                raise NotWanted
            for batch in produced:
                await self.send(batch)

    async def send(self, batch: Batch) -> None:
        if self.channel.abandoned:
            raise NotWanted
        await self.channel.send(batch)


@dataclass(slots=True)
class PipeOutput:
    """`operator.Output` of one breaker."""

    pipe: Pipe
    ctx: Context

    async def emit(
        self,
        produce: Callable[[], Iterable[Produced]],
        *,
        last: bool | Callable[[], bool] = False,
        small: bool = False,
    ) -> None:
        flow = await self.pipe.flow(self.ctx)
        batches = flow.push(_produced(produce), self.ctx)
        if last is not False:
            batches = chain(batches, _finished(await self.pipe.finishing(self.ctx), last))
        await self.pipe.drain(self.ctx, batches, small=small and self.pipe.keeps_small)

    async def send(self, batch: Batch) -> None:
        if self.pipe.stage is not None:
            await self.emit(lambda: (batch,))
        elif batch.length:
            self.ctx.metrics.add_batch(rows_out=batch.length, nbytes=batch.nbytes)
            await self.pipe.send(batch)

    async def until_unwanted(self) -> None:
        await self.pipe.channel.wait_abandoned()


def _produced(produce: Callable[[], Iterable[Produced]]) -> Iterator[Produced]:
    """Made on the worker, not before."""
    yield from produce()


_Ending = tuple[Pipe, Stage, Transform, Flow]
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
