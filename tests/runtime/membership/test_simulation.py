"""Whole clusters under drawn faults: what must hold after every event, and agreement after the last fault."""

from __future__ import annotations

import pytest

from pystachio.runtime.membership.simulation import AGREE_SECONDS, simulate, simulate_many

SEEDS = 200
SLICE = 25


@pytest.mark.parametrize("first", range(0, SEEDS, SLICE))
def test_nodes_agree_after_faults(first: int) -> None:
    for outcome in simulate_many(range(first, first + SLICE)):
        assert outcome.agreed_after <= AGREE_SECONDS
        assert outcome.view.leader == min(member.name for member in outcome.view.members)


def test_a_seed_is_replayed_event_by_event() -> None:
    once, again = simulate(3), simulate(3)
    assert once == again
    assert once.events > 100
    assert simulate(4).digest != once.digest


def test_faults_really_happen() -> None:
    outcomes = simulate_many(range(20))
    assert max(outcome.view.epoch for outcome in outcomes) > 10
    assert max(outcome.nodes for outcome in outcomes) > 5
    assert sum(outcome.faults for outcome in outcomes) > 60
