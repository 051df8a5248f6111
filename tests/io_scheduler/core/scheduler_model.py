"""A second opinion on the scheduler's core: plays devices, consumers and clock, and keeps books from events and orders.

It knows the contract (events, actions) and nothing of how the core is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
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
    PlanCancelled,
    PlanClosed,
    PlanOpened,
    PoolOpened,
    PriorityChanged,
    StartChunk,
    TimePassed,
    TransfersBoosted,
    TransfersSubmitted,
    WriteOffChunks,
)
from pystachio.io_scheduler.core.policy import Policy
from pystachio.io_scheduler.core.request import CreditPool, Extent, Link, LinkLimits, PriorityClass, Transfer
from pystachio.io_scheduler.core.scheduler import Scheduler

STALLED_SECONDS = 1.0
"""A chunk that has been inside for longer may have been set aside: it does not count in the window any more."""


@dataclass(slots=True, eq=False)
class Account:
    """One transfer. `inside` maps offsets to lengths and starts, `arrived` and `failed` to lengths."""

    transfer: Transfer
    inside: dict[int, tuple[int, float]] = field(default_factory=dict)
    arrived: dict[int, int] = field(default_factory=dict)
    failed: dict[int, int] = field(default_factory=dict)
    delivered: set[int] = field(default_factory=set)
    attempts: Counter[int] = field(default_factory=Counter)
    given_up: bool = False
    boosters: set[str] = field(default_factory=set)

    @property
    def has_started(self) -> bool:
        return bool(self.inside or self.arrived or self.failed)

    def unstarted_bytes(self) -> int:
        lengths = [length for length, _ in self.inside.values()]
        return self.transfer.extent.length - sum((*lengths, *self.arrived.values(), *self.failed.values()))

    def credit(self) -> int:
        """Bytes of its pool that are the transfer's own, not yet its consumer's."""
        if self.transfer.credit is None:
            return 0
        if not self.transfer.by_chunk:
            return self.transfer.extent.length if self.has_started else 0
        chunks = {offset: length for offset, (length, _) in self.inside.items()} | self.failed | self.arrived
        return sum(length for offset, length in chunks.items() if offset not in self.delivered)


@dataclass(slots=True, eq=False)
class Held:
    """Bytes that a consumer has and must release."""

    pool: CreditPool
    nbytes: int
    plan_id: str


class World:
    """Tell it what happens with `tell`; it obeys the orders and raises AssertionError when they are wrong."""

    def __init__(self, policy: Policy) -> None:
        self.scheduler = Scheduler(policy)
        self.policy = policy
        self.clock = 0.0
        """What the shell's clock shows; it may jump."""
        self.elapsed = 0.0
        """At least what the scheduler takes for time passed, whatever the clock does."""
        self.limits: dict[Link, LinkLimits] = {}
        self.pools: dict[CreditPool, int] = {}
        self.plans: dict[str, PriorityClass] = {}
        self.cancelled: set[str] = set()
        self.accounts: dict[int, Account] = {}
        self.ended: dict[int, PystachioError | None] = {}
        self.written_off: dict[tuple[int, int], tuple[Transfer, int]] = {}
        self.consumers: list[Held] = []

    # What happens

    def tell(self, event: Event) -> list[Action]:
        actions = self.scheduler.handle(event, self.clock)
        self._note(event)
        for action in actions:
            self._obey(action)
        self.scheduler.check_invariants()
        statistics = self.scheduler.statistics()
        assert statistics.transfers == len(self.accounts)
        for pool in statistics.pools:
            assert pool.used_bytes == self.used(pool.pool), f"the core's books of {pool.pool}"
        return actions

    def open_link(self, link: Link, limits: LinkLimits) -> None:
        self.limits[link] = limits
        self.tell(LinkOpened(link, limits))

    def open_pool(self, pool: CreditPool, nbytes: int) -> None:
        self.pools[pool] = nbytes
        self.tell(PoolOpened(pool, nbytes))

    def open_plan(
        self, plan_id: str, priority: PriorityClass, weight: float = 1.0, deadline: float | None = None
    ) -> None:
        if plan_id not in self.plans:
            self.plans[plan_id] = priority
            self.tell(PlanOpened(plan_id, priority, weight, deadline))

    def submit(self, transfers: Iterable[Transfer]) -> list[Action]:
        return self.tell(TransfersSubmitted(tuple(transfers)))

    def end_chunk(self, transfer_id: int, offset: int, error: PystachioError | None = None) -> list[Action]:
        if error is None:
            return self.tell(ChunksCompleted(((transfer_id, offset),)))
        return self.tell(ChunkFailed(transfer_id, offset, error))

    def end_chunks(self, chunks: Iterable[tuple[int, int]]) -> list[Action]:
        return self.tell(ChunksCompleted(tuple(chunks)))

    def release(self, position: int, *, named: bool = True) -> None:
        held = self.consumers.pop(position)
        self.tell(CreditReleased(held.pool, held.nbytes, held.plan_id if named else None))

    def advance(self, seconds: float, jump: float = 0.0) -> None:
        """Time passes, and the shell sends TimePassed whenever it is due. `jump` is what the clock leaps besides."""
        end = self.clock + seconds
        for _ in range(10_000):
            wake = self.scheduler.next_wake()
            if wake is None or wake > end:
                break
            self.elapsed += max(0.0, wake - self.clock)
            self.clock = max(self.clock, wake)
            self.tell(TimePassed())
        else:
            raise AssertionError("the scheduler asks to be woken for ever")
        self.elapsed += end - self.clock + (STALLED_SECONDS if jump else 0.0) + max(0.0, jump)
        self.clock = end + jump
        self.tell(TimePassed())

    def inside(self) -> list[tuple[int, int]]:
        """Chunks that devices have, also those that were written off."""
        chunks = [(number, offset) for number, account in self.accounts.items() for offset in account.inside]
        return sorted((*chunks, *self.written_off))

    def finish(self) -> None:
        """Devices end what they have, consumers read, time passes: everything must end."""
        for _ in range(100_000):
            chunks = self.inside()
            if chunks:
                self.end_chunk(*chunks[0])
            elif self.consumers:
                self.release(0)
            elif self.scheduler.next_wake() is not None and self.accounts:
                self.advance(0.05)
            else:
                break
        assert not self.accounts, f"deadlock: {list(self.accounts.values())[:3]}"
        assert not self.consumers
        statistics = self.scheduler.statistics()
        assert all(pool.used_bytes == 0 for pool in statistics.pools)
        assert all(link.outstanding_bytes == link.waiting_transfers == 0 for link in statistics.links)
        assert all(link.written_off_bytes == link.parked_transfers == 0 for link in statistics.links)
        assert self.scheduler.next_wake() is None or statistics.lease is not None

    # The books

    def used(self, pool: CreditPool) -> int:
        """Bytes of the pool that transfers and consumers have, or devices that do not let go of them."""
        own = sum(account.credit() for account in self.accounts.values() if account.transfer.credit == pool)
        consumers = sum(held.nbytes for held in self.consumers if held.pool == pool)
        lost = sum(length for transfer, length in self.written_off.values() if transfer.credit == pool)
        return own + consumers + lost

    def urgency(self, account: Account) -> PriorityClass:
        plans = (account.transfer.plan_id, *account.boosters)
        return min(self.plans[plan_id] for plan_id in plans if plan_id in self.plans)

    def _note(self, event: Event) -> None:
        match event:
            case TransfersSubmitted(transfers):
                for transfer in transfers:
                    self.accounts[transfer.transfer_id] = Account(transfer)
            case ChunksCompleted(chunks):
                for transfer_id, offset in chunks:
                    self._note_end(transfer_id, offset, failed=False)
            case ChunkFailed(transfer_id, offset, _):
                self._note_end(transfer_id, offset, failed=True)
            case PriorityChanged(plan_id, priority):
                if plan_id in self.plans:
                    self.plans[plan_id] = priority
            case PlanClosed(plan_id):
                self.plans.pop(plan_id, None)
                self.cancelled.discard(plan_id)
                self._forget_booster(plan_id)
            case PlanCancelled(plan_id):
                if plan_id in self.plans:
                    self.cancelled.add(plan_id)
                self._forget_booster(plan_id)
            case TransfersBoosted(transfer_ids, plan_id):
                if plan_id in self.plans and plan_id not in self.cancelled:
                    for transfer_id in transfer_ids:
                        if transfer_id in self.accounts:
                            self.accounts[transfer_id].boosters.add(plan_id)
            case _:
                pass

    def _note_end(self, transfer_id: int, offset: int, *, failed: bool) -> None:
        if self.written_off.pop((transfer_id, offset), None) is None:
            account = self.accounts[transfer_id]
            length, _ = account.inside.pop(offset)
            (account.failed if failed else account.arrived)[offset] = length

    def _forget_booster(self, plan_id: str) -> None:
        for account in self.accounts.values():
            account.boosters.discard(plan_id)

    def _obey(self, action: Action) -> None:
        transfer_id = action.transfer_id
        assert transfer_id not in self.ended, "nothing is ordered for a transfer that has ended"
        account = self.accounts[transfer_id]
        transfer = account.transfer
        match action:
            case StartChunk(_, chunk, queue_seconds):
                assert queue_seconds >= 0.0
                self._start(account, chunk)
            case DeliverChunk(_, chunk):
                assert transfer.by_chunk
                assert account.arrived[chunk.offset] == chunk.length, "what is delivered has arrived"
                assert chunk.offset not in account.delivered
                account.delivered.add(chunk.offset)
                if transfer.credit is not None:
                    self.consumers.append(Held(transfer.credit, chunk.length, transfer.plan_id))
            case CompleteTransfer():
                self._complete(account)
            case FailTransfer(_, error):
                assert not account.inside, "a transfer fails only when no device touches its destination"
                self._end(transfer_id, error)
            case CancelChunks(_, offsets):
                assert set(offsets) == set(account.inside), "all that is inside is cancelled"
                account.given_up = True
            case WriteOffChunks(_, offsets):
                assert set(offsets) == set(account.inside)
                assert account.given_up, "chunks are cancelled before they are written off"
                for offset in offsets:
                    self.written_off[transfer_id, offset] = (transfer, account.inside.pop(offset)[0])
            case _:
                assert_never(action)

    def _start(self, account: Account, chunk: Extent) -> None:
        transfer, extent = account.transfer, account.transfer.extent
        assert not account.given_up
        assert chunk.length > 0
        assert extent.offset <= chunk.offset < chunk.end <= extent.end
        again = account.failed.pop(chunk.offset, None)
        assert again in (None, chunk.length), "a chunk that failed is tried again as it was"
        inside = [(offset, length) for offset, (length, _) in account.inside.items()]
        for offset, length in (*inside, *account.arrived.items(), *account.failed.items()):
            assert chunk.end <= offset or offset + length <= chunk.offset, "no byte is moved twice"
        account.attempts[chunk.offset] += 1
        assert account.attempts[chunk.offset] <= self.limits[transfer.link].attempts
        self._check_urgency(account)
        account.inside[chunk.offset] = (chunk.length, self.elapsed)
        self._check_room(account, chunk, is_new=again is None)

    def _check_room(self, account: Account, chunk: Extent, *, is_new: bool) -> None:
        transfer = account.transfer
        for link in {transfer.link, transfer.through or transfer.link}:
            self._check_window(link, chunk.length)
        most = self.limits[transfer.link].peer_bytes
        if transfer.peer is not None and most is not None:
            chunks = self._chunks(lambda other: (other.link, other.peer) == (transfer.link, transfer.peer))
            assert sum(length for length, _ in chunks) <= max(most, chunk.length), "the cap of a peer holds"
        if transfer.credit is not None and is_new and (transfer.by_chunk or len(account.attempts) == 1):
            used = self.used(transfer.credit)
            assert used <= self.pools[transfer.credit], f"{used} bytes of {transfer.credit}"

    def _check_window(self, link: Link, length: int) -> None:
        limits = self.limits[link]
        if limits.calibrated and self.policy.window_bytes is None:
            # It may have been calibrated anew since.
            window = 1 << 40
        else:
            window = self.policy.window_bytes or limits.window_bytes
        chunks = self._chunks(lambda other: link in (other.link, other.through))
        inside = sum(length for length, started in chunks if self.elapsed - started < STALLED_SECONDS - 1e-6)
        assert inside <= max(window + limits.urgent_bytes, length), f"{inside} bytes are inside {link}"

    def _chunks(self, wanted: Callable[[Transfer], bool]) -> list[tuple[int, float]]:
        accounts = [account for account in self.accounts.values() if wanted(account.transfer)]
        return [chunk for account in accounts for chunk in account.inside.values()]

    def _check_urgency(self, started: Account) -> None:
        """Strict between classes, where nothing is reserved for lower ones and nobody was set back by his age."""
        if any(self.policy.reservations) or not self.policy.classes:
            return
        mine = self.urgency(started)
        for other in self.accounts.values():
            transfer = other.transfer
            if transfer.link != started.transfer.link or other.given_up or not other.unstarted_bytes():
                continue
            if transfer.plan_id not in self.plans or transfer.write_back or started.transfer.write_back:
                continue
            if transfer.credit is None and transfer.through is None and transfer.peer is None:
                assert mine <= self.urgency(other), "a more urgent transfer that lacked nothing was passed over"

    def _complete(self, account: Account) -> None:
        transfer = account.transfer
        position = transfer.extent.offset
        for offset, length in sorted(account.arrived.items()):
            assert offset == position, "no byte is missing or doubled"
            position += length
        assert position == transfer.extent.end
        if transfer.by_chunk:
            assert account.delivered == set(account.arrived), "every chunk was delivered"
        elif transfer.credit is not None and transfer.extent.length:
            self.consumers.append(Held(transfer.credit, transfer.extent.length, transfer.plan_id))
        self._end(transfer.transfer_id, None)

    def _end(self, transfer_id: int, error: PystachioError | None) -> None:
        self.ended[transfer_id] = error
        del self.accounts[transfer_id]
