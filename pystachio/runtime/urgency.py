"""How urgent a plan is, as people say it: a class and a deadline, checked where they enter."""

from __future__ import annotations

import math
from datetime import timedelta
from numbers import Real
from typing import Final, NamedTuple

from pystachio.errors import InvalidRequest, shown
from pystachio.io_scheduler.core.request import PriorityClass

MOST_SECONDS: Final = 366 * 86_400.0
"""The longest deadline: what lies beyond a year is a mistake in the unit."""


class Urgency(NamedTuple):
    """A plan's class, and in how many seconds its answer is wanted: the interactive plan that is due first goes first.

    A deadline orders plans; nothing ends when it has passed.
    """

    priority: PriorityClass
    deadline: float | None = None


USUAL: Final = Urgency(PriorityClass.NORMAL)
"""Where nobody says anything."""


def priority_class(value: object) -> PriorityClass:
    """A class or its name in any case. Raises InvalidRequest that lists the names."""
    if isinstance(value, PriorityClass):
        return value
    names = {member.name.lower(): member for member in PriorityClass}
    if not isinstance(value, str) or value.lower() not in names:
        raise InvalidRequest(f"no such priority: {shown(value)}", hint=f"one of {', '.join(names)}")
    return names[value.lower()]


def deadline_seconds(value: object) -> float:
    """Seconds, or a timedelta, from now. Raises InvalidRequest for what is no such time, or not from 0 to a year."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, Real):
        raise InvalidRequest(
            f"a deadline must be seconds from now or a timedelta, not {type(value).__name__}",
            hint="for example deadline=2.0 or deadline=timedelta(seconds=2)",
        )
    try:
        seconds = float(number)
    except OverflowError:
        seconds = math.inf
    if not 0 < seconds <= MOST_SECONDS:
        raise InvalidRequest(
            f"a deadline must lie between now and a year from now: {shown(value)}",
            hint="for example deadline=2.0, in seconds from now",
        )
    return seconds


def urgency(priority: object, deadline: object, default: Urgency) -> Urgency:
    """What a caller asked for; None stands for not asked.

    With a deadline and no class a plan is interactive, whatever the default: deadlines order those only. The default's
    deadline goes with its class. Raises InvalidRequest, also for a deadline in another class.
    """
    seconds = None if deadline is None else deadline_seconds(deadline)
    if priority is None and seconds is None:
        return default
    chosen = PriorityClass.INTERACTIVE if priority is None else priority_class(priority)
    if seconds is None:
        return Urgency(chosen, default.deadline if chosen == default.priority else None)
    if chosen != PriorityClass.INTERACTIVE:
        raise InvalidRequest(
            f"a deadline orders interactive plans only: the priority is {chosen.name.lower()}",
            hint="leave out the priority, or say interactive",
        )
    return Urgency(chosen, seconds)
