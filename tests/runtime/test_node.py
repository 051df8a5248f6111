"""Several plans on one node: ends, cancellations, priorities, and nothing left behind."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import torch

from pystachio.errors import (
    Cancelled,
    DataError,
    InternalError,
    InvalidRequest,
    NotFound,
    PystachioError,
    ResourceExhausted,
)
from pystachio.io_scheduler.core.request import Extent, PriorityClass
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.runtime.channels import Channel
from pystachio.runtime.executor import BuildGraph, PlanScope, TaskSpec
from pystachio.runtime.memory import Tier
from pystachio.runtime.node import Node
from tests.runtime.nodes import NoTransfers, make_node, settle

KIB = 1024


def waiting_plan(scope: PlanScope) -> Sequence[TaskSpec]:
    async def wait() -> None:
        await asyncio.Event().wait()

    return [TaskSpec("wait", wait)]


def failing_plan(scope: PlanScope) -> Sequence[TaskSpec]:
    async def fail() -> None:
        raise DataError("corrupt")

    return [TaskSpec("scan", fail), *waiting_plan(scope)]


def summing_plan(file: Path, totals: list[int], *, rounds: int = 4) -> BuildGraph:
    """Reads a file in extents through the I/O scheduler, sums on workers, keeps some state, in three tasks."""

    def build(scope: PlanScope) -> Sequence[TaskSpec]:
        numbers: Channel[torch.Tensor] = scope.channel("numbers", producer="scan")
        sums: Channel[torch.Tensor] = scope.channel("sums", producer="sum")
        to_sum, to_total = numbers.receiver(), sums.receiver()
        length = file.stat().st_size // rounds

        async def scan() -> None:
            ctx = scope.context("scan")

            async def read(index: int) -> None:
                with await ctx.memory.reserve(length, transient=True):
                    (buffer,) = await ctx.transfers.read(str(file), [Extent(index * length, length)])
                    with buffer:
                        batch = await ctx.stream.run(lambda: torch.frombuffer(buffer.view, dtype=torch.uint8).clone())
                    await numbers.send(batch)

            async with asyncio.TaskGroup() as reads:
                for index in range(rounds):
                    reads.create_task(read(index))
            numbers.close()

        async def add() -> None:
            ctx = scope.context("sum")
            with await ctx.memory.reserve(KIB) as state:
                async for batch in to_sum:
                    await state.resize(state.nbytes + KIB)
                    await sums.send(await ctx.stream.run(torch.sum, batch))
            sums.close()

        async def total() -> None:
            totals.append(sum([int(each) async for each in to_total]))

        return [TaskSpec("scan", scan), TaskSpec("sum", add), TaskSpec("total", total)]

    return build


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "numbers"
    path.write_bytes(bytes(range(256)) * 1024)
    return path


EXPECTED = sum(range(256)) * 1024


def assert_nothing_left(node: Node) -> None:
    seen = node.statistics()
    assert (seen.leaked_bytes, seen.leaked_external, seen.plans_running) == (0, 0, 0)
    assert (seen.workers.queued, seen.workers.running) == (0, 0)
    for tier in seen.memory.values():
        assert (tier.used, tier.waiting) == (0, 0)


async def test_a_plan_runs_to_its_end(file: Path) -> None:
    totals: list[int] = []
    async with make_node(IoSchedulerService()) as node:
        handle = await node.submit(summing_plan(file, totals), plan_id="sum")
        await handle.wait()
        assert handle.done()
        assert totals == [EXPECTED]
        assert_nothing_left(node)
        operators = {each.name: each for each in handle.metrics.snapshot().operators}
        assert operators["sum"].peak_memory == 5 * KIB
        assert operators["scan"].peak_memory >= 64 * KIB


async def test_a_failing_plan_raises_its_error_to_everybody_who_waits() -> None:
    async with make_node() as node:
        handle = await node.submit(failing_plan, plan_id="p")
        for _ in range(2):
            with pytest.raises(DataError) as caught:
                await handle.wait()
            assert (caught.value.plan_id, caught.value.operator) == ("p", "scan")
        assert node.statistics().plans_failed == 1
        assert_nothing_left(node)


async def test_an_error_keeps_none_of_the_plans_buffers_alive() -> None:
    class Buffer:
        pass

    alive: list[weakref.ref[Buffer]] = []

    def build(scope: PlanScope) -> Sequence[TaskSpec]:
        ctx = scope.context("sort")

        def work(held: Buffer) -> None:
            raise KeyError(f"with {held} in its frames")

        async def run() -> None:
            buffer = Buffer()
            alive.append(weakref.ref(buffer))
            await ctx.stream.run(work, buffer)

        return [TaskSpec("sort", run)]

    async with make_node() as node:
        handle = await node.submit(build, plan_id="p")
        error = await handle.wait_ended()
        await settle()
        assert alive[0]() is None
        assert isinstance(error, InternalError)
        assert error.__cause__ is not None
        assert "in work" in error.__cause__.__notes__[0]


async def test_waiting_may_be_given_up_without_touching_the_plan() -> None:
    async with make_node() as node:
        handle = await node.submit(waiting_plan, plan_id="p")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await handle.wait()
        assert not handle.done()


async def test_cancelling_one_plan_leaves_the_other_alone(file: Path) -> None:
    totals: list[int] = []
    async with make_node(IoSchedulerService()) as node:
        kept = await node.submit(summing_plan(file, totals), plan_id="kept")
        ended = await node.submit(waiting_plan, plan_id="ended")
        ended.cancel()
        with pytest.raises(Cancelled) as caught:
            await ended.wait()
        assert caught.value.plan_id == "ended"
        await kept.wait()
        ended.cancel()
        assert totals == [EXPECTED]
        assert_nothing_left(node)


async def test_a_plan_that_is_cancelled_at_once_ends_too() -> None:
    async with make_node() as node:
        handle = await node.submit(waiting_plan, plan_id="p")
        await node.cancel("p")
        with pytest.raises(Cancelled):
            await handle.wait()


async def test_plans_are_found_by_their_id() -> None:
    async with make_node() as node:
        await node.submit(waiting_plan, plan_id="p", priority=PriorityClass.BATCH)
        with pytest.raises(InvalidRequest, match="running already"):
            await node.submit(waiting_plan, plan_id="p")
        (listed,) = node.activity().plans
        assert (listed.plan_id, listed.priority, listed.deadline) == ("p", "batch", None)
        with pytest.raises(NotFound):
            await node.cancel("q")
        with pytest.raises(NotFound):
            await node.set_priority("q", PriorityClass.BATCH)
        await node.cancel("p")


async def test_an_id_is_free_again_after_the_end() -> None:
    async with make_node() as node:
        for _ in range(2):
            handle = await node.submit(failing_plan, plan_id="p")
            assert isinstance(await handle.wait_ended(), DataError)


async def test_a_new_priority_reaches_the_transfers_and_the_listing() -> None:
    transfers = NoTransfers()
    async with make_node(transfers) as node:
        await node.submit(waiting_plan, plan_id="p", priority=PriorityClass.BATCH, label="select 1")
        assert transfers.deadlines == {"p": None}
        await node.set_priority("p", PriorityClass.INTERACTIVE, deadline=60.0)
        await settle()
        assert transfers.priorities == {"p": PriorityClass.INTERACTIVE}
        (listed,) = node.activity().plans
        assert (listed.priority, listed.label) == ("interactive", "select 1")
        assert listed.deadline is not None
        assert 50 < listed.deadline <= 60
        due = transfers.deadlines["p"]
        await node.set_priority("p", PriorityClass.NORMAL)
        await settle()
        (listed,) = node.activity().plans
        assert listed.priority == "normal"
        assert listed.deadline is not None
        assert due is not None
        assert transfers.deadlines["p"] is None, "a deadline that is not given stays"
    assert transfers.closed == ["p"]
    assert not transfers.running


async def test_a_deadline_is_a_time_of_the_clock_that_the_transfers_share() -> None:
    transfers = NoTransfers()
    async with make_node(transfers) as node:
        before = time.monotonic()
        await node.submit(waiting_plan, plan_id="p", priority=PriorityClass.INTERACTIVE, deadline=7.0)
        due = transfers.deadlines["p"]
        assert due is not None
        assert before + 7.0 <= due <= time.monotonic() + 7.0


async def test_leaving_the_node_cancels_what_runs() -> None:
    async with make_node() as node:
        handle = await node.submit(waiting_plan, plan_id="p")
    with pytest.raises(Cancelled):
        await handle.wait()


async def test_a_reservation_left_by_a_plan_that_ended_well_is_a_leak_and_is_taken_back() -> None:
    def build(scope: PlanScope) -> Sequence[TaskSpec]:
        ctx = scope.context("careless")

        async def reserve() -> None:
            await ctx.memory.reserve(1000)

        return [TaskSpec("careless", reserve)]

    async with make_node() as node:
        await (await node.submit(build, plan_id="p")).wait()
        seen = node.statistics()
        assert seen.leaked_bytes == 1000
        assert seen.memory[Tier.HOST].used == 0


async def test_an_urgent_plan_overtakes_a_batch_plan_on_the_workers() -> None:
    def burn() -> None:
        end = time.monotonic() + 0.002
        while time.monotonic() < end:
            pass

    def plan(jobs: int) -> BuildGraph:
        def build(scope: PlanScope) -> Sequence[TaskSpec]:
            ctx = scope.context("burn")

            async def run() -> None:
                await asyncio.gather(*(ctx.stream.run(burn) for _ in range(jobs)))

            return [TaskSpec("burn", run)]

        return build

    async with make_node(workers=1) as node:
        batch = await node.submit(plan(200), plan_id="batch", priority=PriorityClass.BATCH)
        await settle()
        urgent = await node.submit(plan(10), plan_id="urgent", priority=PriorityClass.INTERACTIVE)
        await urgent.wait()
        assert not batch.done()
        await batch.wait()
        assert_nothing_left(node)


async def test_plans_that_need_more_memory_than_there_is_end_with_an_answer_or_the_typed_error(file: Path) -> None:
    """Sixteen plans with 64 KiB reads and growing state on 256 KiB."""
    totals: list[int] = []
    async with make_node(IoSchedulerService(), memory=256 * KIB) as node, asyncio.timeout(30):
        handles = [
            await node.submit(summing_plan(file, totals), plan_id=f"p{index}", priority=PriorityClass(index % 3))
            for index in range(16)
        ]
        errors = [await handle.wait_ended() for handle in handles]
        assert all(error is None or isinstance(error, ResourceExhausted) for error in errors)
        assert totals == [EXPECTED] * errors.count(None)
        assert totals
        assert_nothing_left(node)


@pytest.mark.parametrize("seed", range(4))
async def test_a_hundred_plans_cancelled_at_random_points_leave_nothing_behind(file: Path, seed: int) -> None:
    random = Random(seed)
    acknowledged = []
    service = IoSchedulerService()
    async with make_node(service) as node:
        loop = asyncio.get_running_loop()
        for number in range(25):
            totals: list[int] = []
            handle = await node.submit(summing_plan(file, totals, rounds=16), plan_id=f"p{number}")
            for _ in range(random.choice((0, 1, 3, 10, 30, 100))):
                await asyncio.sleep(random.choice((0, 0.0001)))
            cancelled = loop.time()
            handle.cancel()
            error: PystachioError | None = await handle.wait_ended()
            acknowledged.append(loop.time() - cancelled)
            assert isinstance(error, Cancelled) or (error is None and totals == [EXPECTED])
        assert_nothing_left(node)
        io = service.statistics()
        assert (io.transfers, io.chunks) == (0, 0)
    assert max(acknowledged) < 0.5
