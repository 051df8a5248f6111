"""One node: the scheduler that production runs, and simulated devices that do what it orders."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import assert_never

from pystachio.errors import PystachioError
from pystachio.io_scheduler.core.events import (
    Action,
    CancelChunks,
    ChunkFailed,
    ChunksCompleted,
    CompleteTransfer,
    CreditReleased,
    DeliverChunk,
    Event,
    FailTransfer,
    LinkOpened,
    PoolOpened,
    StartChunk,
    TimePassed,
    TransfersSubmitted,
    WriteOffChunks,
)
from pystachio.io_scheduler.core.policy import Policy
from pystachio.io_scheduler.core.request import CreditPool, Extent, Link, LinkLimits
from pystachio.io_scheduler.core.scheduler import Scheduler
from pystachio.io_scheduler.simulation.audit import Audit
from pystachio.io_scheduler.simulation.devices import ChunkServer
from pystachio.io_scheduler.simulation.transfer import SimulatedTransfer
from pystachio.io_scheduler.simulation.virtual_time import Kind, VirtualTime

_LATE_SECONDS = 1e-9
"""Nobody is woken early: sums of the core's steady clock are rounded."""


class SimulatedNode:
    """`tell` gives the core an event and does what it orders. With an `audit` the books are checked every time."""

    def __init__(
        self, index: int, time: VirtualTime, policy: Policy, audit: Audit | None, sweep_seconds: float = 0.0
    ) -> None:
        """Chunks that devices have ended are noticed every `sweep_seconds`, together; 0: each at once."""
        self.index = index
        self._sweep_seconds = sweep_seconds
        self._ended: list[tuple[int, int]] = []
        self.scheduler = Scheduler(policy=policy)
        self.transfers: dict[int, SimulatedTransfer] = {}
        self.chunks = 0
        self.observe: Callable[[Event, Sequence[Action], float], None] | None = None
        """Sees every event and what was ordered because of it."""
        self._time = time
        self._audit = audit
        self._servers: dict[Link, ChunkServer] = {}
        self._inbox: deque[Event] = deque()
        self._is_telling = False
        self._wakes_at = float("inf")

    def open_link(self, link: Link, limits: LinkLimits, server: ChunkServer) -> None:
        self._servers[link] = server
        self.tell(LinkOpened(link, limits))

    def open_pool(self, pool: CreditPool, nbytes: int) -> None:
        if self._audit is not None:
            self._audit.open_pool(pool, nbytes)
        self.tell(PoolOpened(pool, nbytes))

    def server(self, link: Link) -> ChunkServer:
        return self._servers[link]

    def submit(self, *transfers: SimulatedTransfer) -> None:
        for transfer in transfers:
            transfer.node = self
            self.transfers[transfer.transfer.transfer_id] = transfer
        self.tell(TransfersSubmitted(tuple(transfer.transfer for transfer in transfers)))

    def release(self, pool: CreditPool | None, length: int, plan_id: str) -> None:
        """A later stage, or the consumer, has taken over or dropped these bytes of the plan."""
        if pool is not None:
            self.tell(CreditReleased(pool, length, plan_id))

    def end_chunk(self, transfer: SimulatedTransfer, chunk: Extent, error: PystachioError | None) -> None:
        """A server is done with the chunk."""
        transfer_id = transfer.transfer.transfer_id
        if error is None and not self._sweep_seconds:
            self.tell(ChunksCompleted(((transfer_id, chunk.offset),)))
        elif error is None:
            if not self._ended:
                sweep = (self._time.now // self._sweep_seconds + 1) * self._sweep_seconds
                self._time.at(sweep, Kind.DEVICE, self.index, self._sweep, None)
            self._ended.append((transfer_id, chunk.offset))
        else:
            self.tell(ChunkFailed(transfer_id, chunk.offset, error))

    def _sweep(self, _: None) -> None:
        ended, self._ended = tuple(self._ended), []
        self.tell(ChunksCompleted(ended))

    def tell(self, event: Event) -> None:
        """What the orders cause at once is told afterwards, in order."""
        if self._is_telling:
            self._inbox.append(event)
            return
        self._is_telling = True
        try:
            self._handle(event)
            while self._inbox:
                self._handle(self._inbox.popleft())
        finally:
            self._is_telling = False
        wake = self.scheduler.next_wake()
        if wake is not None and wake + _LATE_SECONDS < self._wakes_at:
            self._wakes_at = max(wake, self._time.now) + _LATE_SECONDS
            self._time.at(self._wakes_at, Kind.WAKE, self.index, self._wake, self._wakes_at)

    def _wake(self, due: float) -> None:
        if due != self._wakes_at:
            # An earlier one was asked for meanwhile.
            return
        self._wakes_at = float("inf")
        self.tell(TimePassed())

    def _handle(self, event: Event) -> None:
        actions = self.scheduler.handle(event, self._time.now)
        if self._audit is not None:
            self._audit.note(event, actions, self._time.now)
            self.scheduler.check_invariants()
        if self.observe is not None:
            self.observe(event, actions, self._time.now)
        for action in actions:
            match action:
                case StartChunk(transfer_id, chunk):
                    transfer = self.transfers[transfer_id]
                    self.chunks += 1
                    self._servers[transfer.transfer.link].start(transfer, chunk)
                case CompleteTransfer(transfer_id):
                    transfer = self.transfers.pop(transfer_id)
                    transfer.ended(transfer, None)
                case DeliverChunk(transfer_id, chunk):
                    transfer = self.transfers[transfer_id]
                    if transfer.delivered is not None:
                        transfer.delivered(transfer, chunk)
                case FailTransfer(transfer_id, error):
                    transfer = self.transfers.pop(transfer_id)
                    transfer.ended(transfer, error)
                case CancelChunks(transfer_id, offsets):
                    transfer = self.transfers[transfer_id]
                    # Those that have ended unnoticed are nobody's to cancel.
                    inside = tuple(offset for offset in offsets if (transfer_id, offset) not in self._ended)
                    self._servers[transfer.transfer.link].cancel(transfer, inside)
                case WriteOffChunks():
                    pass
                case _:
                    assert_never(action)
