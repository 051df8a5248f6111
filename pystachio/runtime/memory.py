"""Memory budgets by tier: operators reserve before they allocate, and wait while others will release."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, Final

from pystachio.errors import ResourceExhausted
from pystachio.runtime.clock import Clock
from pystachio.runtime.hot_cache import HotCache
from pystachio.runtime.memory_pool import Account, MemoryPool, Request
from pystachio.runtime.metrics import OperatorMetrics
from pystachio.runtime.plan_entry import PlanEntry
from pystachio.runtime.tracing import Tracing, WaitReason

STALL_GRACE_SECONDS = 0.02
"""How long nothing may move before waiting counts as a deadlock: longer than any chain of coroutines that only hand
over to each other, short beside what a user notices."""
CLIENT_PATIENCE_SECONDS = 5.0
"""The same while plans hold results that their clients have yet to read: a client may be slow, but one that waits for
another result first would wait forever."""
NEXT_PATIENCE_SECONDS = 0.5
"""The same while somebody waits who has been so patient already: often one plan that fails is not enough for him."""

PEER_PATIENCE_SECONDS = 30.0
"""Other nodes may compute for long before they send or take anything. If nothing moves for so long, nodes may wait for
each other's memory."""


_UNSEEN_SHARE: Final = 1 << 12
_UNSEEN_BYTES: Final = 1 << 16
"""A level that has changed by less, since the one that was recorded last, cannot be seen in a trace; nothing can."""


class Tier(StrEnum):
    DEVICE = "device"
    PINNED = "pinned"
    HOST = "host"
    DISK = "disk"


# Only the host's budget is a setting so far; the other names are what they will be called.
SETTING_BY_TIER: Mapping[Tier, str] = {
    Tier.DEVICE: "device_memory",
    Tier.PINNED: "pinned_memory",
    Tier.HOST: "memory",
    Tier.DISK: "spill_space",
}


@dataclass(frozen=True, slots=True)
class TierStatistics:
    budget: int
    used: int
    transient: int
    peak: int
    waiting: int


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """Bytes of one plan in one tier."""

    held: int
    waiting: int


class Reservation:
    """Bytes granted in a tier. `release` may be called twice and from any thread; `with` releases at its end."""

    __slots__ = ("_account", "_metrics", "_nbytes", "_tier_memory", "_transient")

    def __init__(
        self, tier_memory: _TierMemory, account: Account, nbytes: int, transient: bool, metrics: OperatorMetrics
    ) -> None:
        self._tier_memory = tier_memory
        self._account = account
        self._nbytes = nbytes
        self._transient = transient
        self._metrics = metrics

    @property
    def nbytes(self) -> int:
        return self._nbytes

    async def resize(self, nbytes: int) -> None:
        """Grow (waits as `OperatorMemory.reserve` does, and keeps what it has meanwhile) or shrink at once."""
        if nbytes > self._nbytes:
            added = nbytes - self._nbytes
            net_delta = 0 if self._transient else added
            await self._tier_memory.reserve(self._account, added, self._transient, net_delta, self._metrics)
            self._nbytes += added
        else:
            self._give_back(self._nbytes - nbytes)

    def resize_nowait(self, nbytes: int) -> None:
        """To what is there already: bytes that nobody could be asked for before they came. From any thread."""
        if nbytes > self._nbytes:
            added = nbytes - self._nbytes
            self._tier_memory.reserve_nowait(self._account, added, self._transient, True, self._metrics)
            self._nbytes += added
        else:
            self.shrink(nbytes)

    def shrink(self, nbytes: int) -> None:
        """`resize` to at most what it has: from any thread."""
        self._give_back(max(0, self._nbytes - nbytes))

    def release(self) -> None:
        self._give_back(self._nbytes)

    def _give_back(self, nbytes: int) -> None:
        self._nbytes -= nbytes
        if nbytes:
            self._tier_memory.give_back(self._account, nbytes, self._transient)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class OperatorMemory:
    """One operator's way to memory."""

    def __init__(self, memory: Memory, plan: PlanEntry, operator: str, metrics: OperatorMetrics) -> None:
        self._memory = memory
        self._plan = plan
        self._operator = operator
        self._metrics = metrics
        self._accounts: dict[Tier | None, tuple[_TierMemory, Account]] = {}

    def _account(self, tier: Tier | None) -> tuple[_TierMemory, Account]:
        found = self._accounts.get(tier)
        if found is None or found[1].is_closed:
            found = self._accounts[tier] = self._memory.account(tier, self._plan, self._operator)
        return found

    def budget(self, tier: Tier | None = None) -> int:
        """Bytes of `tier` (None: where the node's operators compute), for all plans together."""
        return self._memory.budget(tier)

    def watch_scarcity(self, give_up: Callable[[], None], *, tier: Tier | None = None) -> None:
        """`give_up` is called, on the loop, whenever somebody begins to wait for memory of `tier` that he cannot go on
        without, until `unwatch_scarcity`: for what `reserve_spare` has granted."""
        self._account(tier)[0].scarcity_watchers.append(give_up)

    def unwatch_scarcity(self, give_up: Callable[[], None], *, tier: Tier | None = None) -> None:
        self._account(tier)[0].scarcity_watchers.remove(give_up)

    async def reserve(
        self, nbytes: int, *, tier: Tier | None = None, net_delta: int | None = None, transient: bool = False
    ) -> Reservation:
        """Wait until `nbytes` may be held in `tier` (None: where the node's operators compute).

        State (the default) is what the operator keeps; transient bytes are on their way and surely freed by consumers.
        `net_delta` is what the work behind the request will do to memory in the end (negative: it frees more than it
        takes); by default all of a state and nothing of a transient request stays.

        Raises ResourceExhausted when the request exceeds what could ever be free, or when everybody who holds memory
        waits for memory and this plan is the newest of the lowest priority.
        """
        tier_memory, account = self._account(tier)
        effect = net_delta if net_delta is not None else (0 if transient else nbytes)
        await tier_memory.reserve(account, nbytes, transient, effect, self._metrics)
        return Reservation(tier_memory, account, nbytes, transient, self._metrics)

    def reserve_nowait(
        self, nbytes: int, *, tier: Tier | None = None, transient: bool = False, force: bool = False
    ) -> Reservation | None:
        """The twin that does not wait, for any thread: None when `nbytes` are not free now or others wait for them.

        `force` counts them even so: for bytes that exist already.
        """
        tier_memory, account = self._account(tier)
        if not tier_memory.reserve_nowait(account, nbytes, transient, force, self._metrics):
            return None
        return Reservation(tier_memory, account, nbytes, transient, self._metrics)

    def reserve_spare(self, nbytes: int, *, tier: Tier | None = None) -> Reservation | None:
        """Transient bytes for what nobody waits for; None unless they leave most of what is free to others."""
        tier_memory, account = self._account(tier)
        if not tier_memory.can_spare(account, nbytes):
            return None
        return self.reserve_nowait(nbytes, tier=tier, transient=True)


class Memory:
    """The node's memory, tier by tier. A tier without a budget admits nothing."""

    def __init__(
        self,
        budgets: Mapping[Tier, int],
        clock: Clock,
        working: Tier = Tier.HOST,
        tracing: Tracing | None = None,
        hot_bytes: int = 0,
    ) -> None:
        """Inside the running loop whose coroutines will wait. Operators compute in the tier `working`.

        `hot_bytes` of the host's budget may be used for what is `hot`, as far as nobody reserves them.
        """
        loop = asyncio.get_running_loop()
        recording = tracing if tracing is not None and tracing.enabled else None
        self._tiers = {tier: _TierMemory(tier, budgets.get(tier, 0), clock, loop, recording) for tier in Tier}
        self.hot: HotCache[Any] = HotCache(hot_bytes, self._tiers[Tier.HOST].free)
        self._tiers[Tier.HOST].hot = self.hot
        self._working = working

    def operator(self, plan: PlanEntry, operator: str, metrics: OperatorMetrics) -> OperatorMemory:
        return OperatorMemory(self, plan, operator, metrics)

    def budget(self, tier: Tier | None = None) -> int:
        return self._tiers[tier or self._working].pool.budget

    def account(self, tier: Tier | None, plan: PlanEntry, operator: str) -> tuple[_TierMemory, Account]:
        tier_memory = self._tiers[tier or self._working]
        return tier_memory, tier_memory.account(plan, operator)

    def plan_became_idle(self) -> None:
        """A plan has no work outside its coroutines now: perhaps everybody waits for memory."""
        for tier_memory in self._tiers.values():
            if tier_memory.may_stall:
                tier_memory.watch_for_stall()

    def rank_changed(self) -> None:
        """A plan's priority changed: the order of the waiting requests with it."""
        for tier_memory in self._tiers.values():
            tier_memory.grant()

    def release_plan(self, plan: PlanEntry) -> int:
        """After the plan's tasks ended: take back what they left reserved, and say how many bytes that were."""
        return sum(tier_memory.forget(plan) for tier_memory in self._tiers.values())

    def plan(self, plan: PlanEntry) -> Mapping[Tier, PlanMemory]:
        """What the plan holds and waits for, in the tiers where it does."""
        levels = {tier: tier_memory.plan(plan) for tier, tier_memory in self._tiers.items()}
        return {tier: level for tier, level in levels.items() if level.held or level.waiting}

    def statistics(self) -> Mapping[Tier, TierStatistics]:
        return {tier: tier_memory.statistics() for tier, tier_memory in self._tiers.items()}


class _TierMemory:
    """The acting half: a pool behind a lock, futures for those who wait, and the watch for deadlocks."""

    def __init__(
        self,
        tier: Tier,
        budget: int,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        tracing: Tracing | None,
    ) -> None:
        self.pool = MemoryPool(budget)
        self.hot: HotCache[Any] | None = None
        """Uses what is free, and gives it back when it is reserved."""
        self.scarcity_watchers: list[Callable[[], None]] = []
        """Called when somebody begins to wait."""
        self._tier = tier
        self._tracing = tracing
        self._recorded = 0
        self._unseen = min(budget // _UNSEEN_SHARE, _UNSEEN_BYTES)
        self._clock = clock
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._lock = threading.Lock()
        self._futures: dict[Request, asyncio.Future[None]] = {}
        self._stall_timer: asyncio.TimerHandle | None = None
        self._stall_patience = 0.0

    def account(self, plan: PlanEntry, operator: str) -> Account:
        with self._lock:
            return self.pool.account(plan, operator)

    def free(self) -> int:
        """Bytes that nobody has reserved."""
        return self.pool.budget - self.pool.used

    def can_spare(self, account: Account, nbytes: int) -> bool:
        with self._lock:
            return self.pool.can_spare(account, nbytes)

    async def reserve(
        self, account: Account, nbytes: int, transient: bool, net_delta: int, metrics: OperatorMetrics
    ) -> None:
        if self.reserve_nowait(account, nbytes, transient, False, metrics):
            return
        with metrics.waiting(WaitReason.MEMORY, self._tier.value, nbytes):
            await self._wait(account, nbytes, transient, net_delta)
        metrics.record_memory(account.held)
        self._trace(account)

    def reserve_nowait(
        self, account: Account, nbytes: int, transient: bool, force: bool, metrics: OperatorMetrics
    ) -> bool:
        with self._lock:
            pool = self.pool
            if not force and (pool.waiting or not pool.fits(account, nbytes, transient=transient)):
                return False
            pool.take(account, nbytes, transient=transient)
            used = pool.state + pool.transient
        account.plan.progress += 1
        if nbytes:
            if self.hot is not None and self.hot.nbytes > pool.budget - used:
                self._take_from_hot()
            metrics.record_memory(account.state + account.transient)
            self._trace(account)
        return True

    def give_back(self, account: Account, nbytes: int, transient: bool) -> None:
        with self._lock:
            self.pool.give_back(account, nbytes, transient=transient)
            somebody_waits = bool(self.pool.waiting)
        account.plan.progress += 1
        self._trace(account)
        if somebody_waits:
            if threading.get_ident() == self._loop_thread:
                self.grant()
            else:
                self._loop.call_soon_threadsafe(self.grant)

    def _take_from_hot(self) -> None:
        if self.hot is not None:
            self.hot.shrink_to(max(0, self.free()))

    def forget(self, plan: PlanEntry) -> int:
        with self._lock:
            if not self.pool.knows(plan):
                return 0
            accounts = self.pool.accounts(plan)
            left = self.pool.forget(plan)
        if left:
            for account in accounts:
                self._trace(account)
        self.grant()
        return left

    def _trace(self, account: Account) -> None:
        if self._tracing is not None:
            held, used = account.state + account.transient, self.pool.state + self.pool.transient
            # Threads may see each other's levels a moment late: then one more is recorded.
            is_little = abs(held - account.recorded) < self._unseen and abs(used - self._recorded) < self._unseen
            if is_little and (held or not account.recorded):
                return
            account.recorded, self._recorded = held, used
            self._tracing.memory_level(
                self._clock.now(), account.plan.plan_id, account.operator, self._tier, held, used
            )

    def grant(self) -> None:
        with self._lock:
            granted = self.pool.grant(self._clock.now()) if self.pool.waiting else ()
        if granted:
            self._take_from_hot()
        for request in granted:
            self._wake(request)
        self.watch_for_stall()

    @property
    def may_stall(self) -> bool:
        """Somebody waits, or the watch is on."""
        return self._stall_timer is not None or bool(self.pool.waiting)

    def watch_for_stall(self) -> None:
        if self._stall_timer is not None and self._stall_patience > STALL_GRACE_SECONDS:
            self._stall_timer.cancel()  # something has moved since
            self._stall_timer = None
        if self.pool.waiting and self._stall_timer is None and self._stands_still():
            self._wait_for_movement(STALL_GRACE_SECONDS)

    def _wait_for_movement(self, seconds: float) -> None:
        self._stall_patience = seconds
        self._stall_timer = self._loop.call_later(seconds, self._resolve_stall, self._progress())

    def plan(self, plan: PlanEntry) -> PlanMemory:
        with self._lock:
            held = sum(account.held for account in self.pool.accounts(plan))
            waiting = sum(request.nbytes for request in self.pool.waiting if request.account.plan is plan)
        return PlanMemory(held, waiting)

    def statistics(self) -> TierStatistics:
        with self._lock:
            pool = self.pool
            return TierStatistics(pool.budget, pool.used, pool.transient, pool.peak, len(pool.waiting))

    async def _wait(self, account: Account, nbytes: int, transient: bool, net_delta: int) -> None:
        request = Request(account, nbytes, transient, net_delta, self._clock.now())
        with self._lock:
            if not self.pool.could_ever_fit(account, nbytes, transient=transient):
                raise self._exhausted(request)
            self.pool.enqueue(request)
        future = self._futures[request] = self._loop.create_future()
        if not (transient and account.transient):  # else it reads ahead of what it has already
            for give_up in tuple(self.scarcity_watchers):
                give_up()
        self.grant()
        try:
            await future
        except BaseException:
            self._abandon(request, future)
            raise

    def _abandon(self, request: Request, future: asyncio.Future[None]) -> None:
        """The caller was cancelled, perhaps after the grant; or its request was failed and is gone already."""
        was_granted = future.done() and not future.cancelled() and future.exception() is None
        if was_granted:
            self.give_back(request.account, request.nbytes, request.transient)
        elif self._futures.pop(request, None) is not None:
            with self._lock:
                self.pool.withdraw(request)
            self.grant()

    def _wake(self, request: Request) -> None:
        request.account.plan.progress += 1
        future = self._futures.pop(request)
        if future.cancelled():
            self.give_back(request.account, request.nbytes, request.transient)
        else:
            future.set_result(None)

    def _stands_still(self) -> bool:
        """Somebody waits, and so does everybody who holds memory, with nothing on the node under way that could change
        it: at most clients that may read."""
        with self._lock:
            waiting = self.pool.plans_waiting()
            plans = self.pool.plans_involved()
            return bool(waiting) and all(p.external == p.unread and (p in waiting or p.unread > 0) for p in plans)

    def _patience(self) -> float:
        with self._lock:
            is_unread = any(plan.unread for plan in self.pool.plans_involved())
            is_remote = any(plan.remote for plan in self.pool.plans_involved())
            since = min((request.since for request in self.pool.waiting), default=self._clock.now())
        if not is_unread:
            return STALL_GRACE_SECONDS
        if is_remote:
            return PEER_PATIENCE_SECONDS
        was_patient = self._clock.now() - since > CLIENT_PATIENCE_SECONDS
        return NEXT_PATIENCE_SECONDS if was_patient else CLIENT_PATIENCE_SECONDS

    def _progress(self) -> int:
        with self._lock:
            return sum(plan.progress for plan in self.pool.plans_involved())

    def _resolve_stall(self, progress: int) -> None:
        self._stall_timer = None
        if not self._stands_still():
            return
        if self._progress() == progress and not self._let_one_pass():
            patience = self._patience()
            if self._stall_patience < patience:
                self._wait_for_movement(patience)
                return
            self._fail_one()
        self.watch_for_stall()

    def _let_one_pass(self) -> bool:
        with self._lock:
            granted = self.pool.grant_one()
        if granted is not None:
            self._take_from_hot()
            self._wake(granted)
        return granted is not None

    def _fail_one(self) -> None:
        with self._lock:
            victim = self.pool.victim()
            self.pool.withdraw(victim)
        future = self._futures.pop(victim)
        victim.account.plan.progress += 1
        if not future.done():
            future.set_exception(self._exhausted(victim))

    def _exhausted(self, request: Request) -> ResourceExhausted:
        needed = self.pool.enough(request.account, request.nbytes, transient=request.transient)
        return ResourceExhausted(
            f"the {self._tier} memory budget is too small: {request.account.operator} needs {request.nbytes} bytes "
            f"beside {self.pool.used} held, the budget is {self.pool.budget}",
            setting=SETTING_BY_TIER[self._tier],
            value=self.pool.budget,
            needed=needed,
            hint=_hint(self._tier, needed),
            operator=request.account.operator,
        )


def _hint(tier: Tier, needed: int) -> str:
    fewer = "run fewer plans at once and read their results"
    match tier:
        case Tier.HOST:
            return f"set 'memory' to at least {needed} bytes, or {fewer}"
        case Tier.DEVICE:
            return f"{fewer}, or set 'device' to cpu"
        case Tier.PINNED | Tier.DISK:
            return fewer
