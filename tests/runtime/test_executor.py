"""A graph of tasks runs to its end or to one typed error, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
import torch

from pystachio.errors import Cancelled, DataError, InternalError, NodeLost, PystachioError, ResourceExhausted
from pystachio.io_scheduler.client import TransferClient
from pystachio.runtime.channels import Channel
from pystachio.runtime.executor import BuildGraph, PlanScope, TaskSpec, run_graph
from pystachio.runtime.memory import Memory, Tier
from pystachio.runtime.plan_entry import PlanEntry
from pystachio.runtime.settings import ExecutionSettings
from pystachio.runtime.slots import Slot
from pystachio.runtime.tracing import Tracing
from pystachio.runtime.transfers import PlanTransfers
from tests import virtual_time

BUDGET = 1 << 20
NO_CLIENT: TransferClient = None  # type: ignore[assignment]


def make_scope() -> tuple[PlanScope, Memory]:
    memory = Memory({Tier.HOST: BUDGET}, virtual_time.clock())
    entry = PlanEntry("plan", 1, 1, memory.plan_became_idle)
    scope = PlanScope(
        entry,
        settings=ExecutionSettings(),
        clock=virtual_time.clock(),
        memory=memory,
        transfers=lambda operator: PlanTransfers(NO_CLIENT, entry),
        stream=virtual_time.InlineStreams().open,
        tracing=Tracing(),
    )
    return scope, memory


def run(build: BuildGraph) -> None:
    """Run the graph; whatever happens, nothing of it may be reserved afterwards."""

    async def main() -> None:
        scope, memory = make_scope()
        try:
            await run_graph(scope, build)
        finally:
            assert memory.release_plan(scope.entry) == 0
            assert scope.entry.external == 0

    virtual_time.run(main())


def tasks(**bodies: Callable[[], Coroutine[Any, Any, None]]) -> BuildGraph:
    return lambda scope: [TaskSpec(name, body) for name, body in bodies.items()]


async def forever() -> None:
    await asyncio.Event().wait()


def failing(error: BaseException, *, after: float = 1) -> Callable[[], Coroutine[Any, Any, None]]:
    async def fail() -> None:
        await asyncio.sleep(after)
        raise error

    return fail


def test_batches_flow_from_task_to_task() -> None:
    total = []

    def build(scope: PlanScope) -> Sequence[TaskSpec]:
        channel: Channel[torch.Tensor] = scope.channel("numbers", producer="producer")
        receiver = channel.receiver()
        ctx = scope.context("producer")

        async def produce() -> None:
            for number in range(100):
                await channel.send(await ctx.stream.run(torch.full, (4,), number))
            channel.close()

        async def consume() -> None:
            total.extend([int(batch.sum()) async for batch in receiver])

        return [TaskSpec("producer", produce), TaskSpec("consumer", consume)]

    run(build)
    assert sum(total) == 4 * sum(range(100))


def test_a_slot_is_waited_for() -> None:
    seen = []

    def build(scope: PlanScope) -> Sequence[TaskSpec]:
        scope.slots["scalar", 0] = Slot()
        ctx = scope.context("reader")

        async def read() -> None:
            seen.append(await ctx.slots["scalar", 0].wait())

        async def write() -> None:
            await asyncio.sleep(1)
            scope.slots["scalar", 0].set(7)

        return [TaskSpec("reader", read), TaskSpec("writer", write)]

    run(build)
    assert seen == [7]


def test_the_first_failure_cancels_the_rest_and_names_plan_and_operator() -> None:
    with pytest.raises(DataError, match="overflow") as caught:
        run(tasks(scan=forever, sort=failing(DataError("overflow")), join=failing(DataError("later"), after=2)))
    assert (caught.value.plan_id, caught.value.operator) == ("plan", "sort")


def test_an_operator_named_by_the_error_itself_stays() -> None:
    with pytest.raises(DataError) as caught:
        run(tasks(pipeline=failing(DataError("overflow", operator="project"))))
    assert caught.value.operator == "project"


def test_a_failure_during_the_cancellation_does_not_hide_the_first() -> None:
    async def clumsy() -> None:
        try:
            await forever()
        finally:
            raise ValueError("while cleaning up")

    with pytest.raises(DataError, match="first"):
        run(tasks(clumsy=clumsy, sort=failing(DataError("first"))))


def test_an_exception_nobody_mapped_is_an_internal_error_with_its_cause() -> None:
    with pytest.raises(InternalError, match="KeyError: 'x'") as caught:
        run(tasks(sort=failing(KeyError("x"))))
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes. Error code 12"),
    ],
)
def test_running_out_of_memory_names_the_setting(error: Exception) -> None:
    with pytest.raises(ResourceExhausted) as caught:
        run(tasks(sort=failing(error)))
    assert (caught.value.setting, caught.value.value) == ("memory", BUDGET)


def test_running_out_of_device_memory_names_the_device() -> None:
    with pytest.raises(ResourceExhausted, match="the device ran out") as caught:
        run(tasks(sort=failing(torch.OutOfMemoryError("CUDA out of memory"))))
    assert caught.value.setting == "device_memory"


def test_the_groups_of_inner_tasks_come_down_to_their_root_cause() -> None:
    async def nested() -> None:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(forever())
            async with asyncio.TaskGroup() as inner:
                inner.create_task(failing(DataError("corrupt"))())
                inner.create_task(forever())

    with pytest.raises(DataError, match="corrupt") as caught:
        run(tasks(scan=nested))
    assert caught.value.operator == "scan"


def test_a_build_that_fails_is_the_plans_failure() -> None:
    def build(scope: PlanScope) -> Sequence[TaskSpec]:
        scope.channel("left over")
        raise LookupError("no such operator")

    with pytest.raises(InternalError, match="no such operator"):
        run(build)


def test_a_task_that_is_cancelled_by_nobody_is_a_defect_not_a_success() -> None:
    async def await_a_cancelled_future() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    with pytest.raises(InternalError, match="cancelled by nobody"):
        run(tasks(scan=await_a_cancelled_future, sort=forever))


def test_cancellation_passes_and_releases_what_the_channels_and_receivers_hold() -> None:
    async def main() -> None:
        scope, memory = make_scope()
        ended = []

        def build(scope: PlanScope) -> Sequence[TaskSpec]:
            channel: Channel[torch.Tensor] = scope.channel("numbers")
            receiver = channel.receiver()

            async def produce() -> None:
                while True:
                    await channel.send(torch.zeros(1000))

            async def consume() -> None:
                try:
                    async for _ in receiver:
                        await forever()
                finally:
                    ended.append("consumer")

            return [TaskSpec("producer", produce), TaskSpec("consumer", consume)]

        task = asyncio.create_task(run_graph(scope, build))
        await asyncio.sleep(1)
        assert memory.statistics()[Tier.HOST].used > 0
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["consumer"]
        assert memory.statistics()[Tier.HOST].used == 0

    virtual_time.run(main())


def test_the_plan_lasts_until_its_client_has_taken_everything() -> None:
    async def main() -> None:
        scope, memory = make_scope()
        channels = []

        def build(scope: PlanScope) -> Sequence[TaskSpec]:
            channel: Channel[torch.Tensor] = scope.channel("result", for_client=True)
            channels.append(channel.receiver())

            async def produce() -> None:
                for number in range(3):
                    await channel.send(torch.full((1,), number))

            return [TaskSpec("producer", produce)]

        task = asyncio.create_task(run_graph(scope, build))
        await asyncio.sleep(100)
        assert not task.done()
        assert [int(batch) async for batch in channels[0]] == [0, 1, 2]
        await task
        assert memory.statistics()[Tier.HOST].used == 0

    virtual_time.run(main())


def test_a_client_that_leaves_ends_the_wait() -> None:
    async def main() -> None:
        scope, _ = make_scope()
        channels = []

        def build(scope: PlanScope) -> Sequence[TaskSpec]:
            channel: Channel[torch.Tensor] = scope.channel("result", for_client=True)
            channels.append(channel.receiver())

            async def produce() -> None:
                await channel.send(torch.zeros(1))

            return [TaskSpec("producer", produce)]

        task = asyncio.create_task(run_graph(scope, build))
        await asyncio.sleep(1)
        channels[0].close()
        await task

    virtual_time.run(main())


def test_a_plan_that_outgrows_the_memory_gets_the_typed_error() -> None:
    def build(scope: PlanScope) -> Sequence[TaskSpec]:
        def grow(name: str) -> TaskSpec:
            ctx = scope.context(name)

            async def body() -> None:
                with await ctx.memory.reserve(0) as held:
                    while True:
                        await held.resize(held.nbytes + BUDGET // 16)
                        await asyncio.sleep(0)

            return TaskSpec(name, body)

        return [grow("left"), grow("right")]

    with pytest.raises(ResourceExhausted) as caught:
        run(build)
    assert caught.value.setting == "memory"
    assert caught.value.operator in {"left", "right"}
    assert caught.value.needed is not None
    assert caught.value.needed > BUDGET
    assert isinstance(caught.value, PystachioError)


def test_a_reason_beats_a_cancellation_that_came_back_before_it() -> None:
    """One task still waits for a job of its own when its loss has come round by what others gave up."""
    hurt = asyncio.Event()

    async def loses_its_way() -> None:
        async def stream() -> None:
            await asyncio.sleep(1)
            raise NodeLost("the way is lost")

        async def job() -> None:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                hurt.set()
                await asyncio.sleep(0.5)
                raise

        async with asyncio.TaskGroup() as group:
            group.create_task(stream())
            group.create_task(job())

    async def hears_of_it() -> None:
        await hurt.wait()
        raise Cancelled("the sender gave the message up")

    with pytest.raises(NodeLost, match="the way is lost"):
        run(tasks(loses_its_way=loses_its_way, hears_of_it=hears_of_it))
