"""Operators run alone: a context without a node, batches from Arrow tables, results back as rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
import torch

from pystachio.errors import ResourceExhausted
from pystachio.operators.arrow import batch_from_arrow, batch_to_arrow, schema_from_arrow, schema_to_arrow
from pystachio.operators.batch import Batch, Schema
from pystachio.operators.scans.hot_rows import gathered
from pystachio.operators.scans.rows import ScanRows
from pystachio.runtime.clock import SystemClock
from pystachio.runtime.context import Context, PlanIdentity
from pystachio.runtime.metrics import OperatorMetrics
from pystachio.runtime.settings import ExecutionSettings
from pystachio.runtime.slots import Slot

Rows = list[tuple[Any, ...]]


class InlineStream:
    device = torch.device("cpu")

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    run_small = run


class CountedReservation:
    def __init__(self, memory: CountedMemory) -> None:
        self._memory = memory
        self.nbytes = 0

    async def resize(self, nbytes: int) -> None:
        self._memory.take(nbytes - self.nbytes)
        self.nbytes = nbytes

    def shrink(self, nbytes: int) -> None:
        less = max(0, self.nbytes - nbytes)
        self._memory.take(-less)
        self.nbytes -= less

    def release(self) -> None:
        self._memory.take(-self.nbytes)
        self.nbytes = 0

    def __enter__(self) -> CountedReservation:
        return self

    def __exit__(self, *details: object) -> None:
        self.release()


class CountedMemory:
    def __init__(self, budget: int | None = None) -> None:
        self.most = budget
        self.held = 0

    def budget(self, tier: object = None) -> int:
        return 1 << 40 if self.most is None else self.most

    async def reserve(self, nbytes: int, **options: object) -> CountedReservation:
        reservation = CountedReservation(self)
        await reservation.resize(nbytes)
        return reservation

    def reserve_nowait(self, nbytes: int, **options: object) -> CountedReservation | None:
        if self.held + nbytes > self.budget():
            return None
        reservation = CountedReservation(self)
        reservation.nbytes = nbytes
        self.held += nbytes
        return reservation

    def take(self, nbytes: int) -> None:
        if self.held + nbytes > self.budget():
            raise ResourceExhausted("too small", setting="memory", value=self.most)
        self.held += nbytes


@dataclass(frozen=True)
class Source:
    """Stands for the operator below; the harness feeds its batches."""

    batches: tuple[Batch, ...]
    schema: Schema
    inputs: tuple[Any, ...] = ()

    def label(self) -> str:
        return "Source"

    @staticmethod
    def of(table: pa.Table, batch_rows: int = 1 << 20) -> Source:
        parts = [table.slice(start, batch_rows) for start in range(0, table.num_rows, batch_rows)]
        return Source(tuple(batch_from_arrow(part) for part in parts), schema_from_arrow(table.schema))


class ListReceiver:
    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = iter(batches)

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        for batch in self._batches:
            return batch
        raise StopAsyncIteration

    def close(self) -> None:
        self._batches = iter(())


@dataclass
class ListOutput:
    batches: list[Batch] = field(default_factory=list)

    async def emit(
        self, produce: Callable[[], Iterable[Batch | ScanRows]], *, last: bool = False, small: bool = False
    ) -> None:
        self.batches.extend(gathered(produce()))

    async def send(self, batch: Batch) -> None:
        self.batches.append(batch)

    async def until_unwanted(self) -> None:
        await asyncio.Event().wait()


@dataclass
class Harness:
    """Runs operator trees whose leaves are `Source`."""

    memory: CountedMemory = field(default_factory=CountedMemory)
    slots: dict[tuple[str, int], Slot[object]] = field(default_factory=dict)
    source: Callable[..., Source] = Source.of

    def batches(self, operator: Any, **settings: Any) -> list[Batch]:
        return asyncio.run(self._run(operator, self.context(**settings)))

    def table(self, operator: Any, **settings: Any) -> pa.Table:
        schema = schema_to_arrow(operator.schema)
        batches = self.batches(operator, **settings)
        return pa.Table.from_batches([batch_to_arrow(batch, schema) for batch in batches], schema)

    def rows(self, operator: Any, **settings: Any) -> Rows:
        """All rows as tuples, in the order they came."""
        return rows_of(self.batches(operator, **settings), operator.schema)

    @staticmethod
    def receiver(batches: Iterable[Batch]) -> ListReceiver:
        return ListReceiver(batches)

    @staticmethod
    def rows_of(batches: Sequence[Batch], schema: Schema) -> Rows:
        return rows_of(batches, schema)

    def context(self, **settings: Any) -> Context:
        clock = SystemClock()
        stream: Any = InlineStream()
        memory: Any = self.memory
        transfers: Any = None
        return Context(
            plan=PlanIdentity("test", 1),
            operator="test",
            stream=stream,
            memory=memory,
            transfers=transfers,
            clock=clock,
            settings=ExecutionSettings(**settings),
            metrics=OperatorMetrics("test", clock),
            slots=self.slots,
        )

    async def _run(self, operator: Any, ctx: Context) -> list[Batch]:
        if isinstance(operator, Source):
            return list(operator.batches)
        inputs = [await self._run(child, ctx) for child in operator.inputs]
        if hasattr(operator, "open"):
            builds = tuple(ListReceiver(batches) for batches in inputs[1:])
            transform = await operator.open(ctx, builds)
            return list(_stream(transform, inputs[0]))
        out = ListOutput()
        await operator.run(ctx, tuple(ListReceiver(batches) for batches in inputs), out)
        return out.batches


def _stream(transform: Any, batches: Sequence[Batch]) -> Iterator[Batch]:
    """Empty batches are pauses."""
    for batch in batches:
        yield from (out for out in transform.process(batch) if out.length)
    yield from (out for out in transform.finish() or () if out.length)


def rows_of(batches: Sequence[Batch], schema: Schema) -> Rows:
    rows: Rows = []
    for batch in batches:
        if batch.length == 0:
            continue
        record = batch_to_arrow(batch, schema_to_arrow(schema))
        assert record.num_rows == batch.length
        columns = [column.to_pylist() for column in record.columns]
        rows.extend(zip(*columns, strict=True) if columns else [()] * batch.length)
    return rows


@pytest.fixture
def harness() -> Harness:
    return Harness()
