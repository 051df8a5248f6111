"""`pystachio-node submit`: one statement on a cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pystachio.cli.at_node import AnyNode, ConfigFile, TokenFile, connected_to
from pystachio.cli.choice import metavar, one_of
from pystachio.cli.failure import reported
from pystachio.cli.formats import Format, choose_format
from pystachio.cli.output import check_output
from pystachio.cli.process import interruptible
from pystachio.cli.query import Priority, deadline_option, deliver, print_text, statement_of

_CANCEL_SECONDS = 1.5
"""From Ctrl-C to the end of the process: the node is told to cancel the plan."""


def submit(
    node: AnyNode,
    sql: Annotated[str | None, typer.Argument(metavar="[SQL]", help="The statement.", show_default=False)] = None,
    token_file: TokenFile = None,
    config: ConfigFile = None,
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder on the node's machine whose tables to have as well.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the statement from this file; - is standard input.")] = None,
    format: Annotated[
        Format | None,
        typer.Option(
            parser=one_of(Format),
            metavar=metavar(Format),
            help="How rows are written. [default: by --output's name, else table]",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write rows to this file, which appears when it is complete.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print the plan, run nothing.")] = False,
    analyze: Annotated[bool, typer.Option("--analyze", help="Run, then print the plan with what it did.")] = False,
    priority: Annotated[
        Priority | None,
        typer.Option(
            parser=one_of(Priority),
            metavar=metavar(Priority),
            help="How urgent the query is.",
            show_default="interactive",
        ),
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="When the answer is wanted, from now: 500ms, 2s, 1m. Orders, ends nothing.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
) -> None:
    """Answer a SQL query on a cluster.

    Rows go to standard output, everything else to standard error.
    """
    from pystachio.remote.session import RemoteSession

    how = choose_format(format, output)
    if how.binary and output is None and sys.stdout.isatty():
        raise typer.BadParameter(f"{how} is binary: name a file with --output, or pipe it into a program")
    statement = statement_of(sql, file)
    seconds = deadline_option(deadline)
    if seconds is not None and priority not in (None, Priority.INTERACTIVE):
        raise typer.BadParameter("a deadline orders interactive queries only")
    with interruptible(_CANCEL_SECONDS), reported():
        check_output(output)
        with connected_to(node, token_file, config) as connection, RemoteSession(connection) as session:
            if data is not None:
                session.register_folder(data)
            if explain and not analyze:
                print_text(session.explain(statement), output)
                return
            result = session.sql(statement, priority=(priority or Priority.INTERACTIVE).value, deadline=seconds)
            deliver(result, how, output, analyze=analyze, quiet=quiet)
