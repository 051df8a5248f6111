"""Random work on disks with random faults: every byte arrives once, or its plan hears a typed error in bounded time."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pystachio.errors import Cancelled, DataError, PystachioError, ResourceExhausted, Unauthorized
from pystachio.io_scheduler.core.request import CreditPool, Extent, LinkLimits, PriorityClass
from pystachio.io_scheduler.devices.faulty import Fail, Fault, Short, Slow, Stall, Vanish, by_chance
from pystachio.io_scheduler.submission import Request
from tests import virtual_time
from tests.io_scheduler.memory_disk import Disks, content, disks

SIZE = 30_000
FILES = {f"/{disk}/{name}": content(disk + name, SIZE) for disk in "ab" for name in "fg"}
PLANS = ("p", "q", "r")
POOL = CreditPool("host", 1)
POOL_BYTES = 12_000
TIMEOUT_SECONDS = 2.0

FAULTS: tuple[Fault, ...] = (
    Stall(0.5),
    Stall(7.0),
    Stall(None),
    Slow(4.0),
    Fail(errno.EIO),
    Fail(errno.EIO, after_bytes=300),
    Fail(errno.EAGAIN),
    Fail(errno.EACCES),
    Short(100),
    Vanish(errno.EIO),
)


@dataclass(frozen=True)
class Read:
    plan: str
    path: str
    extents: tuple[Extent, ...]
    criticality: int


@dataclass(frozen=True)
class ReadWithCredit:
    """Delivered by chunk to a consumer that passes each on after a while."""

    plan: str
    path: str
    extent: Extent
    seconds: float


@dataclass(frozen=True)
class Write:
    plan: str
    number: int
    offset: int
    length: int


@dataclass(frozen=True)
class Wait:
    seconds: float


@dataclass(frozen=True)
class CancelPlan:
    plan: str


@dataclass(frozen=True)
class CancelTask:
    number: int


@dataclass(frozen=True)
class SetPriority:
    plan: str
    priority: PriorityClass


Step = Read | ReadWithCredit | Write | Wait | CancelPlan | CancelTask | SetPriority

plans = st.sampled_from(PLANS)
paths = st.sampled_from(sorted(FILES))
extents = st.tuples(st.integers(0, SIZE - 1), st.integers(0, 8000)).map(
    lambda pair: Extent(pair[0], min(pair[1], SIZE - pair[0]))
)
steps = st.one_of(
    st.builds(Read, plans, paths, st.lists(extents, min_size=1, max_size=4).map(tuple), st.integers(-1, 2)),
    st.builds(ReadWithCredit, plans, paths, extents, st.floats(0.0, 0.5)),
    st.builds(Write, plans, st.integers(0, 3), st.integers(0, 5000), st.integers(0, 8000)),
    st.builds(Wait, st.floats(0.0, 1.0)),
    st.builds(CancelPlan, plans),
    st.builds(CancelTask, st.integers(0, 20)),
    st.builds(SetPriority, plans, st.sampled_from(PriorityClass)),
)
chances = st.dictionaries(st.sampled_from(FAULTS), st.floats(0.0, 0.1), max_size=4)


class Run:
    """Carries the steps out, and remembers who was cancelled."""

    def __init__(self, node: Disks) -> None:
        self.node = node
        self.cancelled: set[str] = set()
        self.written = 0
        self.tasks: list[asyncio.Task[None]] = []
        for number, plan in enumerate(PLANS):
            node.service.client(plan, PriorityClass(number))
        node.service.open_pool(POOL, POOL_BYTES)

    async def do(self, step: Step) -> None:
        match step:
            case Read():
                self.tasks.append(asyncio.create_task(self._read(step)))
            case ReadWithCredit():
                self.tasks.append(asyncio.create_task(self._read_with_credit(step)))
            case Write():
                self.written += 1
                self.tasks.append(asyncio.create_task(self._write(step, f"/a/w{step.number}.{self.written}")))
            case Wait(seconds):
                await asyncio.sleep(seconds)
            case CancelPlan(plan):
                self.cancelled.add(plan)
                self.node.service.cancel_plan(plan)
            case CancelTask(number):
                if self.tasks:
                    self.tasks[number % len(self.tasks)].cancel()
            case SetPriority(plan, priority):
                self.node.service.set_priority(plan, priority)

    async def _read(self, step: Read) -> None:
        try:
            found = await self.node.read(step.plan, step.path, *step.extents, criticality=step.criticality)
        except PystachioError as error:
            self._check(error, step.plan)
        else:
            assert found == [FILES[step.path][extent.offset : extent.end] for extent in step.extents]

    async def _read_with_credit(self, step: ReadWithCredit) -> None:
        service, extent = self.node.service, step.extent
        destination = bytearray(extent.length)
        delivered: list[Extent] = []

        def take(chunk: Extent) -> None:
            delivered.append(chunk)
            asyncio.get_running_loop().call_later(step.seconds, service.release_credit, POOL, chunk.length)

        link = await service.locate(step.path)
        request = Request(extent, memoryview(destination), extent.length, extent.length, POOL, True, take)
        submission = service.submit(step.plan, step.path, link, [request])
        try:
            await asyncio.shield(submission.ended)
        except asyncio.CancelledError:
            service.abandon(submission)
            await asyncio.wait([submission.ended])
            submission.ended.exception()
        except PystachioError as error:
            self._check(error, step.plan)
        else:
            assert destination == FILES[step.path][extent.offset : extent.end]
            assert sum(chunk.length for chunk in delivered) == extent.length
        assert len(set(delivered)) == len(delivered), "a chunk was delivered twice"

    async def _write(self, step: Write, path: str) -> None:
        data = content(path, step.length)
        try:
            await self.node.write(step.plan, path, step.offset, data)
        except PystachioError as error:
            self._check(error, step.plan)
        else:
            assert self.node.files.get(path, b"")[step.offset : step.offset + step.length] == data

    def _check(self, error: PystachioError, plan: str) -> None:
        assert error.plan_id == plan
        if isinstance(error, Cancelled):
            assert plan in self.cancelled, error
        else:
            assert isinstance(error, DataError | Unauthorized | ResourceExhausted), error


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(steps, min_size=1, max_size=30),
    st.fixed_dictionaries({"a": chances, "b": chances, "a write": chances}),
    st.integers(0, 1 << 30),
    st.booleans(),
)
def test_every_byte_arrives_once_or_its_plan_hears_why(
    work: list[Step], faults: Mapping[str, Mapping[Fault, float]], seed: int, calibrated: bool
) -> None:
    async def main() -> None:
        choose = {name: by_chance(seed + number, chance) for number, (name, chance) in enumerate(faults.items())}
        limits = LinkLimits(
            chunk_bytes=1000,
            window_bytes=4000,
            smallest_chunk_bytes=100,
            calibrated=calibrated,
            timeout_seconds=TIMEOUT_SECONDS,
        )
        async with disks(FILES, choose, limits=limits, latency_seconds=0.002) as node:
            run = Run(node)
            for step in work:
                await run.do(step)
            if run.tasks:
                # Every chunk is tried three times at most, and each attempt lasts two time-outs at most. Slow disks
                # need four times the 2.4 seconds of 30 reads of 8,000 bytes.
                bound = 30 * 6 * TIMEOUT_SECONDS
                done, waiting = await asyncio.wait(run.tasks, timeout=bound)
                assert not waiting, f"hung: {waiting}"
                for task in done:
                    if not task.cancelled():
                        task.result()
            await asyncio.sleep(1.0)
            core = node.service.statistics().core
            assert core.transfers == 0
            # What was written off keeps its credit until its device lets go.
            lost = sum(link.written_off_bytes for link in core.links)
            assert sum(pool.used_bytes for pool in core.pools) <= lost
            assert all(pool.used_bytes <= POOL_BYTES for pool in core.pools)
        assert all(pool.used_bytes == 0 for pool in core.pools) or lost

    virtual_time.run(main())
