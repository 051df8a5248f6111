"""Hundreds of small clusters on which everything is left to chance; and that a fault in the core would be found."""

from __future__ import annotations

from collections import Counter

import pytest

from pystachio.io_scheduler.core.link_queue import LinkQueue
from pystachio.io_scheduler.core.policy import POLICIES
from pystachio.io_scheduler.core.resources import CreditBudget, PeerBudget
from pystachio.io_scheduler.core.scheduler import Scheduler
from pystachio.io_scheduler.simulation.devices import Condition, SimulatedDevice
from pystachio.io_scheduler.simulation.faults import Cancel, DeviceFault
from pystachio.io_scheduler.simulation.random_scenarios import CHUNK_BYTES, check_random, random_scenario

SEEDS = 240
AT_ONCE = 40


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_nothing_is_lost_doubled_starved_or_left_over(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        check_random(seed)


@pytest.mark.parametrize("policy", ["strict", "fair", "fifo"])
def test_the_policies_beside_ours_hold_what_must_always_hold(policy: str) -> None:
    for seed in range(SEEDS, SEEDS + 20):
        check_random(seed, POLICIES[policy])


def test_chance_covers_what_it_should() -> None:
    scenarios = [random_scenario(seed) for seed in range(400)]
    memory = Counter(
        scenario.hardware.stage_bytes // CHUNK_BYTES for scenario in scenarios if scenario.hardware.stage_bytes
    )
    assert memory[2] > 50
    faults = [fault for scenario in scenarios for fault in scenario.faults]
    assert sum(isinstance(fault, Cancel) for fault in faults) > 50
    conditions = [fault for fault in faults if isinstance(fault, DeviceFault)]
    for name in ("vanishes", "stall_probability", "error_probability", "short_read_probability"):
        assert sum(bool(getattr(fault, name)) for fault in conditions) > 20, name
    workloads = Counter(type(workload).__name__ for scenario in scenarios for workload in scenario.workloads)
    assert {"Scans", "Queries", "SharedScan", "AllToAll", "CentralService"} == set(workloads)


def test_a_seed_is_a_scenario() -> None:
    assert random_scenario(7) == random_scenario(7)
    assert random_scenario(7) != random_scenario(8)


def find_a_violation(seeds: int = 60) -> str:
    """What the first of the seeds says that notices anything."""
    for seed in range(seeds):
        try:
            check_random(seed)
        except AssertionError as error:
            return str(error)
    return "nothing"


def test_memory_beyond_a_pool_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CreditBudget, "has_room", lambda budget, line, length, now: True)
    assert "bytes are in use of" in find_a_violation()


def test_a_waiter_that_is_not_woken_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "_give_turn", lambda scheduler, resource, now: None)
    monkeypatch.setattr(Scheduler, "check_invariants", lambda scheduler: None)
    assert find_a_violation().startswith(("everything waits and nothing is due", "after 300 s somebody still waits"))


def test_a_turn_that_is_not_given_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PeerBudget, "give", lambda budget, length: None, raising=False)
    monkeypatch.setattr(Scheduler, "check_invariants", lambda scheduler: None)
    assert find_a_violation(400).startswith(("everything waits and nothing is due", "after 300 s somebody still waits"))


def test_credit_that_is_not_given_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = CreditBudget.give
    monkeypatch.setattr(
        CreditBudget, "give", lambda budget, plan, length: given(budget, plan, length - 1 if length > 1 else length)
    )
    monkeypatch.setattr(Scheduler, "check_invariants", lambda scheduler: None)
    assert find_a_violation() != "nothing"


def test_a_chunk_that_starts_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    take = LinkQueue._take

    def twice(queue, line, progress, length, now):  # type: ignore[no-untyped-def]
        chunk = take(queue, line, progress, length, now)
        if len(progress.outstanding) == 3:
            progress.dispatched -= length
        return chunk

    monkeypatch.setattr(LinkQueue, "_take", twice)
    monkeypatch.setattr(Scheduler, "check_invariants", lambda scheduler: None)
    assert "is moved twice" in find_a_violation()


def test_a_run_that_does_not_replay_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    latency = iter(range(1_000_000))
    begin = SimulatedDevice._begin

    def later(device: SimulatedDevice, *chunk: object) -> None:
        device.condition = Condition(speed=1.0 / (1 + next(latency)))
        begin(device, *chunk)  # type: ignore[arg-type]

    monkeypatch.setattr(SimulatedDevice, "_begin", later)
    assert "replays differently" in find_a_violation(1)
