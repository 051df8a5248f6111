"""The asyncio shell around the core: takes submissions, drives devices, keeps the ledger and the history.

Everything runs on one event loop, in callbacks. What clients ask during one turn of the loop reaches the core together,
and before the chunks that devices have ended meanwhile: an urgent transfer never misses a place that was just freed.
A turn takes so much of each plan and no more, however much there is: whoever comes meanwhile has the next one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from pystachio.errors import Cancelled, InternalError, InvalidRequest, PystachioError
from pystachio.io_scheduler.activity import IoActivity, link_use
from pystachio.io_scheduler.buffers import BufferPool, BufferStatistics
from pystachio.io_scheduler.client import TransferClient
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
    LeaseGranted,
    LinkOpened,
    PlanCancelled,
    PlanClosed,
    PlanOpened,
    PoolOpened,
    PriorityChanged,
    SchedulerStatistics,
    StartChunk,
    TimePassed,
    TransfersBoosted,
    TransfersCancelled,
    TransfersSubmitted,
    WriteOffChunks,
)
from pystachio.io_scheduler.core.policy import POLICIES, Policy
from pystachio.io_scheduler.core.request import (
    CreditPool,
    Direction,
    Lease,
    Link,
    PriorityClass,
    Transfer,
)
from pystachio.io_scheduler.core.scheduler import Scheduler
from pystachio.io_scheduler.devices import ChunkEnd, Device, FileSeries, OpenDevice, choose
from pystachio.io_scheduler.history import History, WindowRecord
from pystachio.io_scheduler.ledger import Ledger
from pystachio.io_scheduler.links import Links, Locate, OpenFiles, locate_disk
from pystachio.io_scheduler.submission import Request, Submission
from pystachio.io_scheduler.under_way import UnderWay

_TRANSFERS_PER_TURN = 512
"""Taken in one turn, by all plans together but a few of each; about 2 ms."""
_LEAST_PER_PLAN = 16
_CHUNKS_PER_TURN = 256
"""Ended in one turn; about 2 ms."""
_TIMER_SLACK_SECONDS = 0.001
"""Loops round, uvloop to milliseconds: a timer that rings a little early would be set again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IoSchedulerStatistics:
    """`plans`, `transfers`, `chunks` (inside devices) and `open_files` are zero when nothing is under way.

    `written_off` chunks were given up after their time-out, and their devices still hold their memory.
    """

    plans: int
    transfers: int
    chunks: int
    written_off: int
    open_files: int
    core: SchedulerStatistics
    buffers: BufferStatistics


class IoSchedulerService:
    """Owns the devices of a node; `open_device` makes the one for a link, `locate` names the link of a file.

    Apart from the constructor, everything is called on the loop that `start` ran on.
    """

    def __init__(
        self,
        *,
        open_device: OpenDevice | None = None,
        locate: Locate = locate_disk,
        buffers: BufferPool | None = None,
        clock: Callable[[], float] = time.monotonic,
        policy: Policy = POLICIES["pystachio"],
        history: History | None = None,
    ) -> None:
        """`clock` must be that of the loop's timers, `loop.time`, up to a constant."""
        self.ledger = Ledger()
        self.buffers = buffers if buffers is not None else BufferPool()
        self.history = history if history is not None else History()
        self._links = Links(locate, open_device if open_device is not None else choose())
        self._files = OpenFiles(self._links)
        self._clock = clock
        self._policy = policy
        self._core = Scheduler(policy)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._priorities: dict[str, PriorityClass] = {}
        self._under_way = UnderWay(
            files=self._files,
            ledger=self.ledger,
            history=self.history,
            buffers=self.buffers,
            priorities=self._priorities,
            ended=self._wake,
        )
        self._events: list[Event] = []
        self._submitted: dict[str, deque[Transfer]] = {}
        """By plan: what the core has not been told of."""
        self._turn_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._windows: dict[Link, int] = {}
        # Written by the devices' threads.
        self._ended: deque[tuple[int, int, ChunkEnd]] = deque()
        self._loop_is_woken = False
        self._thread: int | None = None
        self._drained: asyncio.Event = asyncio.Event()
        self._drained.set()
        self._failure: InternalError | None = None

    async def start(self) -> None:
        assert self._loop is None, "the service is started once"
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    async def stop(self) -> None:
        """Cancel what is under way, wait until no device works any more, release threads and idle memory.

        Devices that hold on to chunks that were written off are not waited for.
        """
        for plan_id in tuple(self._priorities):
            self.close_plan(plan_id)
        await self._drained.wait()
        self._turn()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        stuck = self._under_way.stuck_links()
        if not stuck:
            self._files.close()
        self._links.close(stuck=stuck)
        self._core = Scheduler(self._policy)
        self._loop = None
        self.buffers.close()

    def client(
        self, plan_id: str, priority: PriorityClass, *, deadline: float | None = None, weight: float = 1.0
    ) -> TransferClient:
        """Open the plan; its clients work until `close_plan`. `deadline` in seconds of the service's clock."""
        if plan_id not in self._priorities:
            self._priorities[plan_id] = priority
            self._note(PlanOpened(plan_id, priority, weight, deadline))
        return TransferClient(self, plan_id)

    def close_plan(self, plan_id: str) -> None:
        """The plan submits nothing more; what it still has under way is cancelled. The ledger remembers it."""
        if self._priorities.pop(plan_id, None) is not None:
            self._tell_of(plan_id)
            self._note(PlanClosed(plan_id))
            self.ledger.close_plan(plan_id)

    def cancel_plan(self, plan_id: str) -> None:
        """Every transfer of the plan, now and later, raises Cancelled."""
        if plan_id in self._priorities:
            self._tell_of(plan_id)
            self._note(PlanCancelled(plan_id))

    def set_priority(self, plan_id: str, priority: PriorityClass, deadline: float | None = None) -> None:
        """Applies to what waits; chunks inside devices stay there. A `deadline` of None changes none."""
        if plan_id in self._priorities:
            self._priorities[plan_id] = priority
            self._note(PriorityChanged(plan_id, priority, deadline))

    def set_lease(self, lease: Lease) -> None:
        """The central service's order of plans; one that is superseded or makes no sense changes nothing."""
        self._note(LeaseGranted(lease))

    def open_pool(self, pool: CreditPool, nbytes: int) -> None:
        """Transfers may wait for credit of this pool from now on; again for another size."""
        self._note(PoolOpened(pool, nbytes))

    def release_credit(self, pool: CreditPool, nbytes: int, plan_id: str | None = None) -> None:
        """The consumer of a transfer with credit, submitted by this plan, has passed its bytes on."""
        self._note(CreditReleased(pool, nbytes, plan_id))

    def register_device(self, link: Link, device: Device) -> None:
        """Open a link that no path leads to: a network, a bus. The service closes the device.

        Raises InvalidRequest when the link is open already.
        """
        if link in self._links:
            raise InvalidRequest(f"the link is open already: {link}")
        self._links.register(link, device)
        self._note(LinkOpened(link, device.limits))

    def statistics(self) -> IoSchedulerStatistics:
        return IoSchedulerStatistics(
            plans=len(self._priorities),
            transfers=len(self._under_way.transfers),
            chunks=len(self._under_way.chunks),
            written_off=len(self._under_way.written_off),
            open_files=len(self._files),
            core=self._core.statistics(),
            buffers=self.buffers.statistics(),
        )

    def activity(self) -> IoActivity:
        """What every plan has under way on every link, and what it moved."""
        return IoActivity(
            uses=link_use(self._under_way.transfers.values(), self._under_way.chunks.values()),
            links=self._core.statistics().links,
            moved=self.ledger.links(),
            moved_by={plan_id: self.ledger.plan_links(plan_id) for plan_id in self._priorities},
        )

    def now(self) -> float:
        """Seconds of the service's clock, which deadlines are given in."""
        return self._clock()

    def known_link(self, path: str) -> Link | None:
        """The read link of a file, if it was located before."""
        return self._links.known(path)

    async def locate(self, path: str, direction: Direction = Direction.READ) -> Link:
        """The link of the file. Raises NotFound or Unauthorized the first time that the file is seen."""
        link = await self._links.locate(path, direction)
        if link not in self._links:
            self._note(LinkOpened(link, self._links.open(link).limits))
        return link

    def alignment(self, link: Link) -> int:
        return self._links.device(link).limits.alignment

    def reads_series(self, link: Link) -> bool:
        """Whether one transfer can be of several files."""
        return self._links.reads_series(link)

    def submit(
        self,
        plan_id: str,
        path: str | FileSeries,
        link: Link,
        requests: Sequence[Request],
        criticality: int = 0,
        operator: str = "",
    ) -> Submission:
        """Queue transfers of one file, or one of a series where the link reads any (`reads_series`); the submission's
        `ended` says when all of them have ended."""
        assert self._loop is not None, "the service is not running"
        device = self._links.device(link)
        submission = Submission(plan_id, path, link, device, operator, self._loop.create_future(), len(requests))
        refusal = self._refusal(plan_id)
        if refusal is not None:
            submission.remaining = 0
            submission.ended.set_exception(refusal)
        elif not requests:
            submission.ended.set_result(None)
        else:
            self._queue(submission, requests, criticality)
            self._turn_soon()
        return submission

    def abandon(self, submission: Submission) -> None:
        """Whoever waited gave up: nothing more is started, and `ended` follows once the devices are done."""
        self._tell_of(submission.plan_id)
        self._note(TransfersCancelled(submission.transfer_ids))

    def boost(self, submission: Submission, plan_id: str, criticality: int = 0) -> None:
        """The plan waits for this submission, perhaps another's: it goes on as its own if that is more urgent."""
        self._tell_of(submission.plan_id)
        self._note(TransfersBoosted(submission.transfer_ids, plan_id, criticality))

    def _refusal(self, plan_id: str) -> PystachioError | None:
        if self._failure is not None:
            return self._failure
        if plan_id not in self._priorities:
            return Cancelled("the plan is closed", plan_id=plan_id)
        return None

    def _queue(self, submission: Submission, requests: Sequence[Request], criticality: int) -> None:
        transfers = self._under_way.add(submission, requests, criticality, self._clock())
        submitted = self._submitted.get(submission.plan_id)
        if submitted is None:
            submitted = self._submitted[submission.plan_id] = deque()
        submitted.extend(transfers)
        self._drained.clear()

    def _note(self, event: Event) -> None:
        if self._failure is not None:
            return
        self._events.append(event)
        self._turn_soon()

    def _tell_of(self, plan_id: str) -> None:
        """The core must know of the plan's transfers before it hears what becomes of them."""
        submitted = self._submitted.pop(plan_id, None)
        if submitted:
            self._events.append(TransfersSubmitted(tuple(submitted)))

    def _take_submitted(self, now: float) -> None:
        """Tell the core of some transfers of every plan that has submitted any."""
        submitted = self._submitted
        most = max(_LEAST_PER_PLAN, _TRANSFERS_PER_TURN // len(submitted))
        taken: list[Transfer] = []
        for plan_id, transfers in tuple(submitted.items()):
            if len(transfers) <= most:
                taken += transfers
                del submitted[plan_id]
            else:
                taken += [transfers.popleft() for _ in range(most)]
        self._act(self._core.handle(TransfersSubmitted(tuple(taken)), now), now)

    def _turn_soon(self) -> None:
        if not self._turn_is_due and self._loop is not None:
            self._turn_is_due = True
            self._loop.call_soon(self._turn)

    def _wake(self, transfer_id: int, offset: int, end: ChunkEnd) -> None:
        """Called by devices, on any thread; one wake-up of the loop serves all chunks that end until it runs."""
        self._ended.append((transfer_id, offset, end))
        if self._loop_is_woken:
            return
        if threading.get_ident() == self._thread:
            # Networks end their chunks on the loop, which need not be woken by a system call then.
            self._turn_soon()
        else:
            self._loop_is_woken = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._turn)

    def _turn(self) -> None:
        self._turn_is_due = False
        # Chunks that end meanwhile need not wake the loop: they are looked for at the end.
        self._loop_is_woken = True
        try:
            now = self._clock()
            if self._events:
                events, self._events = self._events, []
                for event in events:
                    self._act(self._core.handle(event, now), now)
            if self._submitted:
                self._take_submitted(now)
            self._end_chunks(now)
            self._set_timer(now)
        except Exception as error:
            self._fail(error)
        self._loop_is_woken = False
        if self._ended or self._submitted:
            self._turn_soon()
        if self._under_way.is_over:
            self._drained.set()

    def _set_timer(self, now: float) -> None:
        """At most one timer is set."""
        wake = self._core.next_wake()
        if wake is None or self._loop is None:
            return
        if self._timer is not None:
            if self._timer_due <= wake:
                return
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, wake - now) + _TIMER_SLACK_SECONDS, self._tick)
        self._timer_due = wake

    def _tick(self) -> None:
        self._timer = None
        self._events.append(TimePassed())
        self._turn()
        self._note_windows(self._clock())

    def _note_windows(self, now: float) -> None:
        if self.history.enabled:
            for link, nbytes in self._core.windows():
                if self._windows.get(link) != nbytes:
                    self._windows[link] = nbytes
                    self.history.window(WindowRecord(now, link, nbytes))

    def _act(self, actions: list[Action], now: float) -> None:
        under_way = self._under_way
        for action in actions:
            # Asked before the others: matching by pattern takes as long as starting a chunk.
            if type(action) is StartChunk:
                under_way.start_chunk(action[0], action[1], action[2], now)
                continue
            match action:
                case StartChunk(transfer_id, chunk, queue_seconds):
                    under_way.start_chunk(transfer_id, chunk, queue_seconds, now)
                case CompleteTransfer(transfer_id):
                    under_way.end_transfer(transfer_id, None, now)
                case DeliverChunk(transfer_id, chunk):
                    under_way.deliver(transfer_id, chunk)
                case FailTransfer(transfer_id, error):
                    submission = under_way.end_transfer(transfer_id, error, now)
                    if submission is not None:
                        self.abandon(submission)
                case CancelChunks(transfer_id, offsets):
                    under_way.cancel_chunks(transfer_id, offsets)
                case WriteOffChunks(transfer_id, offsets):
                    under_way.write_off(transfer_id, offsets)
                case _:
                    assert_never(action)

    def _end_chunks(self, now: float) -> None:
        """Those that nothing went wrong with are told together."""
        ended, end_chunk = self._ended, self._under_way.end_chunk
        completed: list[tuple[int, int]] = []
        for _ in range(min(len(ended), _CHUNKS_PER_TURN)):
            transfer_id, offset, end = ended.popleft()
            is_news, error = end_chunk(transfer_id, offset, end, now)
            if not is_news or self._failure is not None:
                continue
            if error is None:
                completed.append((transfer_id, offset))
                continue
            self._complete_chunks(completed, now)
            completed.clear()
            self._act(self._core.handle(ChunkFailed(transfer_id, offset, error), now), now)
        self._complete_chunks(completed, now)

    def _complete_chunks(self, completed: list[tuple[int, int]], now: float) -> None:
        if completed:
            self._act(self._core.handle(ChunksCompleted(tuple(completed)), now), now)

    def _fail(self, error: Exception) -> None:
        """A defect in the scheduler: everybody who waits is told, nobody hangs, nothing more is begun."""
        self._failure = InternalError(f"the I/O scheduler failed: {error!r}")
        self._failure.__cause__ = error
        self._events.clear()
        self._submitted.clear()
        self._under_way.fail(self._failure)
        self._turn_soon()
