"""Exchange: rows change nodes. Every node of a plan runs the same exchange over its own part of the rows.

Each pair of nodes has a stream of blocks, numbered from 0; an empty block ends it. A receiver takes a block when it has
memory for it, and two more ahead of its consumer. A receiver whose consumer has all it wants declines the next block,
which tells the sender to send no more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING

import torch

from pystachio.errors import InternalError
from pystachio.operators.batch import Batch, Schema
from pystachio.operators.exchanges.ranges import Ranges, agree
from pystachio.operators.exchanges.reader import BlockReader
from pystachio.operators.exchanges.stream import BLOCKS_ON_THEIR_WAY, OutgoingStream
from pystachio.operators.expressions import SortKey
from pystachio.operators.kernels.partition import hash_rows, rows_by_node, without_heavy
from pystachio.operators.kernels.selection import settled_batch, take_batch
from pystachio.operators.operator import NotWanted, Operator, Output
from pystachio.operators.placement import batch_on_host, to_device
from pystachio.operators.sort import described
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context
from pystachio.runtime.memory import Reservation, Tier
from pystachio.runtime.peers import PlanPeers

if TYPE_CHECKING:
    from pystachio.io_scheduler.devices import Buffer


class ExchangeKind(StrEnum):
    """Where the rows of all nodes go."""

    GATHER = "gather"
    """To the coordinator."""
    SHUFFLE = "shuffle"
    """To the node of their keys' hash."""
    BROADCAST = "broadcast"
    """To every node."""
    RANGE = "range"
    """To the node of their range of the order: what is before all rows of a node is on one of the nodes before it."""
    DEAL = "deal"
    """In equal parts to all nodes."""


class HeavyRows(StrEnum):
    """Where a shuffle sends rows whose keys are heavy."""

    STAY = "stay"
    """Nowhere; those of the coordinator alone are dealt out."""
    EVERYWHERE = "everywhere"
    """To every node."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Breaker. `number` is its name on all nodes of the plan; `keys` (SHUFFLE) are positions in the schema.

    `only_coordinator`: no other node has rows to send. `order`: what the ranges are ranges of (RANGE), or in what order
    the nodes' rows are, so that they are put out node by node (GATHER). `heavy` (SHUFFLE) are the hashes of keys that
    too many rows have for one node; `heavy_rows` says where such rows go.
    """

    input: Operator
    kind: ExchangeKind
    number: int
    keys: tuple[int, ...] = ()
    only_coordinator: bool = False
    order: tuple[SortKey, ...] = ()
    heavy: tuple[int, ...] = ()
    heavy_rows: HeavyRows = HeavyRows.EVERYWHERE

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def schema(self) -> Schema:
        return self.input.schema

    def label(self) -> str:
        names = ", ".join(self.schema[key].name for key in self.keys) or described(self.order, self.schema)
        text = f"Exchange {self.kind.value}{f' by {names}' if names else ''}"
        if not self.heavy:
            return text
        goes = "stay" if self.heavy_rows is HeavyRows.STAY else "go everywhere"
        return f"{text}, rows of {len(self.heavy)} heavy {'key' if len(self.heavy) == 1 else 'keys'} {goes}"

    async def run(self, ctx: Context, inputs: tuple[Receiver[Batch], ...], out: Output) -> None:
        if ctx.peers is None:
            raise InternalError("a plan of several nodes runs without them")
        await _Streams(self, ctx, ctx.peers, out).run(inputs[0])


class _Streams:
    """One exchange on one node: its streams to and from all others."""

    def __init__(self, exchange: Exchange, ctx: Context, peers: PlanPeers, out: Output) -> None:
        self._exchange = exchange
        self._ctx = ctx
        self._peers = peers
        self._out = out
        self._name = f"exchange {exchange.number}"
        self._is_wanted = exchange.kind is not ExchangeKind.GATHER or peers.here == 0
        """By the consumer here, if there is one."""
        self._receiving: list[asyncio.Task[None]] = []
        self._next: dict[int, int] = {}
        """By node the number of the first block that nobody has asked for."""
        self._ranges: Ranges | None = None
        is_in_order = bool(exchange.order) and exchange.kind is ExchangeKind.GATHER
        self._put_out_all = {node: asyncio.Event() for node in range(len(peers.nodes) if is_in_order else 0)}
        """By node, where one is put out after the other: that all its rows are."""
        others = peers.others
        coordinator = tuple(node for node in others if node == 0)
        self._receivers = coordinator if exchange.kind is ExchangeKind.GATHER else others
        self._senders = coordinator if exchange.only_coordinator else others
        if exchange.only_coordinator and peers.here != 0:
            self._receivers = ()
        if exchange.kind is ExchangeKind.GATHER and peers.here != 0:
            self._senders = ()

    async def run(self, receiver: Receiver[Batch]) -> None:
        async with asyncio.TaskGroup() as watching:
            async with asyncio.TaskGroup() as tasks:
                # Before whoever may end them: what is cancelled before its first step declines nothing.
                self._receiving = [tasks.create_task(self._receive_all(node)) for node in self._senders]
                tasks.create_task(self._send_all(receiver))
                watch = watching.create_task(self._watch(receiver))
            watch.cancel()

    async def _watch(self, receiver: Receiver[Batch]) -> None:
        """End what nobody wants, also while other nodes have nothing to send yet."""
        if self._is_wanted:
            await self._out.until_unwanted()
            self._end_receiving()
            if not self._receivers:
                receiver.close()

    async def _send_all(self, receiver: Receiver[Batch]) -> None:
        async with self._open_streams() as streams, aclosing(self._batches(receiver)) as batches:
            async for batch in batches:
                self._ctx.metrics.add_batch(rows_in=batch.length, batches=0)
                for node, part in await self._ctx.stream.run(self._parts, batch):
                    if node == self._peers.here:
                        await self._put_out(part)
                    else:
                        self._ctx.metrics.count("rows sent", part.length)
                        await streams[node].take(part)
                if not self._is_wanted and not any(stream.is_wanted for stream in streams.values()):
                    break
            receiver.close()
            if self._put_out_all:
                self._put_out_all[self._peers.here].set()
            for stream in streams.values():
                stream.finish()

    async def _batches(self, receiver: Receiver[Batch]) -> AsyncGenerator[Batch]:
        """All rows here, once it is known which of them go where."""
        if self._exchange.kind is not ExchangeKind.RANGE:
            async for batch in receiver:
                yield batch
            return
        held: deque[Batch] = deque()
        with await self._ctx.memory.reserve(0) as reservation:
            async for batch in receiver:
                await reservation.resize(reservation.nbytes + batch.nbytes)
                held.append(batch)
            exchange = self._exchange
            self._ranges = await agree(self._ctx, self._peers, self._name, held, exchange.order, exchange.schema)
            while held:
                batch = held.popleft()
                yield batch
                reservation.shrink(reservation.nbytes - batch.nbytes)

    async def _receive_all(self, node: int) -> None:
        """Every block of the node, in order; the next ones come while one is put out."""
        coming: asyncio.Queue[tuple[asyncio.Task[Buffer], Reservation] | None] = asyncio.Queue(1)
        reader = BlockReader()
        # Without a wait: who is cancelled during one would decline nothing.
        dictionaries = self._ctx.memory.reserve_nowait(0, tier=Tier.HOST, force=True)
        assert dictionaries is not None, "it was forced"
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._put_out_all:
                    # Nothing is fetched before: it would hold memory that the node whose turn it is may need.
                    await self._put_out_all[node - 1].wait()
                fetching = tasks.create_task(self._fetch(node, coming))
                while (item := await coming.get()) is not None:
                    receiving, reservation = item
                    with reservation:
                        block = await receiving
                        assert isinstance(block, memoryview), "memory of the scheduler's pool"
                        batch = await self._ctx.stream.run(self._read, reader, block)
                        dictionaries.resize_nowait(reader.dictionary_bytes)
                        del block, receiving, item
                        await self._put_out(batch)
                    del batch
                    if not self._is_wanted:
                        fetching.cancel()
                        break
        finally:
            dictionaries.release()
            while not coming.empty():
                left = coming.get_nowait()
                if left is not None:
                    left[1].release()
            if self._put_out_all:
                self._put_out_all[node].set()
            if not self._is_wanted:
                first = self._next.get(node, 0)
                for number in range(first, first + BLOCKS_ON_THEIR_WAY + 1):
                    self._peers.decline(node, self._name, number)

    async def _fetch(self, node: int, coming: asyncio.Queue[tuple[asyncio.Task[Buffer], Reservation] | None]) -> None:
        """Ask for blocks as soon as there is memory for them, each before those in front of it are there."""
        async with asyncio.TaskGroup() as tasks:
            for number in count():
                self._next[node] = number
                nbytes = await self._peers.offered(node, self._name, number)
                reservation = await self._ctx.memory.reserve(nbytes, transient=True)
                try:
                    receiving = tasks.create_task(self._peers.receive(node, self._name, number))
                    self._next[node] = number + 1
                    if not nbytes:
                        reservation.release()
                        break
                    self._ctx.metrics.count("bytes received", nbytes)
                    await coming.put((receiving, reservation))
                except BaseException:
                    reservation.release()
                    raise
                del receiving, reservation
        await coming.put(None)

    def _read(self, reader: BlockReader, block: memoryview) -> Batch:
        return to_device(reader.read(block, self._exchange.schema), self._ctx.stream)

    async def _put_out(self, batch: Batch) -> None:
        if not self._is_wanted or not batch.length:
            return
        try:
            await self._out.send(batch)
        except NotWanted:
            self._end_receiving()

    def _end_receiving(self) -> None:
        self._is_wanted = False
        for task in self._receiving:
            if task is not asyncio.current_task():
                task.cancel()

    def _parts(self, batch: Batch) -> list[tuple[int, Batch]]:
        """Which rows go where; on a worker."""
        match self._exchange.kind:
            case ExchangeKind.GATHER:
                return [(0, settled_batch(batch))]
            case ExchangeKind.BROADCAST:
                batch = settled_batch(batch)
                return [(node, batch) for node in (self._peers.here, *self._receivers)]
        held, here = batch_on_host(batch), self._peers.here
        parts = [(node, chosen) for node, chosen in enumerate(self._rows(held)) if len(chosen)]
        if len(parts) == 1 and len(parts[0][1]) == batch.length:
            return [(parts[0][0], batch if parts[0][0] == here else settled_batch(held))]
        return [
            (node, take_batch(batch, chosen) if node == here else settled_batch(take_batch(held, chosen)))
            for node, chosen in parts
        ]

    def _rows(self, batch: Batch) -> list[torch.Tensor]:
        """The rows that go to each node."""
        exchange, nodes = self._exchange, len(self._peers.nodes)
        if exchange.kind is ExchangeKind.DEAL:
            return list(torch.arange(batch.length).tensor_split(nodes))
        if self._ranges is not None:
            return self._ranges.rows(batch, nodes)
        hashes = hash_rows([batch.columns[key] for key in exchange.keys], batch.length)
        if not exchange.heavy:
            return rows_by_node(hashes, nodes)
        light, heavy = without_heavy(hashes, exchange.heavy)
        parts = [light.index_select(0, rows) for rows in rows_by_node(hashes.index_select(0, light), nodes)]
        if exchange.heavy_rows is HeavyRows.EVERYWHERE:
            return [torch.cat((rows, heavy)) for rows in parts]
        if exchange.only_coordinator:
            return [torch.cat(both) for both in zip(parts, heavy.tensor_split(nodes), strict=True)]
        parts[self._peers.here] = torch.cat((parts[self._peers.here], heavy))
        return parts

    @asynccontextmanager
    async def _open_streams(self) -> AsyncIterator[dict[int, OutgoingStream]]:
        streams: dict[int, OutgoingStream] = {}
        with await self._ctx.memory.reserve(0, tier=Tier.HOST) as reservation:

            def note_kept() -> None:
                """A dictionary that goes to several nodes is there once."""
                kept = {each: nbytes for stream in streams.values() for each, nbytes in stream.dictionaries.items()}
                reservation.resize_nowait(sum(kept.values()))

            async with asyncio.TaskGroup() as tasks:
                for node in self._receivers:
                    streams[node] = OutgoingStream(self._ctx, self._peers, self._name, node, kept=note_kept)
                    tasks.create_task(streams[node].send_all())
                yield streams
