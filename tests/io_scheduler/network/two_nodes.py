"""A node in the test's process, connected to one in another process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.io_scheduler.network.frames import Carrier
from pystachio.io_scheduler.network.limits import NetworkLimits
from pystachio.io_scheduler.network.network import Network
from pystachio.io_scheduler.network.transports import TransportChoice
from pystachio.io_scheduler.service import IoSchedulerService

SECRET = "a secret of the cluster"
PLANS = {"interactive": PriorityClass.INTERACTIVE, "normal": PriorityClass.NORMAL, "batch": PriorityClass.BATCH}


class OtherNode:
    """The process of the node `second`. Orders are answered in whatever order they end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._numbers = count()
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._listener: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    async def address(self) -> tuple[str, int]:
        assert self.process.stdout is not None
        line = (await self.process.stdout.readline()).decode().split()
        self._listener = asyncio.create_task(self._listen())
        return line[0], int(line[1])

    def order(self, do: str, **order: Any) -> tuple[int, asyncio.Future[str]]:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        whole = {"number": number, "do": do, "plan": "normal", "operator": "exchange", "sequence": 0, **order}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(whole).encode() + b"\n")
        return number, answer

    async def do(self, do: str, **order: Any) -> str:
        return await self.order(do, **order)[1]

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            number, answer = line.decode().split(maxsplit=1)
            self._answers[int(number)].set_result(answer.strip())

    async def end(self) -> None:
        """Let it end by itself, which must succeed, unless it was killed."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await self.process.wait()
        finally:
            if self.process.returncode is None:
                self.process.kill()
                await self.process.wait()
            if self._listener is not None:
                await self._listener
        assert self.process.returncode in (0, -9), "the other node failed"


@asynccontextmanager
async def other_node(carrier: str, *, secret: str = SECRET, epoch: int = 1, **limits: Any) -> AsyncIterator[OtherNode]:
    options = {"carrier": carrier, "secret": secret, "epoch": epoch, "limits": limits}
    script = str(Path(__file__).with_name("other_node.py"))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        script,
        json.dumps(options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    node = OtherNode(process)
    try:
        yield node
    except BaseException:
        if process.returncode is None:
            process.kill()
        await process.wait()
        raise
    await node.end()


@asynccontextmanager
async def running_service() -> AsyncIterator[IoSchedulerService]:
    """A service with a plan of each class, which must have nothing under way when it is stopped."""
    service = IoSchedulerService(clock=asyncio.get_running_loop().time)
    await service.start()
    for plan, priority in PLANS.items():
        service.client(plan, priority)
    yield service
    statistics = service.statistics()
    assert (statistics.transfers, statistics.chunks, statistics.open_files) == (0, 0, 0)
    await service.stop()


def first_node(service: IoSchedulerService, carrier: str, **options: Any) -> Network:
    """This process's node."""
    limits = {name: options.pop(name) for name in tuple(options) if name in NetworkLimits.__dataclass_fields__}
    return Network(
        node="first",
        service=service,
        secret=options.pop("secret", SECRET).encode(),
        transport=TransportChoice(Carrier[carrier], "asked for"),
        epoch=options.pop("epoch", 1),
        limits=NetworkLimits(**limits),
        ucx_options={"TLS": "tcp"},
        **options,
    )


@asynccontextmanager
async def two_nodes(carrier: str, **options: Any) -> AsyncIterator[tuple[Network, OtherNode]]:
    """Connected; `options` are limits of both nodes."""
    async with other_node(carrier, **options) as other, running_service() as service:
        address = await other.address()
        async with first_node(service, carrier, **options) as network:
            await network.connect("second", *address)
            yield network, other
