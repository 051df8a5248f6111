"""From a physical plan to a graph of tasks: chains of streaming operators run inside the task that feeds them.

A *pipe* leads from one or more producers (breakers) through opened streaming *stages* into a channel. A producer's
batches pass all stages in one job on a worker thread, so a chain of filters, projections and join probes costs one hop.
A union is a pipe with several producers. When the last producer ends, each stage may put out what it kept
(`Transform.finish`), then the channel closes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial

import pyarrow as pa

from pystachio.errors import DataError
from pystachio.operators.arrow import literal_at, schema_to_arrow
from pystachio.operators.batch import Batch, Schema
from pystachio.operators.exchanges.filter_exchange import SharedFilter
from pystachio.operators.expressions import Literal
from pystachio.operators.joins.join import Join
from pystachio.operators.kept_answers import KeptAnswers
from pystachio.operators.operator import (
    Breaker,
    NotWanted,
    Operator,
    is_breaker,
    is_streaming,
)
from pystachio.operators.pipes import Pipe, PipeOutput, Stage
from pystachio.operators.small import is_small
from pystachio.operators.spool import Spool
from pystachio.operators.table import Table
from pystachio.operators.union_all import UnionAll
from pystachio.runtime.channels import Channel, Receiver
from pystachio.runtime.context import Context
from pystachio.runtime.executor import PlanScope, TaskSpec
from pystachio.runtime.memory import Reservation
from pystachio.runtime.slots import Slot

_FEW_REPLAYED_ROWS = 1 << 16
"""So many rows of a spool go through a consumer's stages in one job."""

Sample = Callable[[Table, Sequence[int]], Batch]
"""Some rows of the columns (positions in the table's schema), on the host, always the same ones. Blocking."""


@dataclass(frozen=True)
class PhysicalPlan:
    """What runs: `scalars[i]` feeds the slot ("scalar", i); `names` are the result's column names.

    One plan may run many times, and at once: what can be said of it is worked out once.
    """

    root: Operator
    scalars: tuple[Operator, ...]
    names: tuple[str, ...]
    expected_rows: Callable[[Operator], float | None] = field(default=lambda _: None, compare=False, repr=False)
    """The planner's estimate for an operator, for plans of several nodes. It may read samples: not on a node's loop."""
    sample: Sample | None = field(default=None, compare=False, repr=False)
    """What the planner knows of the tables' rows."""
    given_names: Mapping[int, str] | None = field(default=None, compare=False, repr=False)
    """The operators' names by `id`, where they are those of another plan, of which this is a part."""
    shared_filters: tuple[SharedFilter, ...] = ()
    """Of a part of a plan of several nodes: what the nodes tell each other."""

    @property
    def schema(self) -> Schema:
        return self.root.schema

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """Of the result."""
        return schema_to_arrow(self.schema, self.names)

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
        if self.given_names is not None:
            return self.given_names
        return {id(each): f"{number}:{type(each).__name__}" for number, each in enumerate(self.operators)}

    @cached_property
    def kept(self) -> KeptAnswers:
        """What runs on a node of its own found out and the next ones need not."""
        return KeptAnswers.of(self.root, self.scalars)

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


class _Builder:
    def __init__(self, plan: PhysicalPlan, scope: PlanScope) -> None:
        self._plan = plan
        self._scope = scope
        self._names = plan.operator_names
        self._tasks: list[TaskSpec] = []
        self._spools: dict[int, Slot[tuple[list[Batch], _SharedReservation]]] = {}
        self._consumers: Counter[int] = Counter()
        """Of each spool, those that run: joins whose build sides were kept do not read it."""

    def build(self) -> Graph:
        slots = self._scope.slots
        slots.update({("scalar", index): Slot() for index in range(len(self._plan.scalars))})
        slots.update({("filter", id_): Slot() for id_ in self._plan.runtime_filters})
        for shared in self._plan.shared_filters:
            slots.update({(kind, shared.slot): Slot() for kind in ("filter", "filter part")})
            self._add(f"filter {shared.slot}", partial(shared.share, self._scope.context(shared.join)))
        for index, scalar in enumerate(self._plan.scalars):
            self._scalar(index, scalar)
        channel: Channel[Batch] = self._scope.channel(
            "result", producer=self._names[id(self._plan.root)], for_client=True
        )
        self._place(self._plan.root, Pipe(channel))
        return Graph(self._tasks, channel.receiver())

    def _add(self, name: str, run: Callable[[], Coroutine[object, object, None]]) -> None:
        self._tasks.append(TaskSpec(name, run))

    def _channel_from(self, operator: Operator, name: str, ctx: Context) -> Receiver[Batch]:
        """The output of `operator` for the consumer whose context is `ctx`."""
        channel: Channel[Batch] = self._scope.channel(name, producer=self._names[id(operator)])
        self._place(operator, Pipe(channel))
        return channel.receiver(ctx.metrics)

    def _place(self, operator: Operator, pipe: Pipe) -> None:
        """Add the tasks of the sub-plan `operator`, whose output goes into `pipe`."""
        name = self._names[id(operator)]
        if isinstance(operator, UnionAll):
            for child in operator.inputs:
                self._place(child, pipe)
        elif isinstance(operator, Spool):
            self._replay(operator, pipe, name)
        elif is_streaming(operator):
            ctx = self._scope.context(name)
            reopened = operator.reopen(ctx) if isinstance(operator, Join) else None
            builds: tuple[Receiver[Batch], ...] = ()
            if reopened is None:
                builds = tuple(self._channel_from(child, f"{name} build", ctx) for child in operator.inputs[1:])
            stage = Stage(operator, ctx, builds)
            if reopened is not None:
                stage.has_opened(reopened)
            elif builds:
                self._add(f"{name} open", stage.open)
            self._place(operator.inputs[0], pipe.behind(stage))
        elif is_breaker(operator):
            self._break(operator, pipe, name)
        else:
            raise AssertionError(f"{type(operator).__name__} is neither streaming nor a breaker")

    def _break(self, operator: Breaker, pipe: Pipe, name: str) -> None:
        ctx = self._scope.context(name)
        receivers = tuple(self._channel_from(child, f"{name} input", ctx) for child in operator.inputs)
        pipe.add_producer()

        async def run() -> None:
            try:
                await operator.run(ctx, receivers, PipeOutput(pipe, ctx))
            except* NotWanted:
                pass  # the consumer has all it wanted
            for receiver in receivers:
                receiver.close()
            await pipe.producer_ended(ctx)

        self._add(name, run)

    def _replay(self, spool: Spool, pipe: Pipe, name: str) -> None:
        ctx = self._scope.context(name)
        if id(spool) not in self._spools:
            slot: Slot[tuple[list[Batch], _SharedReservation]] = Slot()
            self._spools[id(spool)] = slot
            receiver = self._channel_from(spool.input, f"{name} input", ctx)

            async def collect() -> None:
                batches, held = await spool.collect(ctx, receiver)
                slot.set((batches, _SharedReservation(held, self._consumers[id(spool)])))

            self._add(f"{name} collect", collect)
        shared = self._spools[id(spool)]
        self._consumers[id(spool)] += 1
        pipe.add_producer()

        async def replay() -> None:
            batches, held = await shared.wait()
            out = PipeOutput(pipe, ctx)
            with suppress(NotWanted):  # this consumer has all it wanted; the others read on
                if pipe.stage is not None and sum(batch.length for batch in batches) <= _FEW_REPLAYED_ROWS:
                    await out.emit(lambda: batches, last=True, small=is_small(batches))
                else:
                    for batch in batches:
                        await out.send(batch)
            await pipe.producer_ended(ctx)
            held.release_one()

        self._add(f"{name} replay", replay)

    def _scalar(self, index: int, operator: Operator) -> None:
        slot, kept = self._scope.slots[("scalar", index)], self._plan.kept
        if index in kept.scalars:
            slot.set(kept.scalars[index])
            return
        ctx = self._scope.context(f"scalar {index}")
        receiver = self._channel_from(operator, f"scalar {index}", ctx)
        type_ = operator.schema[0].type

        async def take_value() -> None:
            value = Literal(None, type_)
            rows = 0
            async for batch in receiver:
                rows += batch.length
                if rows > 1:
                    raise DataError("a scalar subquery returned more than one row", hint="aggregate it or add LIMIT 1")
                value = await ctx.stream.run_small(literal_at, batch.columns[0], 0)
            kept.keep_scalar(index, value)
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
