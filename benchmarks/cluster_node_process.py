"""Nodes of a test cluster as processes: `python -m benchmarks.cluster_node_process`, started by `cluster_processes`.

It imports everything once, and then forks a node for each line of JSON on its standard input: starting one takes no
more than a fork. Its standard output tells of each node that has started and ended. A node connects to the socket of
its parent, tells where it listens, and then takes orders from there: lines of JSON, answered by number. All nodes are
killed when the standard input ends, or when this process does.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.cluster_node_seams import Seams, die_with_parent
from pystachio import config as configuration
from pystachio.config import ClusterSettings
from pystachio.errors import PystachioError
from pystachio.planner.distribution.distribution import Preference
from pystachio.result import Result
from pystachio.runtime.membership.discovery import StaticDiscovery
from pystachio.runtime.membership.views import Address
from pystachio.server.cluster_node import ClusterNode
from pystachio.session import Session

SUSPECTS_SECONDS = 0.1
"""Between looks at who is suspect."""


class NodeProcess:
    """One node and its parent's orders, each of which is carried out on a thread of its own."""

    def __init__(self, options: dict[str, Any], connection: socket.socket) -> None:
        self._options = options
        self._folder = Path(options["folder"])
        self._connection = connection
        self._lock = threading.Lock()
        self._results: dict[int, Result | None] = {}
        self._cancelled: set[int] = set()
        self._suspects: frozenset[str] = frozenset()
        self._seams = Seams({int(port): route for port, route in options["routes"].items()})
        self._seams.install()
        seeds = tuple(Address("", "127.0.0.1", port) for port in options["seeds"])
        self._node = ClusterNode(
            configuration.load(None, **options["settings"]).settings,
            ClusterSettings.model_validate({"listen": f"127.0.0.1:{options['port']}", **options["cluster"]}),
            name=options["name"],
            secret=options["secret"].encode(),
            discovery=StaticDiscovery(*seeds),
            preference=Preference(options["preference"]),
        )
        self._session = Session(self._node.settings, node=self._node)
        for name, source in options["tables"].items():
            self._session.register(name, source)
        self._on_loop(self._watch)

    def run(self) -> None:
        """Until the parent says `leave`, or is gone."""
        self._say(number=0, name=self._node.name)
        orders = self._connection.makefile("r")
        for line in orders:
            order = json.loads(line)
            if order["order"] == "leave":
                self._node.close()
                self._say(number=order["number"])
                os._exit(0)
            threading.Thread(target=self._obey, args=(order,), daemon=True).start()
        os._exit(0)

    def _obey(self, order: dict[str, Any]) -> None:
        number, kind = order.pop("number"), order.pop("order")
        try:
            answer = getattr(self, f"_do_{kind}")(number, **order)
        except PystachioError as error:
            answer = {"error": error.code, "message": str(error), "retryable": error.retryable, "node": error.node}
        except BaseException as error:
            answer = {"error": "untyped", "message": "".join(traceback.format_exception(error))}
        self._say(number=number, **(answer or {}))

    def _do_sql(self, number: int, sql: str, priority: str | None = None) -> dict[str, Any]:
        """The rows are written to a file. A plan that is taken batch by batch is that of a client that reads slowly."""
        started = time.monotonic()
        self._results[number] = None
        result = self._results[number] = self._session.sql(sql, priority=priority)
        try:
            if number in self._cancelled:
                result.cancel()
            rows = result.to_arrow()
        finally:
            del self._results[number]
        path = self._folder / f"{self._node.name}-{os.getpid()}-{number}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows)
        running: Any = result._running
        return {
            "path": str(path),
            "rows": rows.num_rows,
            "seconds": time.monotonic() - started,
            "attempts": running.attempts,
            "plan_id": result.plan_id,
        }

    def _do_cancel(self, number: int, target: int) -> None:
        self._cancelled.add(target)
        result = self._results.get(target)
        if result is not None:
            result.cancel()

    def _do_statistics(self, number: int) -> dict[str, Any]:
        node = self._node

        def ask() -> dict[str, Any]:
            network = node.network.statistics()
            return {
                "fragments": node.fragments.running,
                "attempts": len(node.coordinator._attempts),
                "members": [member.name for member in node.plane.available()],
                "epoch": node.plane.view.epoch,
                "leader": node.plane.view.leader,
                "messages": sum(peer.incoming + peer.outgoing + peer.offered for peer in network.peers),
                "peers": [peer.name for peer in network.peers],
            }

        held = node.statistics()
        return {
            **self._on_loop(ask),
            "plans": held.running_plans,
            "reserved": held.reserved_bytes,
            "leaks": held.leaks,
            "failed_chunks": self._seams.failed,
            "corrupted": self._seams.corrupted,
        }

    def _do_describe(self, number: int) -> dict[str, Any]:
        described = self._node.describe()
        return {"described": [[member.name, member.state] for member in described.members]}

    def _do_wedge(self, number: int, seconds: float) -> None:
        """The loop stands still from about now; this is answered at once."""
        self._node.host.call_soon(lambda: time.sleep(seconds))

    def _do_fail_device(self, number: int, direction: str, error: int, chunks: int) -> None:
        self._seams.fail(direction, error, chunks)

    def _do_corrupt(self, number: int, pieces: int) -> None:
        self._seams.corrupt = pieces

    def _do_drain(self, number: int, draining: bool) -> None:
        self._node.drain(draining)

    def _on_loop(self, call: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return call()

        return self._node.host.call(run()).result()

    def _watch(self) -> None:
        """On the loop: tell the parent of losses and suspicions as they come, by the clock that all processes share."""
        self._node.plane.when_node_lost(lambda name, error: self._tell("lost", name))
        self._look()

    def _look(self) -> None:
        suspects = self._node.network.suspects()
        for name in suspects - self._suspects:
            self._tell("suspect", name)
        self._suspects = suspects
        asyncio.get_running_loop().call_later(SUSPECTS_SECONDS, self._look)

    def _tell(self, event: str, node: str) -> None:
        self._say(event=event, node=node, at=time.monotonic())

    def _say(self, **fields: Any) -> None:
        line = json.dumps(fields).encode() + b"\n"
        with self._lock:
            try:
                self._connection.sendall(line)
            except OSError:
                os._exit(1)  # the parent is gone


def _serve_node(options: dict[str, Any]) -> None:
    """In the child: a node until its end."""
    die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(f"{options['folder']}/{options['name']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(options["socket"])
    try:
        NodeProcess(options, connection).run()
    except BaseException:
        traceback.print_exc()
        os._exit(3)


def _report_ended(*_: object) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _report(ended=pid, status=os.waitstatus_to_exitcode(status))


def _report(**fields: Any) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


def main() -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, _report_ended)
    # As a served node does when it has started; and pages of objects that nobody looks at stay shared.
    gc.collect()
    gc.freeze()
    _report(ready=True)
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            _serve_node(json.loads(line))
        _report(started=pid)
    os._exit(0)


if __name__ == "__main__":
    main()
