"""Whole clusters under drawn faults in virtual time, and defects of the engine that they must find."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from pystachio.operators.exchanges.fragment import Reachable, part_of
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.server import fragments
from pystachio.server.control_plane import ControlPlane
from pystachio.server.simulation import simulation
from pystachio.server.simulation.simulation import InvariantBroken, SimulationOutcome, simulate
from pystachio.server.simulation.statements import Statements, prepare

SEEDS = 40
SLICE = 4
SLICES = SEEDS // SLICE

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def statements(tmp_path_factory: pytest.TempPathFactory) -> Statements:
    return prepare(tmp_path_factory.mktemp("simulation"))


@pytest.mark.parametrize("first", range(SLICES))
def test_every_query_ends_rightly_whatever_fails(first: int, statements: Statements) -> None:
    ended, faults, attempts = Counter[str](), Counter[str](), 0
    for seed in range(first, SEEDS, SLICES):
        outcome = simulate(seed, statements)
        ended.update(outcome.ended)
        faults.update(outcome.faults)
        attempts += outcome.attempts
    assert ended["answered"] > 10 * SLICE
    assert attempts > ended.total()  # some were run again
    assert faults.total() >= SLICE


def test_a_seed_is_replayed(statements: Statements) -> None:
    once, again = simulate(5, statements), simulate(5, statements)
    assert once == again
    assert simulate(6, statements).digest != once.digest


def test_a_replay_that_differs_says_where(monkeypatch: pytest.MonkeyPatch, statements: Statements) -> None:
    real, lines = simulation.simulate, iter("ab")

    def differing(seed: int, statements: Statements, log: list[str] | None = None) -> SimulationOutcome:
        outcome = real(seed, statements, log)
        assert log is not None
        log.append(f"{next(lines)}\n")
        return replace(outcome, digest=log[-1])

    monkeypatch.setattr(simulation, "simulate", differing)
    with pytest.raises(InvariantBroken, match=r"seed 3: a replay differs(.|\n)*first:  a\nsecond: b\n"):
        simulation.simulate_many([3], replay_every=1)


def _found_within(seeds: int, statements: Statements) -> str:
    """What the first seed says in which an invariant does not hold."""
    for seed in range(seeds):
        try:
            simulate(seed, statements)
        except InvariantBroken as broken:
            return str(broken)
    return "nothing"


def test_row_groups_that_nobody_reads_are_found(monkeypatch: pytest.MonkeyPatch, statements: Statements) -> None:
    def first_share(plan: PhysicalPlan, here: int, nodes: int, reachable: Reachable) -> PhysicalPlan:
        return part_of(plan, 0, nodes, reachable)

    monkeypatch.setattr(fragments, "part_of", first_share)
    assert "wrong: " in _found_within(3, statements)


def test_a_loss_that_is_not_told_is_found(monkeypatch: pytest.MonkeyPatch, statements: Statements) -> None:
    monkeypatch.setattr(ControlPlane, "note_lost", lambda *_: None)
    assert "no end of " in _found_within(10, statements)
