"""Overlap on the real runtime: disks, bus, processor and network work at the same time.

A plan of four operators on a real node moves blocks from files on several emulated SSDs over an emulated bus into
another memory, computes on them with torch on worker threads, and sends them over an emulated network link. The
efficiency is the time that the busiest resource was busy, over the time that passed; 1 is perfect. In the same rounds
the same work is done in turn: read everything, then move everything over the bus, compute, send. A link is busy for its
bytes over its rate, the processor for the seconds of its jobs over its threads.

Last come the queries of `overlap_query`.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from benchmarks import data, overlap_query
from benchmarks.figures import Figure
from pystachio.io_scheduler.client import HostBuffer
from pystachio.io_scheduler.core.request import Direction, Extent, Link
from pystachio.io_scheduler.devices import choose
from pystachio.io_scheduler.devices.emulated import EmulatedDevice
from pystachio.io_scheduler.devices.memory import MemoryDevice
from pystachio.io_scheduler.emulation import Emulation, emulating
from pystachio.io_scheduler.links import locate_disk
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.io_scheduler.submission import Request
from pystachio.machine import usable_cores
from pystachio.runtime.channels import Channel
from pystachio.runtime.context import Context
from pystachio.runtime.executor import PlanScope, TaskSpec
from pystachio.runtime.host import NodeHost
from pystachio.runtime.memory import Tier
from pystachio.runtime.node import Node
from pystachio.runtime.settings import ExecutionSettings

DISKS = 4
BLOCK_BYTES = 2 << 20
BLOCKS = {False: 200, True: 140}
ROUNDS = {False: 3, True: 1}
READS_PER_DISK = 2
DEVICE_BLOCKS = 12
LATENCY = 80e-6
BUS = Link("pcie", "emulated", Direction.WRITE)
NETWORK = Link("network", "emulated", Direction.WRITE)
OPERATORS = ("read", "upload", "compute", "send")


@dataclass(frozen=True)
class Case:
    """Milliseconds that one block keeps each resource busy; those of the disks all together."""

    name: str
    storage: float
    bus: float
    compute: float
    network: float


CASES = (
    Case("storage-bound", 6.0, 3.0, 3.0, 3.0),
    Case("bus-bound", 3.0, 6.0, 3.0, 3.0),
    Case("compute-bound", 3.0, 3.0, 6.0, 3.0),
    Case("network-bound", 3.0, 3.0, 3.0, 6.0),
    Case("balanced", 5.0, 5.0, 5.0, 5.0),
)


@dataclass(frozen=True)
class Outcome:
    """`busy` seconds of each resource, and those that passed."""

    seconds: float
    busy: dict[str, float]

    @property
    def efficiency(self) -> float:
        return max(self.busy.values()) / self.seconds


def run(*, scale: float, quick: bool) -> list[Figure]:
    folder = _files(BLOCKS[quick])
    figures: list[Figure] = []
    for case in CASES:
        together: list[Outcome] = []
        in_turn: list[Outcome] = []
        bench = Bench(folder, case, BLOCKS[quick])
        for _ in range(ROUNDS[quick]):
            together.append(bench.measure(in_turn=False))
            in_turn.append(bench.measure(in_turn=True))
        figures += _figures(case, together, in_turn)
        sys.stdout.write(f"{case.name}: {_line(together[-1])} | in turn {_line(in_turn[-1])}\n")
        sys.stdout.flush()
    return [*figures, *overlap_query.run(scale=scale, quick=quick)]


def _figures(case: Case, together: Sequence[Outcome], in_turn: Sequence[Outcome]) -> list[Figure]:
    ratios = [theirs.seconds / ours.seconds for ours, theirs in zip(together, in_turn, strict=True)]
    busiest = max(together[0].busy, key=lambda name: together[0].busy[name])
    return [
        Figure(
            f"overlap efficiency, {case.name}",
            statistics.median(outcome.efficiency for outcome in together),
            "of 1",
            goal=0.9,
            direction="at least",
            peers={
                f"busy {busiest}": statistics.median(outcome.busy[busiest] for outcome in together),
                "in turn": statistics.median(outcome.efficiency for outcome in in_turn),
            },
            samples=len(together),
        ),
        Figure(
            f"time in turn over time together, {case.name}",
            statistics.median(ratios),
            "times",
            goal=2.0 if case.name == "balanced" else None,
            direction="at least",
            samples=len(ratios),
        ),
    ]


def _line(outcome: Outcome) -> str:
    busy = ", ".join(f"{name} {seconds:.2f}" for name, seconds in outcome.busy.items())
    return f"{outcome.seconds:.2f} s ({busy})"


@dataclass(slots=True, eq=False)
class Block:
    """`buffer` holds it on the host, the `slot` on the device."""

    number: int
    buffer: HostBuffer | None = None
    slot: int | None = None

    @property
    def nbytes(self) -> int:
        return BLOCK_BYTES


Work = Callable[[Block], Awaitable[Block]]


class Bench:
    """Runs the plan of one case again and again, on a node of its own each time."""

    def __init__(self, folder: Path, case: Case, blocks: int) -> None:
        self._folder = folder
        self._blocks = blocks
        self._rates = {
            "storage": BLOCK_BYTES / DISKS / case.storage * 1e3,
            "bus": BLOCK_BYTES / case.bus * 1e3,
            "network": BLOCK_BYTES / case.network * 1e3,
        }
        self._workers = max(1, usable_cores() - 1)
        # The other memory, touched already; in turn, all blocks lie there at once.
        self._device = np.ones(blocks * BLOCK_BYTES, np.uint8)
        self._peer = np.ones(BLOCK_BYTES, np.uint8)
        self._compute_seconds = case.compute / 1e3 * self._workers

    def measure(self, *, in_turn: bool) -> Outcome:
        self._service = self._open_service()
        host = NodeHost(self._node)
        host.start()
        try:
            return host.call(self._run(host, in_turn)).result()
        finally:
            host.stop()

    def _open_service(self) -> IoSchedulerService:
        disks = [
            Emulation(str(self._folder / f"disk{number}"), self._rates["storage"], LATENCY) for number in range(DISKS)
        ]
        locate, open_device = emulating(disks, locate_disk, choose("posix"))
        return IoSchedulerService(locate=locate, open_device=open_device)

    @asynccontextmanager
    async def _node(self) -> AsyncIterator[Node]:
        settings = ExecutionSettings(workers=self._workers)
        node = Node(transfers=self._service, settings=settings, memory={Tier.HOST: 4 << 30}, device=torch.device("cpu"))
        async with node:
            for link, memory, rate in ((BUS, self._device, "bus"), (NETWORK, self._peer, "network")):
                inner = MemoryDevice({"memory": memory.data}, direction=Direction.WRITE, name=link.medium)
                device = EmulatedDevice(inner, bytes_per_second=self._rates[rate], latency_seconds=LATENCY)
                self._service.register_device(link, device)
            yield node

    async def _run(self, host: NodeHost, in_turn: bool) -> Outcome:
        run = PipelineRun(self._service, self._folder, self._device, self._blocks, self._compute_seconds)
        started = time.perf_counter()
        handle = await host.node.submit(run.build_in_turn if in_turn else run.build, plan_id="overlap")
        error = await handle.wait_ended()
        seconds = time.perf_counter() - started
        if error is not None:
            raise error
        run.verify()
        moved = self._blocks * BLOCK_BYTES
        busy = {name: moved / rate / (DISKS if name == "storage" else 1) for name, rate in self._rates.items()}
        busy["compute"] = handle.metrics.snapshot().busy_seconds / self._workers
        return Outcome(seconds, busy)


class PipelineRun:
    """The four operators over all blocks, once."""

    def __init__(
        self,
        service: IoSchedulerService,
        folder: Path,
        device: np.ndarray[tuple[int], np.dtype[np.uint8]],
        blocks: int,
        compute_seconds: float,
    ) -> None:
        self._service = service
        self._folder = folder
        self._memory = torch.from_numpy(device).view(blocks, BLOCK_BYTES)
        self._blocks = blocks
        self._compute_seconds = compute_seconds
        self._slots: asyncio.Queue[int] = asyncio.Queue()
        self._sums: dict[int, int] = {}
        self._sent = 0

    def build(self, scope: PlanScope) -> list[TaskSpec]:
        """A channel between each two operators; blocks are sent on as soon as they are there."""
        contexts = {name: scope.context(name) for name in OPERATORS}
        read, uploaded, computed = (scope.channel(name, producer=name) for name in OPERATORS[:3])  # type: Channel[Block], Channel[Block], Channel[Block]
        for slot in range(min(DEVICE_BLOCKS, self._blocks)):
            self._slots.put_nowait(slot)
        workers = scope.settings.workers
        return [
            TaskSpec("read", lambda: self._read_all(contexts["read"], read)),
            TaskSpec("upload", lambda: _stage(read, uploaded, self._upload, 2)),
            TaskSpec("compute", lambda: _stage(uploaded, computed, self._compute(contexts["compute"]), workers + 1)),
            TaskSpec("send", lambda: _stage(computed, None, self._send, 2)),
        ]

    def build_in_turn(self, scope: PlanScope) -> list[TaskSpec]:
        """Each operator begins when the one before it has ended."""
        contexts = {name: scope.context(name) for name in OPERATORS}
        for slot in range(self._blocks):
            self._slots.put_nowait(slot)

        async def run() -> None:
            blocks: list[Block] = []
            async with asyncio.TaskGroup() as group:
                for disk in range(DISKS):
                    mine = self._blocks_of(disk)
                    for _ in range(READS_PER_DISK):
                        group.create_task(_take(mine, self._read(contexts["read"]), blocks.append))
            workers = scope.settings.workers
            for work, takers in (
                (self._upload, 2),
                (self._compute(contexts["compute"]), workers + 1),
                (self._send, 2),
            ):
                waiting, blocks = iter(blocks), []
                async with asyncio.TaskGroup() as group:
                    for _ in range(takers):
                        group.create_task(_take(waiting, work, blocks.append))

        return [TaskSpec("in turn", run)]

    def verify(self) -> None:
        """Every block was computed once, from the bytes of its file, and sent."""
        assert self._sent == self._blocks
        assert self._sums == {number: _sum_of(number) for number in range(self._blocks)}

    async def _read_all(self, ctx: Context, out: Channel[Block]) -> None:
        async def read(mine: Iterable[Block]) -> None:
            for block in mine:
                await out.send(await self._read(ctx)(block))

        async with asyncio.TaskGroup() as group:
            for disk in range(DISKS):
                mine = self._blocks_of(disk)
                for _ in range(READS_PER_DISK):
                    group.create_task(read(mine))
        out.close()

    def _blocks_of(self, disk: int) -> Iterable[Block]:
        """One iterator for all readers of the disk."""
        return iter([Block(number) for number in range(disk, self._blocks, DISKS)])

    def _read(self, ctx: Context) -> Work:
        async def read(block: Block) -> Block:
            path = self._folder / f"disk{block.number % DISKS}" / "blocks"
            extent = Extent(block.number // DISKS * BLOCK_BYTES, BLOCK_BYTES)
            (block.buffer,) = await ctx.transfers.read(str(path), [extent])
            return block

        return read

    async def _upload(self, block: Block) -> Block:
        assert block.buffer is not None
        block.slot = await self._slots.get()
        await self._move(BUS, block.slot * BLOCK_BYTES, block.buffer.view)
        block.buffer.release()
        return block

    def _compute(self, ctx: Context) -> Work:
        async def compute(block: Block) -> Block:
            assert block.slot is not None
            memory = self._memory[block.slot]
            self._sums[block.number] = await ctx.stream.run(_kernel, memory, self._compute_seconds)
            return block

        return compute

    async def _send(self, block: Block) -> Block:
        assert block.slot is not None
        await self._move(NETWORK, 0, self._memory[block.slot].numpy().data)
        self._slots.put_nowait(block.slot)
        self._sent += 1
        return block

    async def _move(self, link: Link, offset: int, source: memoryview) -> None:
        request = Request(Extent(offset, len(source)), source, len(source), len(source))
        await self._service.submit("overlap", "memory", link, [request]).ended


async def _stage(inputs: Channel[Block], out: Channel[Block] | None, work: Work, takers: int) -> None:
    async def take() -> None:
        async for block in inputs.receiver():
            done = await work(block)
            if out is not None:
                await out.send(done)

    async with asyncio.TaskGroup() as group:
        for _ in range(takers):
            group.create_task(take())
    if out is not None:
        out.close()


async def _take(blocks: Iterable[Block], work: Work, done: Callable[[Block], None]) -> None:
    for block in blocks:
        done(await work(block))


def _kernel(block: torch.Tensor, seconds: float) -> int:
    """The sum of the bytes by way of their histogram, which is made again until so much processor time is spent."""
    until = time.thread_time() + seconds
    histogram = torch.bincount(block, minlength=256)
    while time.thread_time() < until:
        histogram = torch.bincount(block, minlength=256)
    return int(histogram @ torch.arange(256))


def _content(number: int) -> bytes:
    return np.random.default_rng(number).bytes(BLOCK_BYTES)


@cache
def _sum_of(number: int) -> int:
    return int(np.frombuffer(_content(number), np.uint8).sum(dtype=np.int64))


def _files(blocks: int) -> Path:
    """A file for each disk, with every DISKSth block, in the page cache."""
    folder = data.ROOT / f"overlap-{blocks}"
    for disk in range(DISKS):
        path = folder / f"disk{disk}" / "blocks"
        numbers = range(disk, blocks, DISKS)
        if not path.exists() or path.stat().st_size != len(numbers) * BLOCK_BYTES:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(map(_content, numbers)))
        path.read_bytes()
    return folder
