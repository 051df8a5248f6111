"""The other end of `benchmarks network`, in a process of its own: `python -m benchmarks.network_peer '{...}'`.

It prints the ports of its network and of a bare stream, and ends when its standard input does. Plan `flood` is received
into memory that is there already, plan `urgent` is sent back.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Callable
from typing import cast

import torch

from benchmarks.network_ucx import UCX_OPTIONS
from pystachio.errors import PystachioError
from pystachio.io_scheduler.core.policy import POLICIES
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.io_scheduler.devices import Device
from pystachio.io_scheduler.devices.emulated import EmulatedDevice
from pystachio.io_scheduler.network.frames import Carrier
from pystachio.io_scheduler.network.messages import MessageKey
from pystachio.io_scheduler.network.network import Network
from pystachio.io_scheduler.network.transports import TransportChoice
from pystachio.io_scheduler.service import IoSchedulerService

SECRET = b"of benchmarks only"
FLOOD_LANES = 8
LONGEST_BYTES = 16 << 20
PLANS = {"flood": PriorityClass.BATCH, "urgent": PriorityClass.INTERACTIVE}
HEADER_BYTES = 8


async def started_service(policy: str) -> IoSchedulerService:
    service = IoSchedulerService(policy=POLICIES[policy])
    await service.start()
    for plan, priority in PLANS.items():
        service.client(plan, priority)
    return service


def network(
    name: str,
    service: IoSchedulerService,
    carrier: str,
    rate: float | None = None,
    joined: Callable[[str], None] | None = None,
) -> Network:
    """`rate` in bytes per second makes both directions slower than they are."""

    def emulate(device: Device) -> Device:
        return device if rate is None else EmulatedDevice(device, bytes_per_second=rate)

    return Network(
        node=name,
        service=service,
        secret=SECRET,
        transport=TransportChoice(Carrier[carrier], "asked for"),
        joined=joined,
        emulate=emulate,
        ucx_options=UCX_OPTIONS,
    )


class BareStream(asyncio.BufferedProtocol):
    """What the machine can do: messages straight into a tensor, each answered by one byte.

    As many tensors in turn as there are messages on their way: whoever receives several keeps them apart, as the
    network's peer and bare UCX do here. One tensor for all would stay in the processor's cache.
    """

    def __init__(self) -> None:
        self._buffers = [torch.zeros(LONGEST_BYTES, dtype=torch.uint8).numpy().data for _ in range(FLOOD_LANES)]
        self._buffer = self._buffers[0]
        self._received = 0
        self._header = bytearray(HEADER_BYTES)
        self._filled = 0
        self._length = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._length:
            return self._buffer[self._filled : self._length]
        return memoryview(self._header)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if not self._length:
            if self._filled == HEADER_BYTES:
                self._length, self._filled = int.from_bytes(self._header), 0
        elif self._filled == self._length:
            self._filled = self._length = 0
            self._received += 1
            self._buffer = self._buffers[self._received % FLOOD_LANES]
            self._transport.write(b"!")


async def _sink(node: Network, lane: int) -> None:
    buffer = torch.zeros(LONGEST_BYTES, dtype=torch.uint8).numpy().data
    sequence = lane
    while True:
        key = MessageKey("flood", "benchmark", sequence)
        length = await node.offered("here", key)
        await node.receive("here", key, buffer[:length])
        sequence += FLOOD_LANES


async def _echo(node: Network) -> None:
    sequence = 0
    while True:
        received = await node.receive("here", MessageKey("urgent", "there", sequence))
        await node.send("here", MessageKey("urgent", "back", sequence), received)
        sequence += 1


async def _serve_peer(node: Network, joined: asyncio.Event) -> None:
    await joined.wait()
    tasks = [asyncio.create_task(_sink(node, lane)) for lane in range(FLOOD_LANES)]
    tasks.append(asyncio.create_task(_echo(node)))
    try:
        await asyncio.gather(*tasks)
    except PystachioError:
        await asyncio.gather(*tasks, return_exceptions=True)


async def serve(carrier: str, policy: str, rate: float | None) -> None:
    service = await started_service(policy)
    loop = asyncio.get_running_loop()
    bare = await loop.create_server(BareStream, "127.0.0.1", 0)
    ended = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(ended), sys.stdin)
    joined = asyncio.Event()
    async with network("there", service, carrier, rate, lambda name: joined.set()) as node:
        address = await node.listen()
        print(address.port, bare.sockets[0].getsockname()[1], flush=True)
        served = asyncio.create_task(_serve_peer(node, joined))
        await ended.read()
    await served
    bare.close()
    await service.stop()


if __name__ == "__main__":
    from pystachio.runtime.event_loop import loop_factory

    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(**json.loads(sys.argv[1])))
