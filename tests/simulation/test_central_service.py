"""The central service on simulated clusters: fair totals, and nothing that goes wrong with it is felt by a plan."""

from __future__ import annotations

from collections import Counter

import pytest

from pystachio.errors import InvalidRequest
from pystachio.io_scheduler.core.policy import POLICIES
from pystachio.io_scheduler.simulation import (
    MIB,
    CentralService,
    Device,
    Hardware,
    PriorityClass,
    Queries,
    Scans,
    Scenario,
)
from pystachio.io_scheduler.simulation.central_service import Wire
from pystachio.io_scheduler.simulation.scenario import outcome_of, prepare
from pystachio.io_scheduler.simulation.simulation import Simulation
from pystachio.io_scheduler.simulation.workloads import Workload

RATE = 512 * MIB
DISK = Device(bytes_per_second=RATE, latency_seconds=100e-6, smallest_chunk_bytes=2 * MIB)
"""250 chunks per second: enough for shares of a second, and quick to simulate."""


class Run:
    """A cluster of four nodes with one disk each; what each plan got is looked at whenever somebody asks."""

    def __init__(self, service: CentralService, *workloads: Workload, seconds: float = 30.0, checked: bool = False):
        scenario = Scenario(
            title="a cluster with a centre", hardware=Hardware(nodes=4, disk=DISK), workloads=workloads, seconds=seconds
        )
        service.check(scenario.hardware)
        self.simulation: Simulation = prepare(scenario, POLICIES["pystachio"], 1, checked=checked)
        self.wire = Wire(service, self.simulation)
        self.wire.begin()
        self._before: Counter[str] = Counter()
        self._at = 0.0

    def until(self, at: float) -> dict[str, float]:
        """Each plan's share of a disk (4 is all there is) since the last look."""
        self.simulation.time.run(at, lambda: None)
        totals: Counter[str] = Counter()
        for end in self.wire.ends:
            for (plan_id, _), nbytes in end.bytes.items():
                totals[plan_id] += nbytes
        shares = {plan: (totals[plan] - self._before[plan]) / RATE / (at - self._at) for plan in totals}
        self._before, self._at = totals, at
        return shares


SMALL_AND_LARGE = (Scans(name="large"), Scans(name="small", nodes=1))


def test_totals_become_max_min_fair_in_a_few_seconds() -> None:
    run = Run(CentralService(), *SMALL_AND_LARGE)
    assert run.until(1.0)["small0"] == pytest.approx(0.5, abs=0.1)
    run.until(5.0)
    shares = run.until(8.0)
    assert shares["small0"] > 0.85, "one disk is all it can have"
    assert shares["large0"] > 2.8
    shares = run.until(15.0)
    assert shares["small0"] > 0.95
    assert shares["small0"] + shares["large0"] == pytest.approx(4.0, rel=0.02)


def test_totals_become_equal_where_they_can() -> None:
    run = Run(CentralService(), Scans(name="four"), Scans(name="three", nodes=3))
    run.until(6.0)
    shares = run.until(12.0)
    assert shares["four0"] == pytest.approx(2.0, rel=0.04)
    assert shares["three0"] == pytest.approx(2.0, rel=0.04)


def test_a_plan_that_ends_leaves_no_trace() -> None:
    run = Run(CentralService(), Scans(name="large", plans=2), Scans(name="small", nodes=1, bytes_per_disk=4 * RATE))
    run.until(15.0)
    shares = run.until(25.0)
    assert shares["large0"] == pytest.approx(shares["large1"], rel=0.02)


def test_while_the_centre_is_away_the_last_lease_holds_and_then_each_node_is_fair_by_itself() -> None:
    run = Run(CentralService(away_at=10.0, back_at=40.0), *SMALL_AND_LARGE, seconds=60.0)
    run.until(10.0)
    assert run.until(12.0)["small0"] > 0.9, "the lease"
    run.until(14.0)
    assert run.until(39.0)["small0"] == pytest.approx(0.5, abs=0.03), "local fairness"
    run.until(46.0)
    assert run.until(50.0)["small0"] > 0.85


def test_a_centre_that_takes_over_goes_on_where_the_last_one_was() -> None:
    run = Run(CentralService(takes_over_at=12.3), *SMALL_AND_LARGE)
    run.until(10.0)
    for second in range(11, 30):
        shares = run.until(float(second))
        assert shares["small0"] > 0.9, "no second without"
        assert sum(shares.values()) == pytest.approx(4.0, rel=0.02)
    assert {end.holder.statistics().refused for end in run.wire.ends} == {0}


def test_of_two_centres_all_follow_the_newer_one_and_the_older_falls_silent() -> None:
    run = Run(CentralService(takes_over_at=12.3, split_brain=True), *SMALL_AND_LARGE)
    run.until(10.0)
    for second in range(11, 30):
        assert run.until(float(second))["small0"] > 0.9
    old, new = (centre.core.statistics() for centre in run.wire.centres)
    assert old.superseded
    assert not new.superseded
    assert all(node.scheduler.statistics().lease is not None for node in run.simulation.nodes)


@pytest.mark.parametrize("seed", range(3))
def test_messages_that_are_lost_late_doubled_and_out_of_order_harm_nobody(seed: int) -> None:
    service = CentralService(
        takes_over_at=8.0 + seed, split_brain=True, jitter_seconds=2.0, lost=0.2, doubled=0.3, delay_seconds=0.1 * seed
    )
    run = Run(service, *SMALL_AND_LARGE, Queries(per_second=3.0, bytes_per_node=4 * MIB), seconds=25.0, checked=True)
    for second in range(1, 25):
        shares = run.until(float(second))
        if second > 1:
            assert sum(shares.values()) == pytest.approx(4.0, rel=0.02), "no disk is ever idle"
            assert shares["large0"] > 1.5
            assert shares["small0"] > 0.4, "never less than without a centre"
    assert sum(run.simulation.plans_failed.values()) == 0


def test_a_change_of_class_is_followed_on_every_node_also_after_the_centre_is_gone() -> None:
    run = Run(CentralService(away_at=5.0), Scans(name="a"), Scans(name="b"), seconds=30.0)
    run.until(3.0)
    plan = run.simulation.plans["a0"]
    plan.nodes = plan.nodes[:1]
    plan.set_priority(PriorityClass.NORMAL)
    run.until(4.0)
    assert run.until(5.0)["a0"] > 3.7, "all but the reservation of batch plans"
    run.until(20.0)
    assert run.until(25.0)["a0"] > 3.7


def away(*, lost: bool) -> tuple[float, float, int, float]:
    """Bytes per second, the median latency, failures and messages per chunk while the centre is away, or is not."""
    service = CentralService(away_at=5.0, back_at=35.0) if lost else CentralService()
    meanwhile = Queries(priority=PriorityClass.NORMAL, per_second=2.0, start_at=6.0, stop_at=34.0)
    scenario = Scenario(
        title="away",
        hardware=Hardware(nodes=4, disk=DISK),
        workloads=(service, Scans(plans=2), Scans(name="small", nodes=1), Scans(name="late", start_at=20.0), meanwhile),
        seconds=40.0,
        warm_up_seconds=5.0,
    )
    simulation = prepare(scenario, POLICIES["pystachio"], 1)
    simulation.run()
    outcome = outcome_of(simulation, 1)
    median = outcome.of(PriorityClass.NORMAL).quantile(0.5)
    assert median is not None
    return (
        sum(each.bytes_per_second for each in outcome.classes),
        median,
        sum(each.plans_failed for each in outcome.classes),
        outcome.central_messages / outcome.chunks,
    )


def test_thirty_seconds_without_the_centre_cost_nothing() -> None:
    bytes_per_second, latency, failed, _ = away(lost=True)
    bytes_before, latency_before, _, _ = away(lost=False)
    assert failed == 0
    assert bytes_per_second > 0.98 * bytes_before
    assert latency == pytest.approx(latency_before, rel=0.05), "plans that are submitted meanwhile start at once"


def test_two_messages_a_second_and_node() -> None:
    run = Run(CentralService(), *SMALL_AND_LARGE, seconds=30.0)
    run.until(30.0)
    assert run.simulation.central_messages < 4 * 30 * 2 * 1.1


def test_the_same_seed_is_the_same_history() -> None:
    digests = set()
    for _ in range(2):
        run = Run(CentralService(jitter_seconds=0.5, lost=0.1, doubled=0.1), *SMALL_AND_LARGE, seconds=5.0)
        run.until(5.0)
        digests.add(run.simulation.time.digest())
    assert len(digests) == 1


def test_a_centre_that_is_back_before_it_leaves_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        CentralService(away_at=5.0, back_at=4.0).check(Hardware())
    with pytest.raises(InvalidRequest):
        CentralService(lost=-0.1).check(Hardware())
