"""Bounded channels between tasks: by bytes and by items, several producers, several consumers, one loop."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, Protocol, TypeVar

from pystachio.errors import InternalError
from pystachio.runtime.memory import OperatorMemory, Reservation
from pystachio.runtime.metrics import OperatorMetrics
from pystachio.runtime.plan_entry import PlanEntry
from pystachio.runtime.tracing import WaitReason


class Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=Sized)

DEFAULT_CAPACITY_BYTES = 64 << 20
DEFAULT_CAPACITY_ITEMS = 16


class _Held(Generic[T]):
    """An item in the channel or in its receiver's hands, with its bytes."""

    __slots__ = ("item", "nbytes", "reservation")

    def __init__(self, item: T, nbytes: int, reservation: Reservation | None) -> None:
        self.item = item
        self.nbytes = nbytes
        self.reservation = reservation


class Channel(Generic[T]):
    """First in, first out; an item goes to one receiver.

    An empty channel always takes one item, however large and however short memory is: the item exists already, and a
    graph whose every channel can carry one item cannot deadlock over channels. Further items need room in the channel
    and in the plan's memory.

    `for_client` is a channel whose receiver is outside the plan: an item in it can move the plan. `metrics` are told
    how long senders wait for room, `unread` how long such a receiver keeps items waiting.
    """

    def __init__(
        self,
        name: str,
        *,
        capacity_bytes: int = DEFAULT_CAPACITY_BYTES,
        capacity_items: int = DEFAULT_CAPACITY_ITEMS,
        memory: OperatorMemory | None = None,
        entry: PlanEntry | None = None,
        for_client: bool = False,
        metrics: OperatorMetrics | None = None,
        unread: OperatorMetrics | None = None,
    ) -> None:
        self.name = name
        self._capacity_bytes = capacity_bytes
        self._capacity_items = capacity_items
        self._memory = memory
        self._entry = entry
        self.for_client = for_client
        self._metrics = metrics
        self._unread = unread
        self._unread_since = 0.0
        self._queue: deque[_Held[T]] = deque()
        self._held_bytes = 0
        self._held_items = 0
        self._senders: deque[tuple[T, asyncio.Future[None]]] = deque()
        self._waiting_receivers: deque[asyncio.Future[None]] = deque()
        self._receivers: set[Receiver[T]] = set()
        self._closed = False
        self.abandoned = False
        """Every receiver was closed: nobody wants what is still to come."""
        self._was_abandoned = asyncio.Event()
        self._is_drained = False
        self._drained = asyncio.Event()

    async def send(self, item: T) -> None:
        """Wait for room. An item sent to an abandoned channel is dropped."""
        if self._closed:
            raise InternalError(f"an item was sent to a closed channel: {self.name}")
        if self.abandoned:
            return
        if not self._senders and self._admit(item):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._senders.append((item, future))
        nbytes = item.nbytes
        del item
        if self._metrics is None:
            await self._wait_sent(future)
        else:
            reason = WaitReason.CLIENT if self.for_client else WaitReason.CONSUMER
            with self._metrics.waiting(reason, self.name, nbytes):
                await self._wait_sent(future)

    def receiver(self, metrics: OperatorMetrics | None = None) -> Receiver[T]:
        """One more consumer; `metrics` is told how long it waits for items."""
        receiver = Receiver(self, metrics)
        self._receivers.add(receiver)
        return receiver

    def close(self) -> None:
        """No more items: receivers end when they have taken the last one. May be called twice."""
        self._closed = True
        if not self._is_drained:
            self._wake_if_ended()

    def discard(self) -> None:
        """The plan is over: drop what is left, also what receivers hold, and let nobody wait."""
        self.close()
        for receiver in tuple(self._receivers):
            receiver.close()
        if not self.abandoned:
            self._abandon()

    async def wait_abandoned(self) -> None:
        """Until every receiver is closed."""
        await self._was_abandoned.wait()

    async def wait_drained(self) -> None:
        """After `close`: until the receivers have taken and released everything, or have gone."""
        await self._drained.wait()

    @property
    def held_bytes(self) -> int:
        """Bytes in the channel and in its receivers' hands."""
        return self._held_bytes

    async def _wait_sent(self, future: asyncio.Future[None]) -> None:
        try:
            await future
        except asyncio.CancelledError:
            self._senders = deque(waiting for waiting in self._senders if waiting[1] is not future)
            self._admit_senders()
            raise

    def _admit(self, item: T) -> bool:
        nbytes = item.nbytes
        first = self._held_items == 0
        has_room = self._held_items < self._capacity_items and self._held_bytes + nbytes <= self._capacity_bytes
        if not (first or has_room):
            return False
        reservation = None
        if self._memory is not None:
            reservation = self._memory.reserve_nowait(nbytes, transient=True, force=first)
            if reservation is None:
                return False
        self._queue.append(_Held(item, nbytes, reservation))
        self._held_items += 1
        self._held_bytes += nbytes
        self._stepped()
        if first and self.for_client:
            self._begin_unread()
        self._wake_receiver()
        return True

    def _admit_senders(self) -> None:
        while self._senders:
            item, future = self._senders[0]
            if not future.done():
                if not self._admit(item):
                    return
                future.set_result(None)
            self._senders.popleft()
        self._wake_if_ended()

    def _release(self, held: _Held[T]) -> None:
        """The receiver is done with the item."""
        self._held_items -= 1
        self._held_bytes -= held.nbytes
        if held.reservation is not None:
            held.reservation.release()
        self._stepped()
        emptied = self._held_items == 0
        if self._senders or self._closed:
            self._admit_senders()
        if emptied and self.for_client:
            self._end_unread()

    def _begin_unread(self) -> None:
        if self._unread is not None:
            self._unread_since = self._unread.clock.now()
        if self._entry is not None:
            self._entry.begin_unread()

    def _end_unread(self) -> None:
        if self._unread is not None:
            self._unread.waited(WaitReason.CLIENT, self.name, 0, self._unread_since)
        if self._entry is not None:
            self._entry.end_unread()

    def _stepped(self) -> None:
        if self._entry is not None:
            self._entry.progress += 1

    def _take_nowait(self) -> _Held[T] | None:
        if not self._queue:
            return None
        held = self._queue.popleft()
        if self._closed:
            self._wake_if_ended()
        return held

    @property
    def _ended(self) -> bool:
        return self._closed and not self._queue and not self._senders

    async def _wait_item(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting_receivers.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():
                self._wake_receiver()  # it was woken for an item that is another's now
            elif future in self._waiting_receivers:
                self._waiting_receivers.remove(future)
            raise

    def _wake_receiver(self) -> None:
        while self._waiting_receivers:
            future = self._waiting_receivers.popleft()
            if not future.done():
                future.set_result(None)
                return

    def _wake_if_ended(self) -> None:
        if self._ended:
            while self._waiting_receivers:
                self._wake_receiver()
            if self._held_items == 0 and not self._is_drained:
                self._is_drained = True
                self._drained.set()

    def _receiver_closed(self, receiver: Receiver[T]) -> None:
        self._receivers.discard(receiver)
        if not self._receivers:
            self._abandon()

    def _abandon(self) -> None:
        self.abandoned = True
        self._was_abandoned.set()
        while self._senders:
            _, future = self._senders.popleft()
            if not future.done():
                future.set_result(None)
        while self._queue:
            self._release(self._queue.popleft())
        self._wake_if_ended()
        while self._waiting_receivers:
            self._wake_receiver()


class Receiver(Generic[T]):
    """`async for item in receiver`. An item stays accounted until the next one is asked for or the receiver closes."""

    def __init__(self, channel: Channel[T], metrics: OperatorMetrics | None) -> None:
        self._channel = channel
        self._metrics = metrics
        self._held: _Held[T] | None = None
        self._closed = False

    def __aiter__(self) -> Receiver[T]:
        return self

    async def __anext__(self) -> T:
        self._release_held()
        channel = self._channel
        while not self._closed:
            self._held = channel._take_nowait()
            if self._held is not None:
                return self._held.item
            if channel._ended:
                break
            if self._metrics is None:
                await channel._wait_item()
            else:
                with self._metrics.waiting(WaitReason.INPUT, channel.name):
                    await channel._wait_item()
        raise StopAsyncIteration

    @property
    def has_ended(self) -> bool:
        """There is nothing more to come."""
        return self._channel._ended

    def close(self) -> None:
        """Nothing more is wanted. When every receiver is closed the channel is abandoned. May be called twice."""
        self._release_held()
        if not self._closed:
            self._closed = True
            self._channel._receiver_closed(self)

    def _release_held(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._channel._release(held)
