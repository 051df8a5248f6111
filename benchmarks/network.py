"""Messages between two processes: throughput and round trip beside a bare stream, and urgent messages beside a flood.

A bare stream is uvloop's `BufferedProtocol` receiving into its final buffer: what this machine's loopback can do
without scheduling, checks or plans; bare UCX is ucxx's core API in a loop of its own. All of it runs in turn, round
after round, from and to tensors, and ratios are taken within a round.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from statistics import median
from typing import Any, cast

import torch

from benchmarks.figures import Figure
from benchmarks.network_peer import FLOOD_LANES, HEADER_BYTES, network, started_service
from benchmarks.network_ucx import UcxPair
from pystachio.io_scheduler.network.messages import MessageKey
from pystachio.io_scheduler.network.network import Network
from pystachio.runtime.event_loop import loop_factory

SIZES = (1 << 20, 4 << 20, 16 << 20)
RATE_BYTES = 512 << 20
"""Sent for one rate."""
GOAL = 0.8
SMALL_BYTES = 64
URGENT_BYTES = 64 << 10
FLOOD_BYTES = 8 << 20
SLOW_NETWORK = 200e6
"""Bytes per second of the emulated network: the processors of a small machine are not what bounds it."""
BARE = {"TCP": "bare stream", "UCX": "bare UCX"}


def run(*, scale: float, quick: bool) -> list[Figure]:
    figures = throughput(quick=quick)
    samples = 40 if quick else 300
    for rate, network_name in ((SLOW_NETWORK, "network of 200 MB/s"), (None, "loopback")):
        figures += _run(_urgency(rate, network_name, samples))
    return figures


def throughput(*, quick: bool) -> list[Figure]:
    return _run(_throughput(2 if quick else 9))


def _run(main: Coroutine[Any, Any, list[Figure]]) -> list[Figure]:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


class End:
    """This process's end of a network, and of the bare stream beside it."""

    def __init__(self, node: Network, bare: BareClient) -> None:
        self.node = node
        self.bare = bare
        self._flooded = 0
        self._asked = 0

    async def flood(self, buffer: memoryview) -> None:
        """One message of the flood; several may be on their way."""
        self._flooded += 1
        await self.node.send("there", MessageKey("flood", "benchmark", self._flooded - 1), buffer)

    async def ask(self, buffer: memoryview) -> None:
        """An urgent message, there and back."""
        self._asked += 1
        await self.node.send("there", MessageKey("urgent", "there", self._asked - 1), buffer)
        await self.node.receive("there", MessageKey("urgent", "back", self._asked - 1))


class BareClient(asyncio.Protocol):
    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for _ in data:
            self._waiting.pop(0).set_result(None)

    async def send(self, buffer: memoryview) -> None:
        answered = asyncio.get_running_loop().create_future()
        self._waiting.append(answered)
        self._transport.writelines((len(buffer).to_bytes(HEADER_BYTES), buffer))
        await answered

    def close(self) -> None:
        self._transport.close()


@asynccontextmanager
async def _connected(carrier: str, policy: str = "pystachio", rate: float | None = None) -> AsyncIterator[End]:
    options = json.dumps({"carrier": carrier, "policy": policy, "rate": rate})
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "benchmarks.network_peer", options),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    port, bare_port = (int(word) for word in (await process.stdout.readline()).split())
    service = await started_service(policy)
    _, bare = await asyncio.get_running_loop().create_connection(BareClient, "127.0.0.1", bare_port)
    async with network("here", service, carrier, rate) as node:
        await node.connect("there", "127.0.0.1", port)
        yield End(node, bare)
    bare.close()
    process.stdin.close()
    await process.wait()
    await service.stop()


async def _throughput(rounds: int) -> list[Figure]:
    # As a served node does when it has started, here and at the other end.
    gc.collect()
    gc.freeze()
    tensor = torch.ones(max(SIZES), dtype=torch.uint8)
    buffer = tensor.numpy().data
    rates: dict[tuple[str, int], list[float]] = {}
    trips: dict[str, list[float]] = {}
    # Bare UCX first: its other end is waited for in this thread, where nobody may think that a connected node has died.
    with closing(UcxPair()) as bare_ucx:
        async with _connected("TCP") as tcp, _connected("UCX") as ucx:
            ends: dict[str, tuple[Callable[[memoryview], Awaitable[None]], Callable[[memoryview], Awaitable[None]]]] = {
                "bare stream": (tcp.bare.send, tcp.bare.send),
                "TCP": (tcp.flood, tcp.ask),
                "UCX": (ucx.flood, ucx.ask),
            }
            # The first round warms memory, connections and windows up.
            for number in range(rounds + 1):
                measured: dict[tuple[str, int], float] = {}
                for size in SIZES:
                    count = max(FLOOD_LANES, RATE_BYTES // size)
                    for name, (send, _) in ends.items():
                        measured[name, size] = await measure_rate(send, buffer[:size], count)
                    measured["bare UCX", size] = bare_ucx.rate(tensor[:size], count)
                for key, rate in measured.items() if number else ():
                    rates.setdefault(key, []).append(rate)
                for name, (_, ask) in ends.items():
                    trip = await _time_trips(ask, buffer[:SMALL_BYTES], 50)
                    if number:
                        trips.setdefault(name, []).append(trip)
    figures = []
    for carrier, bare in BARE.items():
        for size in SIZES:
            ours, theirs = rates[carrier, size], rates[bare, size]
            label = f"{carrier}, {size >> 20} MiB"
            peers = {bare: median(theirs) / 1e9}
            figures.append(Figure(f"{label}: throughput", median(ours) / 1e9, "GB/s", peers=peers, samples=rounds))
            ratio = median(mine / limit for mine, limit in zip(ours, theirs, strict=True))
            figures.append(Figure(f"{label}: of {bare}", ratio, "", GOAL, "at least", samples=rounds))
        peers = {"bare stream": median(trips["bare stream"]) * 1e6}
        figures.append(
            Figure(f"{carrier}: round trip", median(trips[carrier]) * 1e6, "us", peers=peers, samples=rounds * 50)
        )
    return figures


async def measure_rate(send: Callable[[memoryview], Awaitable[None]], buffer: memoryview, count: int) -> float:
    """Bytes per second, with a few messages on their way at any time."""
    left = iter(range(count))

    async def lane() -> None:
        for _ in left:
            await send(buffer)

    start = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(FLOOD_LANES)))
    return count * len(buffer) / (time.perf_counter() - start)


async def _time_trips(ask: Callable[[memoryview], Awaitable[None]], buffer: memoryview, count: int) -> float:
    trips = []
    for _ in range(count):
        start = time.perf_counter()
        await ask(buffer)
        trips.append(time.perf_counter() - start)
    return median(trips)


async def _urgency(rate: float | None, network_name: str, samples: int) -> list[Figure]:
    figures = []
    for policy in ("pystachio", "fifo"):
        async with _connected("TCP", policy, rate) as end:
            await _urgent_latencies(end, 20)
            idle = await _urgent_latencies(end, samples)
            flood = asyncio.create_task(_flood(end))
            # Until the flood has calibrated the windows.
            await asyncio.sleep(1.0)
            beside = await _urgent_latencies(end, samples)
            flood.cancel()
            await asyncio.gather(flood, return_exceptions=True)
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            ratio = _quantile(beside, share) / _quantile(idle, share)
            peers = {"idle, ms": _quantile(idle, share) * 1e3, "beside a flood, ms": _quantile(beside, share) * 1e3}
            label = f"{network_name}, {policy}: urgent 64 KiB beside a flood, {name} against idle"
            figures.append(Figure(label, ratio, "times", peers=peers, samples=samples))
    return figures


async def _urgent_latencies(end: End, samples: int) -> list[float]:
    buffer = memoryview(bytearray(URGENT_BYTES))
    latencies = []
    for _ in range(samples):
        start = time.perf_counter()
        await end.ask(buffer)
        latencies.append(time.perf_counter() - start)
        await asyncio.sleep(0.005)
    return latencies


async def _flood(end: End) -> None:
    buffer = memoryview(bytearray(FLOOD_BYTES))

    async def lane() -> None:
        while True:
            await end.flood(buffer)

    async with asyncio.TaskGroup() as group:
        for _ in range(FLOOD_LANES):
            group.create_task(lane())


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]
