"""What the central service costs and gives in simulation: away for 30 seconds, and fair in the whole cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from benchmarks.figures import Figure
from pystachio.io_scheduler.core.policy import POLICIES
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.io_scheduler.simulation import CentralService, Scans, Scenario, load_scenario
from pystachio.io_scheduler.simulation.central_service import Wire
from pystachio.io_scheduler.simulation.outcome import Outcome
from pystachio.io_scheduler.simulation.scenario import outcome_of, prepare
from pystachio.io_scheduler.simulation.workloads import Workload

POLICY = POLICIES["pystachio"]
FAIR_AFTER_SECONDS = 10.0


def figures(*, quick: bool) -> list[Figure]:
    """With `quick` on two nodes instead of four."""
    scenario = load_scenario("centre_away")
    if quick:
        scenario = replace(scenario, hardware=replace(scenario.hardware, nodes=2))
    return [*_away(scenario), *_fairness(scenario)]


def _away(scenario: Scenario) -> list[Figure]:
    here = replace(scenario, workloads=(CentralService(), *_load(scenario)))
    away, present = _outcome(scenario), _outcome(here)
    throughput = _bytes_per_second(away) / _bytes_per_second(present)
    waits = [outcome.of(PriorityClass.NORMAL).quantile(0.5) for outcome in (away, present)]
    assert waits[0] is not None
    assert waits[1] is not None
    failed = sum(each.plans_failed for each in away.classes)
    return [
        Figure("centre away 30 s: failed plans", failed, "plans", 0),
        Figure("centre away 30 s: throughput, against present", throughput, "", 0.98, "at least"),
        Figure(
            "centre away 30 s: time of a plan submitted meanwhile, against present",
            waits[0] / waits[1],
            "",
            1.02,
            samples=away.of(PriorityClass.NORMAL).plans_done,
        ),
        Figure("centre: messages per chunk", away.central_messages / away.chunks, "", 0.001),
    ]


def _fairness(scenario: Scenario) -> list[Figure]:
    """One plan on all nodes and one on a single node, which is fair when it has all of that node's disk."""
    shares = {name: _small_share(scenario, service) for name, service in (("with", True), ("without", False))}
    return [
        Figure(
            "centre: what a plan on one node gets of its max-min fair part, after 10 s",
            shares["with"],
            "",
            0.95,
            "at least",
            peers={"without a centre": shares["without"]},
        )
    ]


def _small_share(scenario: Scenario, with_centre: bool) -> float:
    load = (Scans(name="large"), Scans(name="small", nodes=1))
    until = 2.0 * FAIR_AFTER_SECONDS
    simulation = prepare(replace(scenario, workloads=load, seconds=until), POLICY, 1)
    wire = Wire(CentralService(), simulation)
    if with_centre:
        wire.begin()
    before = Counter[str]()
    after = Counter[str]()
    for at, totals in ((FAIR_AFTER_SECONDS, before), (until, after)):
        simulation.time.run(at, _nothing)
        for end in wire.ends:
            for (plan_id, _), nbytes in end.bytes.items():
                totals[plan_id] += nbytes
    rate = scenario.hardware.disk.bytes_per_second
    return (after["small0"] - before["small0"]) / (until - FAIR_AFTER_SECONDS) / rate


def _nothing() -> None:
    pass


def _load(scenario: Scenario) -> tuple[Workload, ...]:
    return tuple(part for part in scenario.workloads if not isinstance(part, CentralService))


def _outcome(scenario: Scenario) -> Outcome:
    simulation = prepare(scenario, POLICY, 1)
    simulation.run()
    return outcome_of(simulation, 1)


def _bytes_per_second(outcome: Outcome) -> float:
    return sum(each.bytes_per_second for each in outcome.classes)
