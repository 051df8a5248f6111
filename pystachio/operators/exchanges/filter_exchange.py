"""Runtime filters of joins whose build side is spread over nodes, or is on the coordinator: made known to all nodes.

Parts go to one node, another one for each filter, which sends their union to all: what is sent grows with the number of
nodes, not with its square.

No two nodes wait for each other in a circle. A part of a filter is made once the build side of its join is read there;
a build side is fed only by its own scans and exchanges, never by the probe side of its join, and the filters that its
scans wait for are those of joins above, made of other build sides. So filters wait for each other along the tree of the
plan and not in circles, on each node in the same order. The exchange itself sends to all nodes at once and reserves no
memory that others would have to free: parts are of bounded size, and one at a time is held beside the union.

A build side is read to its end even when nobody wants the join's rows any more, so every node makes its part and asks
for the union, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pyarrow as pa

from pystachio.errors import Cancelled, DataError, InternalError
from pystachio.operators.exchanges.filter_wire import (
    MOST_FILTER_BYTES,
    bounded,
    decode_filter,
    encode_filter,
    union_of_filters,
)
from pystachio.operators.runtime_filter import RuntimeFilter
from pystachio.runtime.context import Context
from pystachio.runtime.peers import PlanPeers
from pystachio.runtime.slots import Slot


@dataclass(frozen=True, slots=True)
class SharedFilter:
    """The filter of a slot, whose keys are of the type, made by the join called `join`: by the coordinator's part of it
    or, `everywhere`, by all nodes'."""

    slot: int
    type: pa.DataType
    join: str
    everywhere: bool

    async def share(self, ctx: Context) -> None:
        """Take this node's part from its slot, if it makes one, and fill the filter's slot."""
        if ctx.peers is None:
            raise InternalError("a filter of several nodes is made without them")
        peers = ctx.peers
        whole = ctx.slots["filter", self.slot]
        collector = self.slot % len(peers.nodes) if self.everywhere else 0
        if peers.here == collector:
            await self._collect(ctx, peers, whole)
            return
        async with asyncio.TaskGroup() as tasks:
            if self.everywhere:
                part = await ctx.stream.run(_prepared, await self._own_part(ctx))
                tasks.create_task(self._send(ctx, peers, collector, f"{self._name} part", part))
            whole.set(await self._receive(ctx, peers, collector, self._name))

    async def _collect(self, ctx: Context, peers: PlanPeers, whole: Slot[object]) -> None:
        """The union of all parts, for all nodes: as soon as it is known, or that nothing can be."""
        union = await ctx.stream.run(bounded, await self._own_part(ctx))
        async with asyncio.TaskGroup() as tasks:

            async def publish() -> None:
                whole.set(union)
                block = await ctx.stream.run(_prepared, union)
                for node in peers.others:
                    tasks.create_task(self._send(ctx, peers, node, self._name, block))

            for node in peers.others if self.everywhere else ():
                if union is None and not whole.is_set:
                    await publish()
                part = await self._receive(ctx, peers, node, f"{self._name} part")
                union = await ctx.stream.run(union_of_filters, [union, part], self.type)
            if not whole.is_set:
                await publish()

    async def _own_part(self, ctx: Context) -> RuntimeFilter | None:
        made = await ctx.slots["filter part", self.slot].wait()
        assert made is None or isinstance(made, RuntimeFilter)
        return made

    async def _send(self, ctx: Context, peers: PlanPeers, node: int, name: str, block: memoryview) -> None:
        try:
            await peers.send(node, name, 0, block)
        except Cancelled:
            return  # its part of the plan has ended: whoever knows why tells the plan
        ctx.metrics.count("bytes of filters sent", len(block))

    async def _receive(self, ctx: Context, peers: PlanPeers, node: int, name: str) -> RuntimeFilter | None:
        nbytes = await peers.offered(node, name, 0)
        if nbytes > MOST_FILTER_BYTES:
            raise DataError(f"a node sends a runtime filter of {nbytes:,} bytes", hint="do all nodes run one version?")
        block = await peers.receive(node, name, 0)
        assert isinstance(block, memoryview), "memory of the scheduler's pool"
        return await ctx.stream.run(decode_filter, block, self.type)

    @property
    def _name(self) -> str:
        return f"filter {self.slot}"


def _prepared(part: RuntimeFilter | None) -> memoryview:
    return memoryview(encode_filter(bounded(part)))
