"""Time that neither runs backwards nor leaps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystachio.io_scheduler.core.clock import LARGEST_STEP_SECONDS, STEP_AFTER_LEAP_SECONDS, SteadyClock

STEPS = st.lists(st.tuples(st.floats(-1e6, 1e6), st.booleans()), max_size=50)


def test_a_clock_that_behaves_is_shown_as_it_is() -> None:
    clock = SteadyClock()
    for outer in (0.0, 0.5, 0.5, 9.0, 10.0):
        assert clock.read(outer, True) == outer
    assert clock.jumps == 0


@pytest.mark.parametrize(
    ("outer", "busy", "steady", "jumps"),
    [
        (100.0 + LARGEST_STEP_SECONDS, True, 100.0 + LARGEST_STEP_SECONDS, 0),
        (100.1 + LARGEST_STEP_SECONDS, True, 100.0 + STEP_AFTER_LEAP_SECONDS, 1),
        (1e6, True, 100.0 + STEP_AFTER_LEAP_SECONDS, 1),
        (1e6, False, 1e6, 0),
        (99.0, True, 100.0, 1),
        (-1e6, False, 100.0, 1),
    ],
)
def test_what_jumps_is_smoothed(outer: float, busy: bool, steady: float, jumps: int) -> None:
    clock = SteadyClock()
    clock.read(100.0, False)
    assert clock.read(outer, busy) == pytest.approx(steady)
    assert clock.jumps == jumps
    assert clock.read(outer + 1.0, True) == pytest.approx(steady + 1.0)


@given(STEPS)
def test_it_never_runs_backwards(steps: list[tuple[float, bool]]) -> None:
    clock, outer, before = SteadyClock(), 0.0, clock_start()
    for step, busy in steps:
        outer += step
        steady = clock.read(outer, busy)
        assert steady >= before
        before = steady


def clock_start() -> float:
    return SteadyClock().read(0.0, False)


@given(STEPS, st.floats(0.0, 100.0))
def test_it_is_time_when_it_was_said_to_be(steps: list[tuple[float, bool]], seconds: float) -> None:
    """`outer` is never too early, and hardly too late."""
    clock, outer, steady = SteadyClock(), 0.0, 0.0
    for step, busy in steps:
        outer += step
        steady = clock.read(outer, busy)
    due = steady + seconds
    wake = clock.outer(due)
    assert wake == pytest.approx(outer + seconds, abs=1e-6)
    assert clock.read(max(wake, outer), False) >= due
