"""What `ps` and `top` show: from what plans have, what they wait for, and behind whom."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from pystachio.io_scheduler.activity import IoActivity, LinkUse
from pystachio.io_scheduler.core.events import LinkStatistics
from pystachio.io_scheduler.core.request import Link, PriorityClass
from pystachio.runtime.activity import PlanActivity, Reason, State, Wait
from pystachio.runtime.clock import SystemClock
from pystachio.runtime.memory import Memory, Tier
from pystachio.runtime.metrics import OperatorMetrics
from pystachio.runtime.observation import ObservedPlan, observe
from pystachio.runtime.plan_entry import PlanEntry
from pystachio.runtime.streams import CpuStream
from pystachio.runtime.worker_pool import WorkerPool
from tests.runtime.nodes import settle

DISK, SLOW = Link("disk", "259:0"), Link("disk", "8:16")
URGENT = PlanEntry("urgent", PriorityClass.INTERACTIVE, 2, opened_at=9.0, deadline=12.5)
BATCH = PlanEntry("batch", PriorityClass.BATCH, 1, opened_at=1.0)


@pytest.fixture
async def pool() -> AsyncIterator[WorkerPool]:
    pool = WorkerPool(2)
    yield pool
    await pool.close()


@pytest.fixture
async def memory() -> Memory:
    return Memory({Tier.HOST: 800}, SystemClock())


def seen(pool: WorkerPool, memory: Memory, *uses: LinkUse) -> dict[str, PlanActivity]:
    links = tuple(
        LinkStatistics(
            link=link,
            waiting_transfers=1,
            waiting_bytes=50,
            parked_transfers=0,
            outstanding_bytes=20,
            window_bytes=40,
            chunk_bytes=20,
            bytes_per_second=1e9,
            latency_seconds=None,
            written_off_bytes=0,
        )
        for link in (DISK, SLOW)
    )
    io = IoActivity(uses, links, {DISK: 700}, {"urgent": {DISK: 300}})
    plans = [ObservedPlan(URGENT, "select 1", 5), ObservedPlan(BATCH, "", 0)]
    activity = observe(10.0, plans, pool, memory, io)
    assert [(link.link, link.nbytes) for link in activity.links] == [("disk 259:0 read", 700), ("disk 8:16 read", 0)]
    return {plan.plan_id: plan for plan in activity.plans}


async def test_what_is_known_of_a_plan(pool: WorkerPool, memory: Memory) -> None:
    urgent = seen(pool, memory)["urgent"]
    assert (urgent.label, urgent.priority, urgent.rows) == ("select 1", "interactive", 5)
    assert (urgent.deadline, urgent.seconds) == (2.5, 1.0)
    assert urgent.links == {"disk 259:0 read": 300}
    assert urgent.state is State.WAITING
    assert urgent.waits == ()


async def test_a_transfer_waits_behind_those_inside_the_device(pool: WorkerPool, memory: Memory) -> None:
    plans = seen(
        pool,
        memory,
        LinkUse("urgent", DISK, 30, 0),
        LinkUse("batch", DISK, 90, 20),
        LinkUse("other", DISK, 0, 25),
        LinkUse("other", SLOW, 0, 99),
    )
    assert plans["urgent"].waits == (Wait(Reason.TRANSFER, "disk 259:0 read", 30, ("other", "batch")),)
    assert plans["batch"].waits == (), "it is served"
    assert plans["batch"].state is State.MOVING


async def test_memory_is_waited_for_behind_its_holders(pool: WorkerPool, memory: Memory) -> None:
    clock = SystemClock()
    held = await memory.operator(BATCH, "build", OperatorMetrics("build", clock)).reserve(600)
    assert seen(pool, memory)["batch"].memory_bytes == 600
    waiting = asyncio.create_task(memory.operator(URGENT, "build", OperatorMetrics("build", clock)).reserve(500))
    await settle()
    assert seen(pool, memory)["urgent"].waits == (Wait(Reason.MEMORY, "host", 500, ("batch",)),)
    held.release()
    (await waiting).release()


async def test_a_job_waits_behind_the_plans_on_the_workers(pool: WorkerPool, memory: Memory) -> None:
    gate = threading.Event()
    metrics = OperatorMetrics("scan", SystemClock())
    other = PlanEntry("other", PriorityClass.BATCH, 3)
    jobs = [asyncio.create_task(CpuStream(pool, plan, metrics).run(gate.wait, 10)) for plan in (other, other, BATCH)]
    await settle()
    plans = seen(pool, memory)
    assert plans["batch"].waits == (Wait(Reason.WORKER, "worker", 0, ()),), "only plans that are listed are named"
    assert (plans["batch"].jobs_waiting, plans["batch"].jobs_running) == (1, 0)
    gate.set()
    await asyncio.gather(*jobs)


async def test_another_node_that_is_awaited_is_no_client(pool: WorkerPool, memory: Memory) -> None:
    BATCH.begin_remote()
    assert seen(pool, memory)["batch"].waits == (Wait(Reason.NODE, "node"),)
    BATCH.end_remote()
    assert seen(pool, memory)["batch"].waits == ()


async def test_a_client_that_has_yet_to_read(pool: WorkerPool, memory: Memory) -> None:
    BATCH.begin_unread()
    assert seen(pool, memory)["batch"].waits == (Wait(Reason.CLIENT, "client"),)
    BATCH.end_unread()
