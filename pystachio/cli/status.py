"""`pystachio-node status` and `drain`: a cluster as one of its nodes sees it, and a node that finishes."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pystachio.cli.at_node import AnyNode, ClusterEyes, ConfigFile, TokenFile, connected_to
from pystachio.cli.columns import aligned, printable
from pystachio.cli.failure import reported
from pystachio.cli.output import readable_bytes, say

if TYPE_CHECKING:
    from pystachio.remote.description import NodeDescription


def status(
    node: AnyNode,
    token_file: TokenFile = None,
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show a node, and the cluster as it knows it."""
    with reported(), connected_to(node, token_file, config) as connection, closing(ClusterEyes(connection)) as eyes:
        description = eyes.describe()
        if as_json:
            sys.stdout.write(json.dumps(asdict(description)) + "\n")
        else:
            sys.stdout.write(_page(description))


def drain(
    node: Annotated[str, typer.Option("--node", metavar="HOST:PORT", help="The node that is to take no more plans.")],
    token_file: TokenFile = None,
    config: ConfigFile = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take plans again.")] = False,
) -> None:
    """Let a node finish its plans and take no more; it goes on running."""
    from pystachio.remote.messages import Done, Drain

    with reported(), connected_to(node, token_file, config) as connection:
        connection.ask(Done, lambda number: Drain(number, not undo))
        say(f"{printable(connection.welcome.node)} {'takes plans again' if undo else 'takes no more plans'}")


def _page(node: NodeDescription) -> str:
    held = f"{readable_bytes(node.memory_used)} of {readable_bytes(node.memory_budget)}"
    facts = (
        ("node", node.name),
        ("address", node.address),
        ("state", "draining" if node.draining else "serving"),
        ("plans", f"{node.plans} of its own, {node.fragments} parts of others'"),
        ("memory", f"{held} held"),
        ("transport", ", ".join(node.transports)),
        ("epoch", str(node.epoch)),
    )
    head = "".join(f"{name:<10} {printable(value)}\n" for name, value in facts)
    rows = [
        (member.name, member.address, member.state, "leader" if member.name == node.leader else "")
        for member in node.members
    ]
    return f"{head}\n{aligned(('MEMBER', 'ADDRESS', 'STATE', ''), rows)}"
