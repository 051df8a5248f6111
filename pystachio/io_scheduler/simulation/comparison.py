"""The same scenario under several policies, each beside what interactive plans would get alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pystachio.io_scheduler.core.policy import Policy
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.io_scheduler.simulation.outcome import Outcome
from pystachio.io_scheduler.simulation.scenario import Scenario, simulate
from pystachio.io_scheduler.simulation.trace import Trace


@dataclass(frozen=True, slots=True)
class Comparison:
    """`idle` is the outcome with interactive plans only; None where the scenario is nothing else, or has none."""

    outcome: Outcome
    idle: Outcome | None

    def ratio(self, priority: PriorityClass, share: float) -> float | None:
        """The quantile of the class's latencies over that on the idle cluster."""
        if self.idle is None:
            return None
        here, alone = (outcome.of(priority).quantile(share) for outcome in (self.outcome, self.idle))
        return here / alone if here is not None and alone else None


def compare(
    scenario: Scenario,
    policies: Sequence[Policy],
    seed: int = 0,
    *,
    trace: Trace | None = None,
    begins: Callable[[Policy], None] | None = None,
) -> list[Comparison]:
    """One after the other; `begins` hears of each, `trace` collects the first. Raises `Deadlock`."""
    comparisons = []
    for policy in policies:
        if begins is not None:
            begins(policy)
        outcome = simulate(scenario, policy, seed, trace=trace)
        trace = None
        comparisons.append(Comparison(outcome, _idle(scenario, policy, seed, outcome)))
    return comparisons


def _idle(scenario: Scenario, policy: Policy, seed: int, outcome: Outcome) -> Outcome | None:
    alone = scenario.alone()
    if alone is None:
        return None
    if alone.seconds is None:
        # It was over when what is left out now had ended.
        alone = replace(alone, seconds=scenario.warm_up_seconds + outcome.seconds)
    return simulate(alone, policy, seed)
