"""What a chunk needs besides room on its own link: memory credit, a turn with its peer, room on a shared link.

A line whose next chunk lacks one of them is parked there and does not stand in anybody's way; it returns to its flow
when there is room. Nobody takes what an earlier or more urgent line waits for: otherwise small chunks would pass a
large one for ever.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from pystachio.io_scheduler.core.policy import AGEING_SECONDS, LANE_OF_CLASS, Policy

if TYPE_CHECKING:
    from pystachio.io_scheduler.core.flow import Line
    from pystachio.io_scheduler.core.progress import Plan


class Entitlement(Protocol):
    """What lets the lines of a lane go before those of more urgent ones."""

    def overtakes(self, line: Line, now: float) -> bool: ...


class Resource(Protocol):
    """What chunks take some of, and lines are parked on when there is not enough."""

    @property
    def waiters(self) -> Waiters: ...

    def may_take(self, line: Line, length: int, now: float) -> bool:
        """Whether there is room, and nobody else's turn."""
        ...

    def has_room(self, line: Line, length: int, now: float) -> bool:
        """Whether there is room when it is the line's turn."""
        ...


class Waiters:
    """The lines parked on one resource: by lane, then those of plans that hold the least of it, then by arrival.

    `entitlement` may let less urgent ones go first. Who had its turn when there was no room on its link is in danger of
    never having both: the second time, what it needs is `reserved_for` it.
    """

    __slots__ = ("_budget", "_entitlement", "_is_firm", "_lanes", "count", "reserved_bytes", "reserved_for", "turn")

    def __init__(self, entitlement: Entitlement, budget: CreditBudget | None = None) -> None:
        self._budget = budget
        self._entitlement = entitlement
        self._lanes: tuple[dict[str, list[tuple[int, Line]]], ...] = ({}, {}, {}, {})
        self.count = 0
        self.turn: Line | None = None
        """Was parked here, and goes before all that still are."""
        self.reserved_for: Line | None = None
        self.reserved_bytes = 0
        self._is_firm = False
        """More urgent lines respect the reservation too."""

    def __iter__(self) -> Iterator[Line]:
        for groups in self._lanes:
            for group in groups.values():
                for _, line in group:
                    yield line

    def has(self, lane: int) -> bool:
        return bool(self._lanes[lane])

    def add(self, line: Line) -> None:
        groups = self._lanes[line.lane]
        name = "" if self._budget is None else line.plan_id
        insort(groups.setdefault(name, []), (line.ticket, line))
        self.count += 1

    def remove(self, line: Line) -> None:
        groups, name = self._lanes[line.lane], "" if self._budget is None else line.plan_id
        group = groups[name]
        del group[bisect_left(group, (line.ticket, line))]
        if not group:
            del groups[name]
        self.count -= 1

    def first(self, now: float) -> Line | None:
        """Whose turn it is: somebody who is entitled to go before others, else the most urgent."""
        found: Line | None = None
        for groups in self._lanes:
            if groups:
                line = self._first_of(groups)
                if found is None:
                    found = line
                elif self._entitlement.overtakes(line, now):
                    return line
        return found

    def precede(self, line: Line, now: float) -> bool:
        """Whether somebody who is parked goes before a line that is not."""
        if line is self.turn or line is self.reserved_for:
            return False
        first = self.turn or (self.first(now) if self.count else None)
        if first is None:
            return False
        if first.lane < line.lane:
            return not self._entitlement.overtakes(line, now)
        if first.lane > line.lane:
            # As `first` would have it: of several that are entitled, the most urgent.
            return self._entitlement.overtakes(first, now) and not self._entitlement.overtakes(line, now)
        if not line.ticket:
            return self._held(first) <= self._held(line)
        return (self._held(first), first.ticket) < (self._held(line), line.ticket)

    def reserve(self, line: Line, now: float) -> None:
        self.reserved_for, self.reserved_bytes = line, line.needs
        self._is_firm = self._entitlement.overtakes(line, now)

    def reserved_against(self, line: Line | None, lane: int) -> int:
        """Bytes that this line of a lane, if it is one, must leave free for another."""
        other = self.reserved_for
        if other is None or other is line or (other.lane > lane and not self._is_firm):
            return 0
        return self.reserved_bytes

    def _first_of(self, groups: dict[str, list[tuple[int, Line]]]) -> Line:
        if len(groups) == 1:
            return next(iter(groups.values()))[0][1]
        heads = [group[0] for group in groups.values()]
        return min(heads, key=lambda head: (self._held(head[1]), head[0]))[1]

    def _held(self, line: Line) -> int:
        return 0 if self._budget is None else self._budget.held(line.plan_id)


class Age:
    """Whoever has waited for too long goes before more urgent lines that came later."""

    __slots__ = ()

    def overtakes(self, line: Line, now: float) -> bool:
        return is_aged(line, now)


def is_aged(line: Line, now: float) -> bool:
    return line.ticket > 0 and now - line.waits_since > AGEING_SECONDS


class PeerBudget:
    """The bytes under way between this node and one peer."""

    __slots__ = ("nbytes", "used", "waiters")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.used = 0
        self.waiters = Waiters(Age())

    def may_take(self, line: Line, length: int, now: float) -> bool:
        return not self.waiters.precede(line, now) and self.has_room(line, length, now)

    def has_room(self, line: Line, length: int, now: float) -> bool:
        """A chunk larger than the whole budget fits when nothing else is there."""
        used = self.used
        if self.waiters.reserved_for is not None:
            used += self.waiters.reserved_against(line, line.lane)
        return not used or used + length <= self.nbytes

    def take(self, length: int) -> None:
        self.used += length

    def give(self, length: int) -> None:
        self.used -= length
        assert self.used >= 0, "more was given back than taken"


class CreditBudget:
    """The memory of one stage. `lost` bytes of it are in the hands of devices that do not let go of them.

    Nothing is larger than what is `left`: such transfers are refused. By lane, the `policy` says which part may be
    used, and which part is reserved when more urgent plans take all they can; half of the rest may be used by a plan
    that holds nothing yet. Those who wait for consumers that never read hold up nobody more urgent, and no other plan.
    """

    __slots__ = ("_holders", "_policy", "lost", "nbytes", "used", "waiters")

    def __init__(self, nbytes: int, policy: Policy) -> None:
        self.nbytes = nbytes
        self.used = 0
        self.lost = 0
        self.waiters = Waiters(self, self)
        self._policy = policy
        self._holders: dict[str, tuple[Plan, int]] = {}

    @property
    def left(self) -> int:
        """What there is at best."""
        return self.nbytes - self.lost

    def held(self, plan_id: str) -> int:
        """Bytes that the plan's transfers and consumers have."""
        holder = self._holders.get(plan_id)
        return 0 if holder is None else holder[1]

    def held_by_all(self) -> int:
        return sum(nbytes for _, nbytes in self._holders.values())

    def may_take(self, line: Line, length: int, now: float) -> bool:
        return not self.waiters.precede(line, now) and self.has_room(line, length, now)

    def has_room(self, line: Line, length: int, now: float) -> bool:
        used = self.used + self.waiters.reserved_against(line, line.lane) - self.lost
        return not used or used + length <= self._limit(line)

    def overtakes(self, line: Line, now: float) -> bool:
        """Whether it goes before more urgent lines, once they have given back what they hold."""
        lane, needs = line.lane, line.needs
        rest = sum(nbytes for plan, nbytes in self._holders.values() if LANE_OF_CLASS[plan.priority] >= lane)
        if rest and rest + needs > self._limit(line):
            return False
        is_reserved = rest + needs <= self._policy.reservations[lane] * self.left
        return is_reserved or (is_aged(line, now) and line.plan_id not in self._holders)

    def take(self, plan: Plan, length: int) -> None:
        self.used += length
        self._holders[plan.plan_id] = (plan, self.held(plan.plan_id) + length)

    def give(self, plan_id: str | None, length: int) -> None:
        """Without a name it is what those who hold the most have released."""
        self.used -= length
        assert self.used >= 0, "more was given back than taken"
        while length:
            if plan_id not in self._holders:
                plan_id = max(self._holders, key=self.held)
            plan, held = self._holders.pop(plan_id)
            if held > length:
                self._holders[plan_id] = (plan, held - length)
            length -= min(held, length)

    def _limit(self, line: Line) -> int:
        limit = self.left * self._policy.credit_eighths[line.lane] // 8
        return limit if line.plan_id in self._holders else (limit + self.left) // 2
