"""A shuffle of a table of eight columns between two nodes that are processes, as a share of what a bare stream does
one way in the same rounds. The other node is `python -m benchmarks.cluster_exchange PORT`."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import pyarrow as pa
import torch

from benchmarks.figures import Figure
from benchmarks.network_peer import FLOOD_LANES, BareStream
from pystachio import config as configuration
from pystachio.config import ClusterSettings
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.operators.arrow import batch_from_arrow, schema_from_arrow
from pystachio.operators.batch import Batch, Schema
from pystachio.operators.exchanges.exchange import Exchange, ExchangeKind
from pystachio.operators.operator import Operator, Output
from pystachio.operators.pipeline import PhysicalPlan, build_graph
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context
from pystachio.runtime.event_loop import loop_factory
from pystachio.runtime.executor import PlanScope, TaskSpec
from pystachio.runtime.membership.discovery import StaticDiscovery
from pystachio.runtime.membership.views import Address
from pystachio.runtime.peers import PlanPeers
from pystachio.runtime.slots import Slot
from pystachio.runtime.urgency import Urgency
from pystachio.server.cluster_node import ClusterNode, until_members

COLUMNS = 8
BATCHES = 16
BATCH_ROWS = 1 << 17
SECRET = b"of benchmarks only"
NAMES = ("here", "there")
JOIN_SECONDS = 30.0
MESSAGE_BYTES = 4 << 20
RATE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Rows:
    """Batches that are in memory already."""

    schema: Schema
    batches: tuple[Batch, ...] = field(repr=False)

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return ()

    def label(self) -> str:
        return f"{len(self.batches)} batches in memory"

    async def run(self, ctx: Context, inputs: tuple[Receiver[Batch], ...], out: Output) -> None:
        for batch in self.batches:
            await out.send(batch)


class End:
    """One of the two nodes, with its half of the table."""

    def __init__(self, here: int, transport: str, seeds: Sequence[int] = ()) -> None:
        self._here = here
        # As a served node does when it has started.
        gc.collect()
        gc.freeze()
        settings = configuration.load(None, memory="2GiB", threads=2, control_socket=False, chunk_cache=False).settings
        self.node = ClusterNode(
            settings,
            ClusterSettings(transport=transport, watchdog_seconds=0),  # type: ignore[arg-type]
            name=NAMES[here],
            secret=SECRET,
            discovery=StaticDiscovery(*(Address("", "127.0.0.1", port) for port in seeds)),
        )
        chance = np.random.default_rng(here)
        kinds = (lambda: chance.integers(0, 1 << 40, BATCH_ROWS), lambda: chance.random(BATCH_ROWS))
        rows = [
            pa.record_batch({f"c{column}": kinds[column % 2]() for column in range(COLUMNS)}) for _ in range(BATCHES)
        ]
        source = Rows(schema_from_arrow(rows[0].schema), tuple(batch_from_arrow(each) for each in rows))
        names = tuple(name for name in rows[0].schema.names)
        self._plan = PhysicalPlan(Exchange(source, ExchangeKind.SHUFFLE, 0, (0,)), (), names)

    def until_met(self) -> None:
        self.node.host.call(asyncio.wait_for(until_members(self.node, 2), JOIN_SECONDS)).result()

    def shuffle(self, plan_id: str) -> tuple[int, int]:
        """The rows that are here afterwards, and the bytes that were sent."""
        return self.node.host.call(self._shuffle(plan_id)).result()

    async def _shuffle(self, plan_id: str) -> tuple[int, int]:
        results: Slot[Receiver[Batch]] = Slot()

        def build(scope: PlanScope) -> list[TaskSpec]:
            graph = build_graph(self._plan, scope)
            results.set(graph.results)
            return graph.tasks

        handle = self.node.host.node.start_plan(
            build,
            plan_id=plan_id,
            urgency=Urgency(PriorityClass.BATCH, None),
            peers=PlanPeers(plan_id, NAMES, self._here, self.node.network),
        )
        rows = 0
        async for batch in await results.wait():
            rows += batch.length
        error = await handle.wait_ended()
        self.node.network.close_plan(plan_id)
        if error is not None:
            raise error
        sent = sum(each.counts.get("bytes sent", 0) for each in handle.metrics.snapshot().operators)
        return rows, sent


def run(*, quick: bool) -> list[Figure]:
    return [figure for transport in ("tcp", "ucx") for figure in _shuffles(transport, 2 if quick else 9)]


def _shuffles(transport: str, rounds: int) -> list[Figure]:
    end = End(0, transport)
    process = subprocess.Popen(
        (sys.executable, "-m", "benchmarks.cluster_exchange", transport, str(end.node.address[1])),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    rates, ratios = [], []
    try:
        bare_port = int(process.stdout.readline())
        end.until_met()
        for number in range(rounds + 1):
            plan_id = f"shuffle {number}"
            process.stdin.write(plan_id + "\n")
            process.stdin.flush()
            process.stdout.readline()
            started = time.perf_counter()
            rows, sent = end.shuffle(plan_id)
            other_rows, other_sent = map(int, process.stdout.readline().split())
            seconds = time.perf_counter() - started
            if rows + other_rows != 2 * BATCHES * BATCH_ROWS:
                raise AssertionError(f"{rows + other_rows:,} rows arrived of {2 * BATCHES * BATCH_ROWS:,}")
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                bare = runner.run(_bare_rate(bare_port))
            if number:
                rates.append((sent + other_sent) / seconds)
                ratios.append(rates[-1] / bare)
    finally:
        process.stdin.close()
        process.wait()
        end.node.close()
    label = f"shuffle of {COLUMNS} columns over {transport}"
    return [
        Figure(f"{label}: throughput", median(rates) / 1e9, "GB/s", samples=rounds),
        Figure(f"{label}: of a bare stream", median(ratios), "", samples=rounds),
    ]


async def _bare_rate(port: int) -> float:
    """Bytes per second, one way."""
    from benchmarks.network import BareClient, measure_rate

    _, client = await asyncio.get_running_loop().create_connection(BareClient, "127.0.0.1", port)
    buffer = torch.ones(MESSAGE_BYTES, dtype=torch.uint8).numpy().data
    rate = await measure_rate(client.send, buffer, max(FLOOD_LANES, RATE_BYTES // MESSAGE_BYTES))
    client.close()
    return rate


def serve(transport: str, port: int) -> None:
    end = End(1, transport, (port,))

    async def listen() -> int:
        server = await asyncio.get_running_loop().create_server(BareStream, "127.0.0.1", 0)
        return int(server.sockets[0].getsockname()[1])

    print(end.node.host.call(listen()).result(), flush=True)
    end.until_met()
    for line in sys.stdin:
        print("begins", flush=True)
        print(*end.shuffle(line.strip()), flush=True)
    end.node.close()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
