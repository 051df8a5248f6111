"""The node's records: what a running graph leaves in them, and rings that workers append to while they are read."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

import pytest

from pystachio.runtime.channels import Channel
from pystachio.runtime.executor import PlanScope, TaskSpec, run_graph
from pystachio.runtime.memory import Memory, Tier
from pystachio.runtime.metrics import OperatorMetrics
from pystachio.runtime.plan_entry import PlanEntry
from pystachio.runtime.settings import ExecutionSettings
from pystachio.runtime.tracing import JobRecord, Phase, Tracing, TracingSnapshot, WaitReason, WaitRecord
from pystachio.runtime.transfers import PlanTransfers
from tests import virtual_time

BUDGET = 1000


@dataclass(frozen=True)
class Item:
    nbytes: int


def make_scope(tracing: Tracing, plan_id: str = "plan") -> PlanScope:
    clock = virtual_time.clock()
    memory = Memory({Tier.HOST: BUDGET}, clock, tracing=tracing)
    entry = PlanEntry(plan_id, 1, 1, memory.plan_became_idle)
    return PlanScope(
        entry,
        settings=ExecutionSettings(),
        clock=clock,
        memory=memory,
        transfers=lambda operator: PlanTransfers(None, entry),  # type: ignore[arg-type]
        stream=virtual_time.InlineStreams().open,
        tracing=tracing,
    )


def producer_and_consumer(scope: PlanScope) -> list[TaskSpec]:
    """Two items of which the channel holds one; the client takes them late."""
    producer, consumer = scope.context("producer"), scope.context("consumer")
    between: Channel[Item] = Channel("between", capacity_items=1, metrics=producer.metrics)
    results: Channel[Item] = scope.channel("result", producer="consumer", for_client=True)

    async def produce() -> None:
        await asyncio.sleep(1)
        for _ in range(2):
            await between.send(Item(10))
        between.close()

    async def consume() -> None:
        with await consumer.memory.reserve(100):
            async for _ in between.receiver(consumer.metrics):
                await asyncio.sleep(2)
        await results.send(Item(1))

    async def client() -> None:
        reader = results.receiver()
        await anext(reader)
        await asyncio.sleep(3)
        reader.close()

    return [TaskSpec("producer", produce), TaskSpec("consumer", consume), TaskSpec("client", client)]


def traced() -> TracingSnapshot:
    tracing = Tracing()

    async def main() -> None:
        await run_graph(make_scope(tracing), producer_and_consumer)

    virtual_time.run(main())
    return tracing.snapshot()


def test_waits_say_for_what_and_how_long() -> None:
    waits = {
        (wait.operator, wait.reason, wait.what, wait.nbytes): (wait.started, wait.ended) for wait in traced().waits
    }
    assert waits == {
        ("consumer", WaitReason.INPUT, "between", 0): (0, 1),
        ("producer", WaitReason.CONSUMER, "between", 10): (1, 3),
        ("result", WaitReason.CLIENT, "result", 0): (5, 8),
    }


def test_phases_cover_the_plan() -> None:
    phases = traced().phases
    assert [(phase.phase, phase.started, phase.ended) for phase in phases] == [
        (Phase.START, 0, 0),
        (Phase.RUN, 0, 8),
        (Phase.DRAIN, 8, 8),
    ]


def test_a_failing_plan_ends_its_phases_too() -> None:
    tracing = Tracing()

    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError("wrong")

    async def main() -> None:
        with pytest.raises(Exception, match="wrong"):
            await run_graph(make_scope(tracing), lambda scope: [TaskSpec("fails", fail)])

    virtual_time.run(main())
    assert [phase.phase for phase in tracing.snapshot().phases] == [Phase.START, Phase.RUN, Phase.DRAIN]


def test_memory_levels_by_operator() -> None:
    held = [(level.at, level.held) for level in traced().memory if level.operator == "consumer"]
    assert held == [(0, 100), (5, 0)]
    assert {level.tier for level in traced().memory} == {Tier.HOST}


def test_levels_that_nobody_can_see_are_not_recorded() -> None:
    """But who had something that could be seen has nothing in the end."""

    async def main() -> list[tuple[str, int]]:
        tracing = Tracing()
        memory = Memory({Tier.HOST: 1 << 30}, virtual_time.clock(), tracing=tracing)
        entry = PlanEntry("plan", 1, 1)
        one, other = (memory.operator(entry, name, OperatorMetrics(name, virtual_time.clock())) for name in "ab")
        little = await one.reserve(1000)
        await little.resize(2000)
        much = await other.reserve(1 << 20)
        await much.resize((1 << 20) + 1000)
        much.shrink(1000)
        little.release()
        much.release()
        return [(level.operator, level.held) for level in tracing.snapshot().memory]

    assert virtual_time.run(main()) == [("b", 1 << 20), ("b", 1000), ("b", 0)]


def job(number: int) -> JobRecord:
    return JobRecord("p", "scan", "worker", number, number + 0.25, number + 0.5)


def test_a_span_of_time_has_what_waited_or_ran_in_it() -> None:
    tracing = Tracing()
    for number in range(5):
        tracing.job(job(number))
        tracing.wait(WaitRecord("p", "scan", WaitReason.IO, "", 0, number, number + 0.5))
    seen = tracing.snapshot(since=1.4, until=3.0)
    assert [each.started for each in seen.jobs] == [1.25, 2.25, 3.25]
    assert [each.started for each in seen.waits] == [1, 2, 3]
    assert seen.complete_from == 0


def test_a_full_ring_says_from_when_it_is_complete() -> None:
    tracing = Tracing(capacity=2)
    for number in range(5):
        tracing.job(job(number))
    assert tracing.snapshot().complete_from == 3.5


def test_reading_while_threads_append() -> None:
    tracing = Tracing(capacity=1000)
    stop = threading.Event()

    def append() -> None:
        while not stop.is_set():
            tracing.job(job(1))

    threads = [threading.Thread(target=append) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        sizes = [len(tracing.snapshot().jobs) for _ in range(200)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert 900 <= max(sizes) <= 1000
