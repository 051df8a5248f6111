"""A node in a process of its own, which does what it reads from its standard input: `python other_node.py '{...}'`.

The first line that it prints is where it listens; then one line for each order that has ended: its number, and a digest
of what was received, or the code of the error.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import uvloop
from xxhash import xxh3_64_hexdigest

from pystachio.errors import PystachioError
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.io_scheduler.network.frames import Carrier
from pystachio.io_scheduler.network.limits import NetworkLimits
from pystachio.io_scheduler.network.messages import MessageKey
from pystachio.io_scheduler.network.network import Network
from pystachio.io_scheduler.network.transports import TransportChoice
from pystachio.io_scheduler.service import IoSchedulerService

PLANS = {"interactive": PriorityClass.INTERACTIVE, "normal": PriorityClass.NORMAL, "batch": PriorityClass.BATCH}

_PATTERN = bytes(place * place % 251 for place in range(65_521))


def content(sequence: int, length: int) -> bytes:
    """Bytes that differ from place to place and from message to message."""
    start = sequence % len(_PATTERN)
    block = _PATTERN[start:] + _PATTERN[:start]
    return (block * (length // len(block) + 1))[:length]


async def obey(network: Network, order: dict[str, Any]) -> str:
    key = MessageKey(order["plan"], order["operator"], order["sequence"])
    try:
        match order["do"]:
            case "send":
                await network.send("first", key, memoryview(content(key.sequence, order["length"])))
                return "sent"
            case "receive":
                return xxh3_64_hexdigest(await network.receive("first", key))
            case "sink":
                await network.receive("first", key)
                return "received"
            case "echo":
                received = await network.receive("first", key)
                await network.send("first", key._replace(operator=key.operator + " back"), received)
                return "sent"
            case "close plan":
                network.close_plan(key.plan_id)
                return "closed"
            case _:
                raise AssertionError(order)
    except PystachioError as error:
        return error.code


async def serve(options: dict[str, Any]) -> None:
    service = IoSchedulerService()
    await service.start()
    for plan, priority in PLANS.items():
        service.client(plan, priority)
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    running: dict[int, asyncio.Task[str]] = {}
    async with (
        Network(
            node="second",
            service=service,
            secret=options["secret"].encode(),
            transport=TransportChoice(Carrier[options["carrier"]], "asked for"),
            epoch=options.get("epoch", 1),
            limits=NetworkLimits(**options.get("limits", {})),
            ucx_options={"TLS": "tcp"},
        ) as network,
        asyncio.TaskGroup() as group,
    ):
        print(*await network.listen(), flush=True)
        while line := await orders.readline():
            order = json.loads(line)
            number = order["number"]
            if order["do"] == "cancel":
                running[order["which"]].cancel()
                await asyncio.wait([running[order["which"]]])
                print(number, "cancelled", flush=True)
                continue
            running[number] = group.create_task(obey(network, order))
            running[number].add_done_callback(
                lambda task, number=number: print(
                    number, "cancelled" if task.cancelled() else task.result(), flush=True
                )
            )
    await service.stop()


if __name__ == "__main__":
    uvloop.run(serve(json.loads(sys.argv[1])))
