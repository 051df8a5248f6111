"""The asyncio service: chunks per second on one core, and whether the simulator says what it does."""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.figures import Figure
from pystachio.errors import PystachioError
from pystachio.io_scheduler import devices
from pystachio.io_scheduler.client import TransferClient
from pystachio.io_scheduler.core.events import PlanOpened
from pystachio.io_scheduler.core.policy import POLICIES
from pystachio.io_scheduler.core.request import Extent, Link, LinkLimits, PathTaken, PriorityClass, Transfer
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest, native
from pystachio.io_scheduler.devices.compiled import CompiledDevice
from pystachio.io_scheduler.devices.emulated import EmulatedDevice, NamedFile
from pystachio.io_scheduler.devices.posix import PosixDevice
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.io_scheduler.simulation.devices import SimulatedDevice
from pystachio.io_scheduler.simulation.hardware import Device
from pystachio.io_scheduler.simulation.meter import LinkMeter
from pystachio.io_scheduler.simulation.node import SimulatedNode
from pystachio.io_scheduler.simulation.transfer import SimulatedTransfer
from pystachio.io_scheduler.simulation.virtual_time import Kind, VirtualTime
from pystachio.runtime.event_loop import loop_factory

LINK = Link("disk", "emulated")
CHUNKS_PER_AWAIT = (4, 16)
CHUNK_BYTES = 4096
CLIENTS = 16

DISK = Device(bytes_per_second=200e6, latency_seconds=0.001, depth=32)
URGENT_BYTES = 1 << 20
URGENT_SECONDS = 0.025
"""The mean time between two urgent transfers."""
BATCH_BYTES = 4 << 20
BATCH_TRANSFERS = 4


class InstantDevice:
    """Ends each chunk when it is started: what remains is the service."""

    limits = LinkLimits(chunk_bytes=CHUNK_BYTES, window_bytes=64 * CHUNK_BYTES, calibrated=False)

    def open(self, path: str) -> NamedFile:
        return NamedFile(path)

    def start(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        ended(ChunkEnd(request.required, PathTaken.EMULATED))

    def abandon(self, request: ChunkRequest) -> None:
        """Nothing is ever under way."""

    def close(self) -> None:
        """Nothing is open."""


async def _locate(path: str) -> Link:
    return LINK


def run(*, scale: float, quick: bool) -> list[Figure]:
    figures = [_speed(chunks, rounds=5 if quick else 15) for chunks in CHUNKS_PER_AWAIT]
    for threads, open_device in (("compiled", _compiled), ("Python's", _in_python)):
        figures.append(_disk_speed(threads, open_device, rounds=3 if quick else 7))
    return figures + _accuracy(seconds=4.0 if quick else 20.0)


def _speed(chunks_per_await: int, rounds: int) -> Figure:
    """Chunks per second of processor time, from a client's call to its return; the best round counts.

    Processor time of one thread: what the service leaves of it to everything else on the loop.
    """
    rates = []
    for _ in range(rounds):
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            rates.append(runner.run(_chunks_per_second(16_000, chunks_per_await)))
    name = f"service: chunks per processor second, {chunks_per_await} per await"
    return Figure(name, max(rates), "chunks/s", 100_000, "at least", {"median": statistics.median(rates)}, rounds)


def _disk_speed(threads: str, open_device: devices.OpenDevice, rounds: int) -> Figure:
    """The same through threads that read a cached file, by the clock: waking the loop and the threads included."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(16 * CHUNK_BYTES))
        file.flush()
        rates = []
        for _ in range(rounds):
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                started = time.perf_counter()
                runner.run(_chunks_per_second(8_000, 16, open_device, file.name))
                rates.append(8_000 / (time.perf_counter() - started))
    name = f"service: chunks per second of the clock, 16 per await, {threads} threads, 4 KiB cached"
    return Figure(name, statistics.median(rates), "chunks/s", samples=rounds)


def _in_python(_link: Link) -> devices.Device:
    return PosixDevice(chunk_bytes=CHUNK_BYTES)


def _compiled(_link: Link) -> devices.Device:
    return CompiledDevice(native.load(), asyncio.get_running_loop(), chunk_bytes=CHUNK_BYTES)


def _instant(_link: Link) -> devices.Device:
    return InstantDevice()


async def _chunks_per_second(
    chunks: int, chunks_per_await: int, open_device: devices.OpenDevice = _instant, path: str = "/file"
) -> float:
    service = IoSchedulerService(open_device=open_device, locate=_locate)
    await service.start()
    clients = [service.client(f"plan {index}", PriorityClass(index % 3)) for index in range(CLIENTS)]

    async def read(client: TransferClient) -> None:
        destination = memoryview(bytearray(chunks_per_await * CHUNK_BYTES))
        for _ in range(chunks // chunks_per_await // CLIENTS):
            await client.read_into(path, 0, destination)

    started = time.process_time()
    await asyncio.gather(*map(read, clients))
    seconds = time.process_time() - started
    await service.stop()
    return chunks / seconds


@dataclass
class Observed:
    """When urgent transfers were submitted, and the latencies of both classes in seconds."""

    arrivals: list[float] = field(default_factory=list)
    urgent: list[float] = field(default_factory=list)
    batch: list[float] = field(default_factory=list)


def _accuracy(seconds: float) -> list[Figure]:
    """The same arrivals on the real loop with an emulated device, and in the simulator."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        real = runner.run(_run_real(seconds))
    simulated = _run_simulated(seconds, real.arrivals)
    figures = []
    for percentile, goal in ((50, 0.05), (99, 0.10)):
        for name in ("urgent", "batch"):
            there, here = (_percentile(getattr(each, name), percentile) for each in (simulated, real))
            figures.append(
                Figure(
                    f"simulator against the real loop: {name} p{percentile}, difference",
                    abs(here / there - 1.0),
                    "",
                    goal,
                    peers={"real ms": here * 1e3, "simulated ms": there * 1e3},
                    samples=len(getattr(real, name)),
                )
            )
    return figures


def _percentile(values: list[float], percentile: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percentile - 1]


async def _run_real(seconds: float) -> Observed:
    limits = DISK.limits()
    service = IoSchedulerService(
        open_device=lambda link: EmulatedDevice(
            None,
            bytes_per_second=DISK.bytes_per_second,
            latency_seconds=DISK.latency_seconds,
            depth=DISK.depth,
            limits=limits,
        ),
        locate=_locate,
    )
    await service.start()
    observed = Observed()
    urgent = service.client("urgent", PriorityClass.INTERACTIVE)
    batch = service.client("batch", PriorityClass.BATCH)
    destination = memoryview(bytearray(BATCH_BYTES))
    started = service.now()

    async def read_urgently(arrival: float) -> None:
        await asyncio.sleep(max(0.0, started + arrival - service.now()))
        submitted = service.now()
        await urgent.read_into("/file", 0, destination[:URGENT_BYTES])
        observed.arrivals.append(submitted - started)
        observed.urgent.append(service.now() - submitted)

    async def read_for_ever() -> None:
        while service.now() - started < seconds:
            submitted = service.now()
            await batch.read_into("/file", 0, destination)
            observed.batch.append(service.now() - submitted)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(BATCH_TRANSFERS):
            tasks.create_task(read_for_ever())
        for arrival in _arrivals(seconds):
            tasks.create_task(read_urgently(arrival))
    await service.stop()
    return observed


def _arrivals(seconds: float) -> list[float]:
    chance, arrivals, at = random.Random(1), [], 0.0
    while (at := at + chance.expovariate(1.0 / URGENT_SECONDS)) < seconds:
        arrivals.append(at)
    return arrivals


def _run_simulated(seconds: float, arrivals: list[float]) -> Observed:
    clock, observed = VirtualTime(), Observed()
    meter = LinkMeter(0, LINK, counted_from=0.0, counted_until=seconds)
    node = SimulatedNode(0, clock, POLICIES["pystachio"], None)
    node.open_link(LINK, DISK.limits(), SimulatedDevice(clock, DISK, meter, random.Random(1)))
    node.tell(PlanOpened("urgent", PriorityClass.INTERACTIVE))
    node.tell(PlanOpened("batch", PriorityClass.BATCH))
    transfers = 0

    def submit(plan_id: str, priority: PriorityClass, length: int) -> None:
        nonlocal transfers
        transfers += 1
        submitted = clock.now

        def ended(transfer: SimulatedTransfer, error: PystachioError | None) -> None:
            (observed.urgent if plan_id == "urgent" else observed.batch).append(clock.now - submitted)
            if plan_id == "batch" and clock.now < seconds:
                submit(plan_id, priority, length)

        transfer = Transfer(transfers, plan_id, LINK, Extent(0, length))
        node.submit(SimulatedTransfer(transfer, priority, ended))

    def arrive(arrival: float) -> None:
        submit("urgent", PriorityClass.INTERACTIVE, URGENT_BYTES)

    for _ in range(BATCH_TRANSFERS):
        submit("batch", PriorityClass.BATCH, BATCH_BYTES)
    for arrival in sorted(arrivals):
        clock.at(arrival, Kind.ARRIVAL, 0, arrive, arrival)
    clock.run(float("inf"), lambda: None)
    return observed
