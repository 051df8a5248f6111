"""`pystachio-node simulate`: what the I/O scheduler would do, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pystachio.cli.failure import reported, wrong_usage
from pystachio.cli.output import check_output, open_output, say
from pystachio.cli.process import interruptible, started
from pystachio.errors import InternalError, NotFound

if TYPE_CHECKING:
    from pystachio.io_scheduler.core.policy import Policy
    from pystachio.io_scheduler.simulation.comparison import Comparison
    from pystachio.io_scheduler.simulation.scenario import Scenario
    from pystachio.io_scheduler.simulation.trace import Trace


def simulate(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="The name of a built-in scenario, or a Python file with one.")
    ],
    policy: Annotated[
        list[str] | None, typer.Option(help="Which policies, side by side. [default: the scenario's]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of all chance; the same seed gives the same event hash.")] = 0,
    trace: Annotated[
        Path | None, typer.Option(help="Write what the first policy did to this file, for ui.perfetto.dev.")
    ] = None,
    chart: Annotated[Path | None, typer.Option(help="Draw a chart into this PNG file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Simulate the I/O scheduler on disks, buses and networks that are not there.

    A scenario says what the cluster is made of, what runs on it and what goes wrong; see docs/simulation.md.
    """
    with interruptible(), reported():
        asked, policies = _load(scenario, policy)
        check_output(trace)
        check_output(chart)
        if chart is not None:
            from pystachio.io_scheduler.simulation.chart import require_matplotlib

            require_matplotlib()
        collected = _trace() if trace is not None else None
        with _blamed(scenario, seed):
            comparisons = _compare(asked, policies, seed, collected, quiet=quiet)
        _write_files(asked, comparisons, collected, trace, chart)
        if as_json:
            from pystachio.cli.simulation_report import as_object

            typer.echo(json.dumps(as_object(asked, comparisons), indent=1))
        else:
            from pystachio.cli.simulation_report import print_tables

            print_tables(asked, comparisons)


def _load(name: str, policies: list[str] | None) -> tuple[Scenario, list[Policy]]:
    """What is not there is wrong usage; what is there and fails is not."""
    from pystachio.io_scheduler.simulation.scenario import find_policy
    from pystachio.io_scheduler.simulation.scenario_files import load_scenario

    try:
        scenario = load_scenario(name)
        return scenario, [find_policy(each) for each in dict.fromkeys(policies or scenario.policies)]
    except NotFound as error:
        raise wrong_usage(error) from None


def _trace() -> Trace:
    from pystachio.io_scheduler.simulation.trace import Trace

    return Trace()


@contextmanager
def _blamed(name: str, seed: int) -> Iterator[None]:
    """What fails in the scenario's own code is not a defect of the simulator; a deadlock is one of the scheduler."""
    from pystachio.io_scheduler.simulation.scenario_files import blame
    from pystachio.io_scheduler.simulation.simulation import Deadlock

    try:
        yield
    except Deadlock as deadlock:
        raise InternalError(f"deadlock: {deadlock}", hint=f"--seed {seed} shows it again") from None
    except Exception as error:
        raise blame(name, error) or error from error


def _compare(
    scenario: Scenario, policies: list[Policy], seed: int, trace: Trace | None, *, quiet: bool
) -> list[Comparison]:
    from pystachio.io_scheduler.simulation.comparison import compare

    def begins(policy: Policy) -> None:
        if not quiet:
            say(f"simulating {policy.name}")

    started()
    return compare(scenario, policies, seed, trace=trace, begins=begins)


def _write_files(
    scenario: Scenario,
    comparisons: list[Comparison],
    collected: Trace | None,
    trace: Path | None,
    chart: Path | None,
) -> None:
    if trace is not None and collected is not None:
        with open_output(trace) as sink:
            collected.write(sink, comparisons[0].outcome.links)
        if collected.dropped:
            say(f"the trace holds the first chunks; {collected.dropped:,} are left out")
    if chart is not None:
        from pystachio.io_scheduler.simulation.chart import draw

        with open_output(chart) as sink:
            draw(scenario.title, comparisons, sink)
