"""`pystachio-node ray`: the nodes of a cluster, started and looked after by Ray."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pystachio.cli.columns import aligned
from pystachio.cli.failure import reported
from pystachio.cli.output import say

if TYPE_CHECKING:
    from pystachio.server.supervisor import Report

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

RayAddress = Annotated[
    str | None, typer.Option("--address", metavar="HOST:PORT", help="Ray's head. [default: this machine's Ray]")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object for each node.")]


@app.callback()
def root() -> None:
    """Run a cluster's nodes on the hosts of a Ray cluster, which has to run in token mode (RAY_AUTH_MODE=token)."""


@app.command()
def up(
    address: RayAddress = None,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file of the nodes' settings: a path on every host, as is the secret's in it."),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="How many, spread over the hosts.", min=1, max=4096)] = None,
    per_gpu: Annotated[
        bool | None,
        typer.Option("--per-gpu/--per-host", help="One for each GPU or host. [default: for each GPU if there are any]"),
    ] = None,
    hosts: Annotated[int, typer.Option(help="Wait until Ray has so many hosts.", min=1)] = 1,
    as_json: AsJson = False,
) -> None:
    """Start the nodes, and for each a supervisor that starts it again when it ends; return when all serve."""
    from pystachio.server.ray_cluster import connected

    with reported(), connected(address) as cluster:
        place = None if config is None else str(config.expanduser().absolute())
        _print(cluster.up(place, nodes=nodes, per_gpu=per_gpu, hosts=hosts), as_json)


@app.command()
def status(address: RayAddress = None, as_json: AsJson = False) -> None:
    """Show the nodes' supervisors: what they started, where, and how it ended."""
    from pystachio.server.ray_cluster import connected

    with reported(), connected(address) as cluster:
        _print(cluster.status(), as_json)


@app.command()
def down(address: RayAddress = None, as_json: AsJson = False) -> None:
    """Let the nodes finish their plans and end, and their supervisors with them."""
    from pystachio.server.ray_cluster import connected

    with reported(), connected(address) as cluster:
        reports = cluster.down()
        _print(reports, as_json)
        say(f"ended: {len(reports)} nodes")


def _print(reports: list[Report], as_json: bool) -> None:
    if as_json:
        sys.stdout.writelines(json.dumps(asdict(report)) + "\n" for report in reports)
        return
    rows = [
        (
            report.name,
            report.host,
            report.state.value,
            report.address or "",
            "" if report.pid is None else str(report.pid),
            str(report.starts),
            ", ".join(map(str, report.exits)),
            report.problem or "",
        )
        for report in reports
    ]
    sys.stdout.write(aligned(("NODE", "HOST", "STATE", "ADDRESS", "PID", "STARTS", "EXIT CODES", ""), rows))
