"""Who gets memory: the deciding half, without threads, loops or clocks.

A pool counts the bytes of one tier. Requests name an account (an operator of a plan) and whether the bytes are *state*
(kept until the operator ends) or *transient* (on their way, freed by consumers).

Three rules keep data flowing, so that waiting is nearly always short:

- State never takes the last eighth of the budget: what is on its way always finds room.
- An account's first transient item may take whatever is free, further ones only fit into that eighth: a scan may read
  ahead for a join that is still being built, and must not take the memory that the join needs to get ready.
- The order of grants is: requests that will free memory, then neutral ones, then growing ones; inside each the plan's
  priority, raised by one class for each `AGEING_SECONDS` waited; interactive plans by when they are due; then first
  come, first served. Less urgent plans may not fill the eighth with what they read ahead. A request that does
  not fit is passed by others until it is overdue (has aged by a class); after that only what keeps data flowing passes,
  and state passes reading ahead, from which it takes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.runtime.plan_entry import PlanEntry

AGEING_SECONDS = 1.0
SPARE_DIVISOR = 4
TRANSIENT_FLOOR_DIVISOR = 8

AHEAD_SHARES: Final = (1.0, 7 / 8, 3 / 4)
"""Of the last eighth, by class: an urgent plan that arrives finds room. Credit pools are shared out alike."""


@dataclass(slots=True, eq=False)
class Account:
    """Bytes that one operator of a plan holds in a tier."""

    plan: PlanEntry
    operator: str
    state: int = 0
    transient: int = 0
    recorded: int = 0
    """Of `held`: what the trace was told last."""
    is_closed: bool = False
    """The plan has ended: what it held was taken back, and a late release has nothing to give."""

    @property
    def held(self) -> int:
        return self.state + self.transient


@dataclass(slots=True, eq=False)
class Request:
    account: Account
    nbytes: int
    transient: bool
    net_delta: int
    since: float
    """When it was made, in seconds of the owner's clock."""
    sequence: int = field(default=0)

    def order(self, now: float) -> tuple[bool, int, int, float, int]:
        plan = self.account.plan
        effect = (self.net_delta > 0) - (self.net_delta < 0)
        aged = plan.priority - int((now - self.since) / AGEING_SECONDS)
        due = plan.due if plan.priority == PriorityClass.INTERACTIVE else 0.0
        return not self.is_overdue(now), effect, aged, due, self.sequence

    def is_overdue(self, now: float) -> bool:
        return now - self.since >= AGEING_SECONDS


class MemoryPool:
    """Counts what is held and decides whose request is granted. Invariant: `used` is the sum over all accounts."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.state = 0
        self.transient = 0
        self.peak = 0
        self.waiting: list[Request] = []
        self._accounts: dict[PlanEntry, dict[str, Account]] = {}
        self._sequence = 0

    @property
    def used(self) -> int:
        return self.state + self.transient

    @property
    def state_budget(self) -> int:
        return self.budget - self.budget // TRANSIENT_FLOOR_DIVISOR

    def account(self, plan: PlanEntry, operator: str) -> Account:
        accounts = self._accounts.setdefault(plan, {})
        found = accounts.get(operator)
        if found is None:
            found = accounts[operator] = Account(plan, operator)
        return found

    def knows(self, plan: PlanEntry) -> bool:
        """Whether the plan has asked for memory."""
        return plan in self._accounts

    def accounts(self, plan: PlanEntry) -> tuple[Account, ...]:
        return tuple(self._accounts.get(plan, {}).values())

    def forget(self, plan: PlanEntry) -> int:
        """Return to the pool what the plan still holds; the bytes that were left."""
        left = 0
        for account in self.accounts(plan):
            left += account.held
            if account.state or account.transient:
                self.give_back(account, account.state, transient=False)
                self.give_back(account, account.transient, transient=True)
            account.is_closed = True
        self._accounts.pop(plan, None)
        return left

    def fits(self, account: Account, nbytes: int, *, transient: bool) -> bool:
        if self.state + self.transient + nbytes > self.budget:
            return False
        if transient:
            return account.transient == 0 or self.transient + nbytes <= self._ahead_budget(account)
        return self.state + nbytes <= self.state_budget

    def can_spare(self, account: Account, nbytes: int) -> bool:
        """Whether transient bytes that nobody waits for leave others most of what is free, and half of what is for
        reading ahead."""
        is_little = nbytes * SPARE_DIVISOR <= self.budget - self.used
        return is_little and 2 * (self.transient + nbytes) <= self._ahead_budget(account)

    def _ahead_budget(self, account: Account) -> int:
        return int((self.budget - self.state_budget) * AHEAD_SHARES[account.plan.priority])

    def could_ever_fit(self, account: Account, nbytes: int, *, transient: bool) -> bool:
        """False when the request fails even if everybody else released everything: the account keeps its state."""
        if transient:
            return account.state + nbytes <= self.budget
        return account.state + nbytes <= self.state_budget

    def enough(self, account: Account, nbytes: int, *, transient: bool) -> int:
        """The budget that would admit the request beside everything that is held now."""
        divisor = TRANSIENT_FLOOR_DIVISOR
        needed = self.used + nbytes
        if not transient:
            needed = max(needed, -(-(self.state + nbytes) * divisor // (divisor - 1)) + divisor)
        elif account.transient:
            share = AHEAD_SHARES[account.plan.priority]
            needed = max(needed, int((self.transient + nbytes) * divisor / share) + divisor)
        return needed

    def take(self, account: Account, nbytes: int, *, transient: bool) -> None:
        """Count `nbytes` as held, whether they fit or not."""
        if transient:
            account.transient += nbytes
            self.transient += nbytes
        else:
            account.state += nbytes
            self.state += nbytes
        used = self.state + self.transient
        if used > self.peak:
            self.peak = used

    def give_back(self, account: Account, nbytes: int, *, transient: bool) -> None:
        if account.is_closed:
            return
        if transient:
            account.transient -= nbytes
            self.transient -= nbytes
        else:
            account.state -= nbytes
            self.state -= nbytes

    def enqueue(self, request: Request) -> None:
        self._sequence += 1
        request.sequence = self._sequence
        self.waiting.append(request)

    def withdraw(self, request: Request) -> None:
        self.waiting.remove(request)

    def grant(self, now: float) -> list[Request]:
        """Take the memory of every request that may go on now; they wait no longer."""
        granted: list[Request] = []
        held_back: set[bool] = set()  # kinds of requests (transient or not) that would take what an overdue one lacks
        for request in sorted(self.waiting, key=lambda each: each.order(now)):
            if request.transient in held_back and not self._keeps_others_going(request):
                continue
            if self.fits(request.account, request.nbytes, transient=request.transient):
                self._take_request(request)
                granted.append(request)
            elif request.is_overdue(now):
                held_back |= {True} if self._reads_ahead(request) else {True, False}
        return granted

    def _reads_ahead(self, request: Request) -> bool:
        """It waits for room in the eighth that state never takes."""
        return request.transient and request.account.transient > 0

    def _keeps_others_going(self, request: Request) -> bool:
        """One item on its way per account: without it those that an overdue request waits for would stand still."""
        return request.net_delta <= 0 and request.account.transient == 0

    def grant_one(self) -> Request | None:
        """For a pool that stands still: the oldest request that fits, whoever is ahead of it."""
        for request in self.waiting:
            if self.fits(request.account, request.nbytes, transient=request.transient):
                self._take_request(request)
                return request
        return None

    def plans_involved(self) -> set[PlanEntry]:
        """Plans that hold bytes or wait for some."""
        holders = {plan for plan, accounts in self._accounts.items() if any(each.held for each in accounts.values())}
        return holders | self.plans_waiting()

    def plans_waiting(self) -> set[PlanEntry]:
        return {request.account.plan for request in self.waiting}

    def victim(self) -> Request:
        """The request to fail when nothing moves any more: of the lowest, then newest plan, its newest.

        A plan that holds nothing is spared while another one waits that does: its failure would free nothing.
        """
        holders = [each for each in self.waiting if any(account.held for account in self.accounts(each.account.plan))]
        return max(
            holders or self.waiting,
            key=lambda each: (each.account.plan.priority, each.account.plan.sequence, each.sequence),
        )

    def _take_request(self, request: Request) -> None:
        self.waiting.remove(request)
        self.take(request.account, request.nbytes, transient=request.transient)
