"""`pystachio-node serve`: a node of a cluster as a process."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from contextlib import closing
from enum import Enum, StrEnum
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pystachio.cli.choice import metavar, one_of
from pystachio.cli.failure import ExitCode, describe, reported, wrong_usage
from pystachio.cli.output import say
from pystachio.cli.process import importing_only_what_is_needed, started
from pystachio.errors import InvalidRequest

if TYPE_CHECKING:
    from pystachio.config import Loaded
    from pystachio.runtime.membership.ray_discovery import RayDiscovery
    from pystachio.server.serving import ServingNode


LEAST_MEMORY = 16 << 20
"""With less not even one small file can be scanned."""
_ABANDONED_SECONDS = 10.0


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _Wish(Enum):
    """What is waited for."""

    STOP = "SIGTERM"
    END_NOW = "SIGINT"
    SETTLED = "nothing runs any more"
    OVERDUE = "something still runs"


def serve(
    config: Annotated[Path | None, typer.Option(help="Read settings from this TOML file.")] = None,
    join: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="A node of the cluster to join; may be repeated.")
    ] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where to listen.")] = None,
    name: Annotated[str | None, typer.Option(help="The node's name in the cluster.")] = None,
    data: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="Folder whose tables clients have; may be repeated.")
    ] = None,
    health: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Answer GET /ready and /live over HTTP there.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Bytes that running plans may hold, for example 2GiB.")] = None,
    threads: Annotated[int | None, typer.Option(help="Worker threads.")] = None,
    log: Annotated[
        LogLevel, typer.Option(parser=one_of(LogLevel), metavar=metavar(LogLevel), help="The least that is logged.")
    ] = LogLevel.INFO,
    while_open: Annotated[bool, typer.Option("--while-stdin-is-open", hidden=True)] = False,
) -> None:
    """Be a node of a cluster, until SIGTERM.

    Prints one line when it serves; the log goes to standard error, as JSON where that is no terminal. The first SIGTERM
    lets running plans finish; the second, or Ctrl-C, cancels them.

    Exit codes: 0 drained, 1 plans were cancelled, or it could not start and may another time, 2 the configuration is
    wrong, 70 its event loop stood still, 130 interrupted.
    """
    wishes: SimpleQueue[_Wish] = SimpleQueue()
    # Putting into a SimpleQueue is what a signal's handler may do, whatever it has interrupted.
    signal.signal(signal.SIGTERM, lambda number, frame: wishes.put(_Wish.STOP))
    signal.signal(signal.SIGINT, lambda number, frame: wishes.put(_Wish.END_NOW))
    supervisor = None
    if while_open:
        from pystachio.runtime.membership.ray_discovery import RayDiscovery

        supervisor = RayDiscovery()
        threading.Thread(target=_until_end_of_input, args=(wishes, supervisor), daemon=True).start()
    with reported():
        loaded = settings_to_serve(
            config,
            cluster_join=join or None,
            cluster_listen=listen,
            cluster_name=name,
            cluster_data=[str(path) for path in data] if data else None,
            cluster_health=health,
            memory=memory,
            threads=threads,
        )
        with importing_only_what_is_needed():
            from pystachio.runtime.logging import configure_logging
            from pystachio.server.ready_line import Ready
            from pystachio.server.serving import ServingNode
        configure_logging(level=logging.getLevelNamesMapping()[log.name])
        started()
        try:
            made = ServingNode(loaded.settings, loaded.cluster, supervisor=supervisor)
        except InvalidRequest as error:
            # The same configuration would fail again: whoever starts it again and again is to stop.
            say(describe(error))
            raise typer.Exit(ExitCode.USAGE) from None
        with closing(made) as serving:
            serving.open(is_to_stop=lambda: not wishes.empty())
            sys.stdout.write(str(Ready(serving.node.name, serving.address, serving.health)))
            sys.stdout.flush()
            code = _until_the_end(serving, wishes)
    raise typer.Exit(code)


def settings_to_serve(config: Path | None, **arguments: Any) -> Loaded:
    """A setting that is bad, or a node that would stand open, is wrong usage: exit code 2."""
    from pystachio.config import load, require_serviceable

    try:
        loaded = load(config, **arguments)
        require_serviceable(loaded.cluster)
        if loaded.settings.memory < LEAST_MEMORY:
            raise InvalidRequest(
                f"a node cannot serve with a memory of {loaded.settings.memory:,} bytes",
                hint=f"--memory is in bytes, or as 2GiB: at least {LEAST_MEMORY >> 20}MiB",
            )
    except InvalidRequest as error:
        raise wrong_usage(error) from None
    return loaded


def _until_the_end(serving: ServingNode, wishes: SimpleQueue[_Wish]) -> ExitCode:
    if wishes.get() is _Wish.END_NOW:
        say("interrupted: running plans are cancelled")
        return ExitCode.INTERRUPTED
    say("stopping: running plans finish, others are refused")
    settled = serving.drain()
    settled.add_done_callback(
        lambda done: wishes.put(_Wish.SETTLED if done.exception() is None and done.result() else _Wish.OVERDUE)
    )
    match wishes.get():
        case _Wish.SETTLED:
            return ExitCode.OK
        case _Wish.OVERDUE:
            say("plans still run after drain_seconds: they are cancelled")
        case _:
            say("told to stop again: running plans are cancelled")
    return ExitCode.FAILED


def _until_end_of_input(wishes: SimpleQueue[_Wish], supervisor: RayDiscovery) -> None:
    """Whoever started this process is gone when its end of the pipe is. A supervisor says who the other nodes are."""
    from pystachio.runtime.membership.ray_discovery import LONGEST_LINE

    while line := sys.stdin.buffer.readline(LONGEST_LINE):
        try:
            supervisor.tell(line)
        except InvalidRequest as error:
            say(describe(error))
    wishes.put(_Wish.END_NOW)
    # Nobody is left to kill a process that does not end by itself.
    time.sleep(_ABANDONED_SECONDS)
    os._exit(ExitCode.INTERRUPTED)
