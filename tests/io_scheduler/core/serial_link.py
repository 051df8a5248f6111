"""A scheduler's core with one link, whose device works chunks off one after another at a steady rate."""

from __future__ import annotations

from collections import Counter, deque

from pystachio.io_scheduler.core.events import (
    Action,
    ChunksCompleted,
    CompleteTransfer,
    Event,
    LinkOpened,
    PlanOpened,
    StartChunk,
    TimePassed,
    TransfersSubmitted,
)
from pystachio.io_scheduler.core.policy import POLICIES, Policy
from pystachio.io_scheduler.core.request import Extent, Link, LinkLimits, PriorityClass, Transfer
from pystachio.io_scheduler.core.scheduler import Scheduler

DISK = Link("disk", "1:0")
CHUNK = 1000


class SerialLink:
    """A chunk of `CHUNK` bytes takes `chunk_seconds`; `chunks` of them may be inside the device.

    `order` is the plans whose chunks were started, `moved` how many bytes of each plan the device has ended.
    """

    def __init__(
        self,
        policy: Policy = POLICIES["pystachio"],
        *,
        chunks: int = 2,
        chunk_seconds: float = 0.001,
        urgent_bytes: int = 0,
        peer_bytes: int | None = None,
    ) -> None:
        self.scheduler = Scheduler(policy)
        self.chunk_seconds = chunk_seconds
        self.now = 0.0
        self.inside: deque[StartChunk] = deque()
        self.transfers: dict[int, Transfer] = {}
        self.endless: set[int] = set()
        self.order: list[str] = []
        self.started: list[Transfer] = []
        self.moved: Counter[str] = Counter()
        self.moved_by_peer: Counter[str | None] = Counter()
        self.ended_at: dict[int, float] = {}
        limits = LinkLimits(
            chunk_bytes=CHUNK,
            window_bytes=chunks * CHUNK,
            calibrated=False,
            smallest_chunk_bytes=CHUNK,
            urgent_bytes=urgent_bytes,
            peer_bytes=peer_bytes,
        )
        self.tell(LinkOpened(DISK, limits))

    def tell(self, event: Event) -> list[Action]:
        actions = self.scheduler.handle(event, self.now)
        self.scheduler.check_invariants()
        for action in actions:
            if isinstance(action, StartChunk):
                self.inside.append(action)
                self.order.append(self.transfers[action.transfer_id].plan_id)
                self.started.append(self.transfers[action.transfer_id])
        for action in actions:
            if isinstance(action, CompleteTransfer):
                self.ended_at[action.transfer_id] = self.now
                if action.transfer_id in self.endless:
                    self.endless.remove(action.transfer_id)
                    self._submit(self.transfers[action.transfer_id], endless=True)
        return actions

    def plan(
        self, plan_id: str, priority: PriorityClass, *, weight: float = 1.0, deadline: float | None = None
    ) -> None:
        self.tell(PlanOpened(plan_id, priority, weight, deadline))

    def submit(
        self,
        plan_id: str,
        nbytes: int = CHUNK,
        *,
        criticality: int = 0,
        write_back: bool = False,
        peer: str | None = None,
        rank: int = 0,
        endless: bool = False,
    ) -> int:
        """The transfer's number. An `endless` one is submitted again whenever it is complete."""
        transfer = Transfer(
            0, plan_id, DISK, Extent(0, nbytes), criticality, write_back=write_back, peer=peer, rank=rank
        )
        return self._submit(transfer, endless=endless)

    def keep(self, plan_id: str, *, write_back: bool = False, peer: str | None = None, rank: int = 0) -> None:
        """Something of the plan waits at any time."""
        for _ in range(2):
            self.submit(plan_id, 10 * CHUNK, write_back=write_back, peer=peer, rank=rank, endless=True)

    def submit_together(self, *transfers: tuple[str, int]) -> None:
        """Transfers of (plan, bytes) in one event."""
        numbered = []
        for plan_id, nbytes in transfers:
            numbered.append(Transfer(len(self.transfers), plan_id, DISK, Extent(0, nbytes)))
            self.transfers[len(self.transfers)] = numbered[-1]
        self.tell(TransfersSubmitted(tuple(numbered)))

    def run(self, seconds: float) -> Counter[str]:
        """Bytes of each plan that the device ends meanwhile."""
        before = self.moved.copy()
        end = self.now + seconds - self.chunk_seconds / 2
        while self.now < end:
            self.step()
        return self.moved - before

    def drain(self) -> list[str]:
        """The plans of the chunks that are started until nothing is left."""
        before = len(self.order)
        while self.inside:
            self.step()
        return self.order[before:]

    def step(self) -> None:
        """The device ends its oldest chunk."""
        seconds = self.chunk_seconds
        if self.inside:
            seconds *= self.inside[0].chunk.length / CHUNK
        self.now += seconds
        wake = self.scheduler.next_wake()
        if wake is not None and wake <= self.now:
            self.tell(TimePassed())
        if self.inside:
            chunk = self.inside.popleft()
            transfer = self.transfers[chunk.transfer_id]
            self.moved[transfer.plan_id] += chunk.chunk.length
            self.moved_by_peer[transfer.peer] += chunk.chunk.length
            self.tell(ChunksCompleted(((chunk.transfer_id, chunk.chunk.offset),)))

    def _submit(self, transfer: Transfer, *, endless: bool) -> int:
        number = len(self.transfers)
        self.transfers[number] = transfer._replace(transfer_id=number)
        if endless:
            self.endless.add(number)
        self.tell(TransfersSubmitted((self.transfers[number],)))
        return number
