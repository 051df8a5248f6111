"""Which order links are served in: lanes, reservations, and what of it is switched off to compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final

INTERACTIVE_SECONDS = 1.0
"""An interactive plan without a deadline counts as due so long after its start."""
ALLOWANCE_SECONDS = 0.1
"""What an interactive plan may take of a link before it counts as later due."""
OVERUSE = 8.0
"""What one without a deadline takes beyond that counts so many times: even several long ones together do not stand in
the way of short ones.
"""
MOST_LATE_SECONDS = 1.0
MOST_EARLY_SECONDS = 60.0
LATEST_DUE_SECONDS = 2.0
"""Interactive plans are put in order as if they were late and early by so much at most, and due so soon without a
deadline: nobody starves.
"""

RESERVATION_SECONDS = 0.2
"""Service beyond its reservation in about this time counts against a lane: a short urgent burst is not interrupted."""

AGEING_SECONDS = 5.0
"""Whoever has waited for so long is served before more urgent ones that came later."""

ASSUMED_RATE = 1e9
"""Bytes per second of a link that has not been measured."""


def due(deadline: float | None, opened_at: float, taken: float) -> float:
    """By what interactive plans are ordered among each other: seconds of the clock that the other two are given in.

    `taken` is for how many seconds the plan has had the link to itself, all in all.
    """
    over = taken - ALLOWANCE_SECONDS if taken > ALLOWANCE_SECONDS else 0.0
    return opened_at + INTERACTIVE_SECONDS + OVERUSE * over if deadline is None else deadline + over


class LaneIndex(IntEnum):
    """The lanes of a link in their order: a lane for each class, and one for what frees memory."""

    INTERACTIVE = 0
    WRITE_BACK = 1
    NORMAL = 2
    BATCH = 3


# Plain numbers: an enumeration's members are hashed and compared in Python.
INTERACTIVE: Final = int(LaneIndex.INTERACTIVE)
WRITE_BACK: Final = int(LaneIndex.WRITE_BACK)
NORMAL: Final = int(LaneIndex.NORMAL)
LANE_OF_CLASS: Final = (INTERACTIVE, NORMAL, int(LaneIndex.BATCH))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is switched off exists to compare. Without `classes` there is one lane, without `fair` it goes by arrival.

    `window_bytes` of None lets each link calibrate its window. By lane, `reservations` are shares of a link, and
    `credit_eighths` what may be used of a pool: batch plans whose consumers are slow must not hold all of it.
    """

    name: str
    classes: bool = True
    fair: bool = True
    window_bytes: int | None = None
    reservations: tuple[float, float, float, float] = (0.0, 0.25, 0.10, 0.05)
    credit_eighths: tuple[int, int, int, int] = (8, 8, 7, 6)


_ALL_EIGHTHS = (8, 8, 8, 8)

POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            Policy(name="pystachio"),
            Policy(
                name="strict",
                fair=False,
                window_bytes=32 << 20,
                reservations=(0.0, 0.0, 0.0, 0.0),
                credit_eighths=_ALL_EIGHTHS,
            ),
            Policy(name="fair", classes=False, window_bytes=32 << 20, credit_eighths=_ALL_EIGHTHS),
            Policy(name="fifo", classes=False, fair=False, window_bytes=32 << 20, credit_eighths=_ALL_EIGHTHS),
        )
    }
)
