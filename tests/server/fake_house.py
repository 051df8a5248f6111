"""A node and its door, faked: what a guest meets there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pyarrow as pa

from pystachio.data_folder import tables_of_folder
from pystachio.embedded import SessionStatistics
from pystachio.errors import (
    Cancelled,
    NodeLost,
    NotFound,
    PystachioError,
    ResourceExhausted,
)
from pystachio.io_scheduler.ledger import Totals
from pystachio.io_scheduler.network.tokens import Credential, TokenRole
from pystachio.remote.description import NodeDescription
from pystachio.remote.messages import Answer, decode_answer
from pystachio.runtime.activity import NodeActivity
from pystachio.runtime.urgency import Urgency
from pystachio.server.guest_plan import GuestPlan

R = TypeVar("R")
SCHEMA = pa.schema([pa.field("n", pa.int64())])
DESCRIPTION = NodeDescription(
    name="n0",
    address="h:1",
    epoch=1,
    leader="n0",
    members=(),
    plans=0,
    fragments=0,
    memory_used=0,
    memory_budget=1,
    transports=("tcp",),
    draining=False,
)
ACTIVITY = NodeActivity(
    at=1.0, workers=1, busy_workers=0, jobs_waiting=0, memory_used=0, memory_budget=1, plans=(), links=()
)


class FakePlan:
    def __init__(self, plan_id: str, batches: int = 3, error: PystachioError | None = None) -> None:
        self.plan_id = plan_id
        self.schema = SCHEMA
        self.rows = 0
        self.seconds = 0.5
        self.taken = 0
        self.batches = batches
        self.error = error
        self.cancelled = asyncio.Event()

    async def take(self) -> pa.RecordBatch | None:
        if self.cancelled.is_set():
            raise Cancelled("the plan was cancelled")
        if self.taken == self.batches:
            if self.error is not None:
                raise self.error
            return None
        self.taken += 1
        self.rows += 1
        return pa.record_batch([pa.array([self.taken])], schema=SCHEMA)

    def cancel(self) -> None:
        self.cancelled.set()

    def transferred(self) -> Totals:
        return Totals(transferred_bytes=77)

    def progress(self) -> float | None:
        return 0.25

    def operators(self) -> tuple[()]:
        return ()

    def explain(self, analyze: bool) -> str:
        return f"a tree, analyze {analyze}"


class FakeSession:
    def __init__(self, house: FakeHouse) -> None:
        self.house = house
        self.registered: dict[str, list[str]] = {}

    def register(self, name: str, source: list[str]) -> None:
        if "missing" in name:
            raise NotFound(f"no such file: {name}")
        self.registered[name] = source

    def tables(self) -> dict[str, pa.Schema]:
        return dict.fromkeys(self.registered, SCHEMA)

    def explain(self, sql: str, *, parameters: tuple[Any, ...]) -> str:
        return f"{sql} with {parameters}"

    def start(self, statement: str | bytes, wanted: Urgency, parameters: tuple[Any, ...]) -> FakePlan:
        if statement == "defect":
            raise ZeroDivisionError("a defect")
        self.house.started.append((statement, wanted, parameters))
        return self.house.next_plan or FakePlan(f"plan{len(self.house.started)}")


class FakeSteering:
    def __init__(self) -> None:
        self.orders: list[tuple[Any, ...]] = []

    async def find(self, beginning: str) -> tuple[str, ...]:
        return (f"{beginning}def",)

    async def cancel(self, plan_id: str) -> None:
        self.orders.append((plan_id,))

    async def set_urgency(self, plan_id: str, urgency: Urgency) -> None:
        self.orders.append((plan_id, urgency))


class FakeHouse:
    def __init__(self) -> None:
        self.node = SimpleNamespace(
            name="n0",
            describe=lambda: DESCRIPTION,
            statistics=lambda: SessionStatistics(1, 2, 3),
        )
        self.steering = FakeSteering()
        self.session = FakeSession(self)
        self.started: list[Any] = []
        self.plans: set[str] = set()
        self.next_plan: FakePlan | None = None
        self.malformed = 0
        self.draining = False
        self.most_plans = 64
        self.shown = 0

    async def tables_of(self, folder: str) -> dict[str, Path]:
        return await asyncio.to_thread(tables_of_folder, Path(folder))

    async def show(self, work: Callable[[], R]) -> R:
        self.shown += 1
        return work()

    def own_session(self) -> FakeSession:
        return FakeSession(self)

    def activity(self) -> NodeActivity:
        return ACTIVITY

    def check_open(self) -> None:
        if self.draining:
            raise ResourceExhausted("the node takes no more plans", setting="draining")

    def drain(self, draining: bool) -> None:
        self.draining = draining

    def add_plan(self, guest_plan: GuestPlan) -> None:
        self.plans.add(guest_plan.plan.plan_id)

    def remove_plan(self, guest_plan: GuestPlan) -> None:
        self.plans.discard(guest_plan.plan.plan_id)

    def count_malformed(self) -> None:
        self.malformed += 1

    async def plan(self, work: Callable[[], R]) -> R:
        return await asyncio.to_thread(work)

    async def ask(self, work: Callable[[], R]) -> R:
        return work()


class FakeVisit:
    def __init__(self, role: TokenRole) -> None:
        self.credential = Credential(role, None, "test")
        self.answers: asyncio.Queue[Answer] = asyncio.Queue()
        self.reads = asyncio.Event()
        self.reads.set()
        self.is_gone = False

    def tell(self, body: bytes) -> None:
        if self.is_gone:
            raise NodeLost("the client is gone")
        self.answers.put_nowait(decode_answer(body))

    async def drained(self) -> None:
        await self.reads.wait()
        if self.is_gone:
            raise NodeLost("the client is gone")

    def close(self, reason: str) -> None:
        self.is_gone = True
