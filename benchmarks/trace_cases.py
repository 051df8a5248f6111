"""Ten plans, each bounded by one thing, on a real node with devices made for the purpose: what a verdict is judged by.

Most are SQL over real Parquet files. Rates and latencies are such that the intended bottleneck takes several times as
long as everything else; the verdict's rules know nothing of these cases.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import torch

from benchmarks import data
from pystachio.config import Settings
from pystachio.embedded import EmbeddedNode
from pystachio.io_scheduler.core.policy import POLICIES, Policy
from pystachio.io_scheduler.core.request import Direction, Extent, Link, LinkLimits, PriorityClass
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest, Device, DeviceFile
from pystachio.io_scheduler.devices.emulated import EmulatedDevice
from pystachio.io_scheduler.devices.posix import PosixDevice
from pystachio.io_scheduler.history import History
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.io_scheduler.submission import Request
from pystachio.operators.batch import Batch
from pystachio.operators.pipeline import PhysicalPlan, build_graph
from pystachio.operators.scans.scan import Scan
from pystachio.planner.catalog import Catalog
from pystachio.planner.plan import Planner
from pystachio.planner.statistics import StatisticsCache
from pystachio.running_plan import named_operators, operator_labels
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context
from pystachio.runtime.executor import BuildGraph, PlanScope, TaskSpec
from pystachio.runtime.memory import Tier
from pystachio.runtime.node import Node
from pystachio.runtime.plan import PlanHandle
from pystachio.runtime.settings import ExecutionSettings
from pystachio.trace import plan_trace
from pystachio.trace.bottleneck import Bottleneck
from pystachio.trace.plan_trace import PlanTrace

MIB = 1 << 20
WORKERS = 2
SCALE = 0.1
PIECES = 8
EVERYTHING = (
    "select max(l_orderkey), max(l_partkey), max(l_suppkey), sum(l_quantity), sum(l_extendedprice), sum(l_discount), "
    "sum(l_tax), max(l_shipdate), max(l_commitdate), max(l_receiptdate) from lineitem"
)
CALCULATION = "ln(1 + sqrt(abs(sin(l_extendedprice) * cos(l_discount + {0}) + exp(l_tax * {0}))))"


@dataclass(frozen=True, slots=True)
class Case:
    """`run` gives the trace of a plan that is bounded by `bottleneck`."""

    bottleneck: Bottleneck
    run: Callable[[], Coroutine[object, object, PlanTrace]]


Locate = Callable[[str], Link]
Consume = Callable[[Receiver[Batch]], Awaitable[None]]


class SlowFile:
    """A device that serves one file by another device than the rest: both are parts of one disk."""

    def __init__(self, usual: Device, slow: Device, is_slow: Callable[[str], bool]) -> None:
        self.limits = usual.limits
        self._usual = usual
        self._slow = slow
        self._is_slow = is_slow

    def open(self, path: str) -> DeviceFile:
        return self._for(path).open(path)

    def start(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        self._for(request.file.path).start(request, ended)

    def abandon(self, request: ChunkRequest) -> None:
        self._for(request.file.path).abandon(request)

    def close(self) -> None:
        self._usual.close()
        self._slow.close()

    def _for(self, path: str) -> Device:
        return self._slow if self._is_slow(path) else self._usual


@dataclass(slots=True)
class Machine:
    """A node with devices of the case's making."""

    node: Node
    service: IoSchedulerService
    plans: int = 0
    handles: dict[str, PlanHandle] = field(default_factory=dict)

    async def start(self, build: BuildGraph, priority: PriorityClass = PriorityClass.NORMAL) -> PlanHandle:
        self.plans += 1
        return await self.node.submit(build, plan_id=f"plan-{self.plans}", priority=priority)

    async def answer(
        self, plan: PhysicalPlan, priority: PriorityClass = PriorityClass.NORMAL, consume: Consume | None = None
    ) -> PlanTrace:
        """Run a plan of SQL to its end."""
        submitted = time.monotonic()
        results: asyncio.Future[Receiver[Batch]] = asyncio.get_running_loop().create_future()

        def build(scope: PlanScope) -> Sequence[TaskSpec]:
            graph = build_graph(plan, scope)
            results.set_result(graph.results)
            return graph.tasks

        handle = await self.start(build, priority)
        await (consume or _read)(await results)
        await handle.wait()
        scans = frozenset(name for name, each in named_operators(plan).items() if isinstance(each, Scan))
        return self.trace(handle, submitted, operator_labels(plan), scans)

    async def graph(self, build: BuildGraph, priority: PriorityClass = PriorityClass.NORMAL) -> PlanTrace:
        """Run a graph made by hand to its end."""
        submitted = time.monotonic()
        handle = await self.start(build, priority)
        await handle.wait()
        return self.trace(handle, submitted, {}, frozenset())

    def trace(
        self, handle: PlanHandle, submitted: float, labels: Mapping[str, str], decoders: frozenset[str]
    ) -> PlanTrace:
        return plan_trace.take(
            handle.plan_id,
            submitted=submitted,
            now=time.monotonic(),
            history=self.service.history,
            tracing=self.node.tracing,
            workers=WORKERS,
            labels=labels,
            decoders=decoders,
        )


async def _read(results: Receiver[Batch]) -> None:
    async for _ in results:
        pass


@asynccontextmanager
async def machine(
    open_device: Callable[[Link], Device],
    *,
    locate: Locate = lambda path: Link("disk", "259:0"),
    memory: int = 1 << 30,
    policy: Policy = POLICIES["pystachio"],
) -> AsyncIterator[Machine]:
    async def link_of(path: str) -> Link:
        return locate(path)

    service = IoSchedulerService(open_device=open_device, locate=link_of, policy=policy, history=History())
    settings = ExecutionSettings(workers=WORKERS)
    node = Node(transfers=service, settings=settings, memory={Tier.HOST: memory}, device=torch.device("cpu"))
    async with node:
        yield Machine(node, service)


def disk(rate: float, latency: float = 0.0002, limits: LinkLimits | None = None) -> Device:
    """A real file behind an emulated disk, in bytes per second and seconds."""
    inner = PosixDevice(name="emulated", direction=Direction.READ, direct=False)
    return EmulatedDevice(inner, bytes_per_second=rate, latency_seconds=latency, limits=limits)


def planned(sql: str, tables: Mapping[str, Path | Sequence[Path]]) -> PhysicalPlan:
    """The plan of a statement; planning reads footers by a node of its own."""
    node = EmbeddedNode(Settings(threads=1))
    try:
        catalog = Catalog(node.read_footers)
        for name, source in tables.items():
            catalog.register(name, source if isinstance(source, Path) else [str(path) for path in source])
        planner = Planner(StatisticsCache(node.fetch))
        return planner.plan(sql, catalog.refresh(), parameters=(), join_reordering=True)
    finally:
        node.close()


def lineitem() -> Path:
    return data.tpch(SCALE) / "lineitem.parquet"


def pieces() -> list[Path]:
    """`lineitem` in files of equal length."""
    folder = data.ROOT / f"lineitem-{SCALE:g}-in-{PIECES}"
    paths = [folder / f"part-{index}.parquet" for index in range(PIECES)]
    if not all(path.exists() for path in paths):
        folder.mkdir(parents=True, exist_ok=True)
        table = pq.read_table(lineitem())
        rows = -(-table.num_rows // PIECES)
        for index, path in enumerate(paths):
            partial = path.with_suffix(".partial")
            pq.write_table(table.slice(index * rows, rows), partial)
            partial.rename(path)
    return paths


def compressed_texts() -> Path:
    """Columns of `lineitem` that take much longer to decode than to read."""
    path = data.ROOT / f"lineitem-texts-{SCALE:g}.parquet"
    if not path.exists():
        table = pq.read_table(lineitem(), columns=["l_comment", "l_shipinstruct", "l_shipmode"])
        partial = path.with_suffix(".partial")
        pq.write_table(
            table, partial, compression="gzip", compression_level=1, use_dictionary=False, row_group_size=100_000
        )
        partial.rename(path)
    return path


async def storage() -> PlanTrace:
    plan = planned(EVERYTHING, {"lineitem": lineitem()})
    async with machine(lambda link: disk(15 * MIB)) as here:
        return await here.answer(plan)


async def network() -> PlanTrace:
    """Pieces of an exchange from two peers, folded as they come."""
    link = Link("network", "node-b")
    async with machine(lambda _: disk(1 << 30)) as here:
        here.service.register_device(link, EmulatedDevice(None, bytes_per_second=60 * MIB, latency_seconds=0.0005))

        def build(scope: PlanScope) -> list[TaskSpec]:
            ctx = scope.context("exchange")
            return [TaskSpec("exchange", lambda: _receive(here.service, scope, ctx, link))]

        return await here.graph(build)


async def _receive(service: IoSchedulerService, scope: PlanScope, ctx: Context, link: Link) -> None:
    async def piece(index: int) -> None:
        peer = f"node-{'bc'[index % 2]}"
        buffer = memoryview(bytearray(MIB))
        request = Request(Extent(index * MIB, MIB), buffer, MIB, MIB, peer=peer, rank=index % 2)
        await service.submit(scope.identity.plan_id, peer, link, [request], operator="exchange").ended
        await ctx.stream.run(time.sleep, 0.001)

    async with asyncio.TaskGroup() as group:
        for index in range(32):
            group.create_task(piece(index))


async def compute() -> PlanTrace:
    terms = " + ".join(CALCULATION.format(step) for step in range(1, 9))
    plan = planned(f"select sum({terms}) from lineitem", {"lineitem": lineitem()})
    async with machine(lambda link: disk(2 << 30)) as here:
        return await here.answer(plan)


async def decode() -> PlanTrace:
    plan = planned("select * from texts", {"texts": compressed_texts()})
    async with machine(lambda link: disk(2 << 30)) as here:
        return await here.answer(plan)


async def memory_credit() -> PlanTrace:
    """A reader on a fast disk, beside a plan that holds most of the memory while it waits for a slow one."""
    path = str(lineitem())
    slow = Link("disk", "8:0")

    def reader(held: int, source: str) -> BuildGraph:
        def build(scope: PlanScope) -> list[TaskSpec]:
            ctx = scope.context("reader")

            async def run() -> None:
                with await ctx.memory.reserve(held):
                    for index in range(4):
                        await ctx.transfers.read(source, [Extent(index * MIB, MIB)])

            return [TaskSpec("reader", run)]

        return build

    def open_device(link: Link) -> Device:
        return disk(8 * MIB if link == slow else 1 << 30)

    def locate(path: str) -> Link:
        return slow if path == other else Link("disk", "259:0")

    other = str(data.tpch(SCALE) / "orders.parquet")
    async with machine(open_device, locate=locate, memory=8 * MIB) as here:
        holder = await here.start(reader(6 * MIB, other))
        trace = await here.graph(reader(4 * MIB, path))
        await holder.wait()
        return trace


async def priority() -> PlanTrace:
    """A batch scan beside an interactive plan that wants all that the disk gives."""
    plan, path = planned("select sum(l_quantity) from lineitem", {"lineitem": lineitem()}), str(lineitem())
    async with machine(lambda link: disk(40 * MIB)) as here:

        def build(scope: PlanScope) -> list[TaskSpec]:
            ctx = scope.context("point lookups")

            async def reads(start: int) -> None:
                for index in range(64):
                    await ctx.transfers.read(path, [Extent((start + 4 * index) % 72 * MIB // 4, MIB)])

            return [TaskSpec("point lookups", partial(reads, start)) for start in range(16)]

        urgent = await here.start(build, PriorityClass.INTERACTIVE)
        trace = await here.answer(plan, PriorityClass.BATCH)
        urgent.cancel()
        await urgent.wait_ended()
        return trace


async def slow_device() -> PlanTrace:
    files = pieces()[:4]
    names = {str(path): f"259:{index}" for index, path in enumerate(files)}
    plan = planned(EVERYTHING, {"lineitem": files})

    def open_device(link: Link) -> Device:
        return disk(4 * MIB if link.name == "259:2" else 40 * MIB)

    async with machine(open_device, locate=lambda path: Link("disk", names[path])) as here:
        return await here.answer(plan)


async def straggler() -> PlanTrace:
    files = pieces()
    plan = planned(EVERYTHING, {"lineitem": files})

    def open_device(link: Link) -> Device:
        slow = disk(4 * MIB, 0.002)
        return SlowFile(disk(200 * MIB), slow, lambda path: path == str(files[5]))

    async with machine(open_device) as here:
        return await here.answer(plan)


async def window() -> PlanTrace:
    """A device that would serve many requests at once and is given few."""
    plan = planned(EVERYTHING, {"lineitem": lineitem()})
    limits = LinkLimits(chunk_bytes=MIB // 4, window_bytes=MIB // 2)
    policy = replace(POLICIES["pystachio"], name="a small window", window_bytes=limits.window_bytes)
    async with machine(lambda link: disk(1 << 30, 0.02, limits), policy=policy) as here:
        return await here.answer(plan)


async def client() -> PlanTrace:
    plan = planned("select l_orderkey, l_partkey, l_extendedprice from lineitem", {"lineitem": lineitem()})

    async def consume(results: Receiver[Batch]) -> None:
        async for _ in results:
            await asyncio.sleep(0.1)

    async with machine(lambda link: disk(1 << 30)) as here:
        return await here.answer(plan, consume=consume)


CASES: tuple[Case, ...] = (
    Case(Bottleneck.STORAGE, storage),
    Case(Bottleneck.NETWORK, network),
    Case(Bottleneck.COMPUTE, compute),
    Case(Bottleneck.MEMORY, memory_credit),
    Case(Bottleneck.PRIORITY, priority),
    Case(Bottleneck.SLOW_DEVICE, slow_device),
    Case(Bottleneck.STRAGGLER, straggler),
    Case(Bottleneck.WINDOW, window),
    Case(Bottleneck.DECODE, decode),
    Case(Bottleneck.CLIENT, client),
)
