"""What an exchange sends to one node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, pairwise
from typing import Final

from pystachio.errors import Cancelled
from pystachio.operators.batch import Batch, column_nbytes
from pystachio.operators.column import Column, Dictionary, ViewColumn
from pystachio.operators.exchanges.writer import BlockWriter
from pystachio.operators.kernels.selection import concat_batches
from pystachio.operators.placement import batch_on_host
from pystachio.runtime.context import Context
from pystachio.runtime.memory import Reservation
from pystachio.runtime.peers import PlanPeers

BLOCK_BYTES: Final = 4 << 20
"""Rows for one node are sent once there are so many bytes of them."""
SMALL_BLOCK_BYTES: Final = 256 << 10
"""The same while nothing is on its way to the node."""
BLOCKS_ON_THEIR_WAY: Final = 2
"""To each node, and the empty one: the second is offered before the first has arrived."""
_EMPTY: Final = memoryview(b"")


class OutgoingStream:
    """The rows for one node, collected to blocks: small ones while the way to the node is free, so that it is used from
    the first rows on, and large ones behind what is on its way."""

    def __init__(
        self, ctx: Context, peers: PlanPeers, name: str, node: int, *, kept: Callable[[], None] = lambda: None
    ) -> None:
        """`kept` is called when the `dictionaries` that the stream keeps may have changed."""
        self.is_wanted = True
        self.dictionaries: dict[Dictionary, int] = {}
        self._kept = kept
        self._ctx = ctx
        self._peers = peers
        self._name = name
        self._node = node
        self._writer = BlockWriter()
        self._waiting: list[Batch] = []
        self._waiting_bytes = 0
        self._is_finished = False
        self._on_their_way = 0
        self._changed = asyncio.Event()

    async def take(self, batch: Batch) -> None:
        """Waits while there are rows for a large block already."""
        if not batch.length:
            return
        while self._waiting_bytes >= BLOCK_BYTES and self.is_wanted:
            await self._change()
        if self.is_wanted:
            self._waiting.append(batch)
            self._waiting_bytes += sum(map(_sent_bytes, batch.columns))
            self._changed.set()

    def finish(self) -> None:
        """No more rows come."""
        self._is_finished = True
        self._changed.set()

    async def send_all(self) -> None:
        """What is taken, until `finish`; nothing more once the receiver wants no more."""
        numbers = count()
        async with asyncio.TaskGroup() as sending:
            while (batches := await self._next_rows()) and self.is_wanted:
                whole = await self._ctx.stream.run(self._together, batches)
                del batches
                for rows in await self._ctx.stream.run(self._cut, whole):
                    while self._on_their_way >= BLOCKS_ON_THEIR_WAY:
                        await self._change()
                    block, reservation = await self._make_block(whole, rows)
                    self._on_their_way += 1
                    # Not in the task: one that is cancelled before its first step does nothing at all.
                    sent = sending.create_task(self._send_block(next(numbers), block))
                    sent.add_done_callback(partial(_release, reservation))
                    del block, reservation, sent
            if self.is_wanted:
                await self._send(next(numbers), _EMPTY)

    async def _next_rows(self) -> list[Batch]:
        """Those of the next block, when it may be made; none when there are no more."""
        while self.is_wanted and not self._may_go():
            await self._change()
        batches, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._changed.set()
        return batches

    def _may_go(self) -> bool:
        if self._on_their_way >= BLOCKS_ON_THEIR_WAY:
            return False
        return self._is_finished or self._waiting_bytes >= (BLOCK_BYTES if self._on_their_way else SMALL_BLOCK_BYTES)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _together(self, batches: Sequence[Batch]) -> Batch:
        return batch_on_host(batches[0] if len(batches) == 1 else concat_batches(batches))

    def _cut(self, whole: Batch) -> list[slice]:
        """Blocks of about equal size, if it is much."""
        blocks = max(1, round(self._writer.size(whole) / BLOCK_BYTES))
        return [slice(*edges) for edges in pairwise(whole.length * number // blocks for number in range(blocks + 1))]

    async def _make_block(self, whole: Batch, rows: slice) -> tuple[memoryview, Reservation]:
        # On a worker too: codes of large dictionaries are looked through.
        nbytes = await self._ctx.stream.run(self._writer.size, whole, rows)
        reservation = await self._ctx.memory.reserve(nbytes, transient=True)
        try:
            block = await self._ctx.stream.run(self._writer.write, whole, rows)
            self.dictionaries = self._writer.dictionaries
            self._kept()
            return block, reservation
        except BaseException:
            reservation.release()
            raise

    async def _send_block(self, number: int, block: memoryview) -> None:
        if self.is_wanted:
            await self._send(number, block)
            self._ctx.metrics.count("bytes sent", len(block))
        self._on_their_way -= 1
        self._changed.set()

    async def _send(self, number: int, block: memoryview) -> None:
        try:
            await self._peers.send(self._node, self._name, number, block)
        except Cancelled:
            # The receiver has all it wants, or its part of the plan has ended: whoever knows why tells the plan.
            self.is_wanted = False
            self._changed.set()


def _release(reservation: Reservation, _: asyncio.Task[None]) -> None:
    reservation.release()


def _sent_bytes(column: Column) -> int:
    """About what the column takes in a block: of views the texts, not all that they keep alive."""
    return column.views.nbytes // 2 + column.text_bytes if isinstance(column, ViewColumn) else column_nbytes(column)
