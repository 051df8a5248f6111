"""Clusters of nodes that are processes of their own, so that they can die: for tests of faults and for benchmarks.

A `ProcessCluster` starts nodes by forking one process that has imported everything, orders them about over sockets, and
kills them all when it is closed, as the kernel does when this process dies. Nodes reach each other through proxies
where `proxied` says so (`cluster_proxy`).
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from benchmarks.cluster_proxy import Proxies

START_SECONDS = 30.0
ANSWER_SECONDS = 30.0
SECRET = "the secret of a cluster of processes"
SETTINGS: dict[str, Any] = {"threads": 1, "memory": "512MiB", "control_socket": False, "chunk_cache": False}


class ProcessGone(Exception):
    """The node's process has ended, or did not start."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a statement ended: `rows`, or the `error`'s code (`gone` with the process, `untyped` outside of our tree)."""

    seconds: float
    rows: pa.Table | None = None
    error: str | None = None
    message: str = ""
    retryable: bool = False
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Seen:
    """What a node saw: that `node` is "lost" or "suspect", at a time of `time.monotonic`."""

    event: str
    node: str
    at: float


@dataclass(slots=True, eq=False)
class NodeProcess:
    """`ended` is set, with the exit status, when the process has ended."""

    name: str
    port: int
    forked: Future[int] = field(default_factory=Future)
    ended: Future[int] = field(default_factory=Future)
    ready: Future[None] = field(default_factory=Future)
    seen: list[Seen] = field(default_factory=list)
    _connection: socket.socket | None = None
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _answers: dict[int, Future[dict[str, Any]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_running(self) -> bool:
        return not self.ended.done()

    def order(self, kind: str, **fields: Any) -> Future[dict[str, Any]]:
        """The answer; ProcessGone when the process ends before it."""
        return self._order(kind, fields)[1]

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """`order`, awaited. Raises TimeoutError and ProcessGone, and RuntimeError when it went wrong."""
        answer = self.order(kind, **fields).result(ANSWER_SECONDS)
        if "error" in answer:
            raise RuntimeError(f"{self.name}, {kind}: {answer}")
        return answer

    def start_sql(self, sql: str, priority: str | None = None) -> Statement:
        started = time.monotonic()
        number, answer = self._order("sql", {"sql": sql, "priority": priority})
        return Statement(self, sql, number, answer, started)

    def sql(self, sql: str, seconds: float = ANSWER_SECONDS) -> Outcome:
        """Raises TimeoutError when it hangs."""
        return self.start_sql(sql).outcome(seconds)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def stop(self) -> None:
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    def signal(self, number: int) -> None:
        pid = self.forked.result(START_SECONDS)
        if self.is_running:
            os.kill(pid, number)

    def leave(self, seconds: float = ANSWER_SECONDS) -> int:
        """Close the node, as its owner does; returns the exit status."""
        self.order("leave")
        return self.ended.result(seconds)

    def attach(self, connection: socket.socket) -> None:
        self._connection = connection
        self.ready.set_result(None)

    def take(self, told: dict[str, Any]) -> None:
        """What the process has said."""
        if "event" in told:
            self.seen.append(Seen(told["event"], told["node"], told["at"]))
            return
        answer = self._answers.pop(told.pop("number"), None)
        if answer is not None:
            answer.set_result(told)

    def note_ended(self, status: int) -> None:
        if self._connection is not None:
            self._connection.close()
        with self._lock:
            self.ended.set_result(status)
            left, self._answers = list(self._answers.values()), {}
        gone = ProcessGone(f"{self.name} has ended with {status}")
        for answer in left:
            answer.set_exception(gone)
        if not self.ready.done():
            self.ready.set_exception(gone)

    def _order(self, kind: str, fields: dict[str, Any]) -> tuple[int, Future[dict[str, Any]]]:
        number, answer = next(self._numbers), Future[dict[str, Any]]()
        with self._lock:
            if not self.is_running or self._connection is None:
                answer.set_exception(ProcessGone(f"{self.name} does not run"))
                return number, answer
            self._answers[number] = answer
            try:
                self._connection.sendall(json.dumps({"order": kind, "number": number, **fields}).encode() + b"\n")
            except OSError:
                """It is about to be reported as ended."""
        return number, answer


@dataclass(frozen=True, slots=True)
class Statement:
    """One that runs on a node."""

    node: NodeProcess
    sql: str
    number: int
    answer: Future[dict[str, Any]]
    started: float

    def cancel(self) -> None:
        self.node.order("cancel", target=self.number)

    def outcome(self, seconds: float = ANSWER_SECONDS) -> Outcome:
        """Raises TimeoutError when it has not ended within so many seconds from its start."""
        try:
            answer = self.answer.result(max(0.0, self.started + seconds - time.monotonic()))
        except ProcessGone as gone:
            return Outcome(time.monotonic() - self.started, error="gone", message=str(gone))
        seconds = time.monotonic() - self.started
        if "error" in answer:
            return Outcome(
                seconds, error=answer["error"], message=answer["message"], retryable=answer.get("retryable", False)
            )
        path = Path(answer["path"])
        with pa.memory_map(str(path)) as file:
            rows = pa.ipc.open_file(file).read_all()
        path.unlink()
        return Outcome(answer["seconds"], rows=rows, attempts=answer["attempts"])


class ProcessCluster:
    """`with ProcessCluster(3) as cluster:` nodes n0, n1, n2, which have met; n0 is the seed of the others."""

    def __init__(
        self,
        count: int,
        *,
        tables: Mapping[str, Path | str] | None = None,
        transport: str = "tcp",
        preference: str = "bytes",
        proxied: bool = False,
        settings: Mapping[str, Any] | None = None,
        cluster: Mapping[str, Any] | None = None,
        settings_of: Callable[[str], Mapping[str, Any]] = lambda name: {},
    ) -> None:
        """`settings` are the node's, `cluster` those of `ClusterSettings`; `settings_of` adds to those of one node.

        `spare` is the name of one more node, which can be started later.
        """
        self.spare = f"n{count}"
        self.nodes: dict[str, NodeProcess] = {}
        self.proxies: Proxies | None = None
        self._count = count
        self.tables = {name: str(source) for name, source in (tables or {}).items()}
        self._preference = preference
        self._is_proxied = proxied
        self._settings = {**SETTINGS, **(settings or {})}
        self._settings_of = settings_of
        self._cluster = {"transport": transport, "watchdog_seconds": 0, "alone_bytes": 0, **(cluster or {})}
        self._resources = ExitStack()
        self._ports = dict.fromkeys([f"n{number}" for number in range(count + 1)], 0)
        self._routes: dict[str, dict[int, int]] = {name: {} for name in self._ports}
        self._by_pid: dict[int, NodeProcess] = {}
        self._early: dict[int, int] = {}
        self._lock = threading.Lock()
        self._started: list[NodeProcess] = []

    def __enter__(self) -> ProcessCluster:
        with ExitStack() as resources:
            self.folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="pystachio-cluster-")))
            self._ports = {name: _held_port(resources) for name in self._ports}
            self._listener = socket.socket(socket.AF_UNIX)
            resources.callback(self._listener.close)
            self._listener.bind(str(self.folder / "orders"))
            self._listener.listen()
            accepting = threading.Thread(target=self._accept, name="orders", daemon=True)
            accepting.start()
            # It waits in the system for the number of the listener, which is soon another one's.
            resources.callback(accepting.join)
            resources.callback(self._listener.shutdown, socket.SHUT_RDWR)
            self._open_ways(resources)
            self._zygote = subprocess.Popen(
                (sys.executable, "-m", "benchmarks.cluster_node_process"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parent.parent,
            )
            resources.callback(self._kill_all)
            assert self._zygote.stdout is not None, "it is a pipe"
            if not self._zygote.stdout.readline():
                raise ProcessGone("the process that starts nodes did not start")
            threading.Thread(target=self._hear_zygote, name="zygote", daemon=True).start()
            try:
                for name in itertools.islice(self._ports, self._count):
                    self.start(name)
                self.until_met(START_SECONDS)
            except (ProcessGone, TimeoutError) as error:
                error.add_note(self.logs())
                raise
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    def start(self, name: str, *, wait: bool = True) -> NodeProcess:
        """Start the node, or start it anew; it joins those that run."""
        node = NodeProcess(name, self._ports[name])
        self.nodes[name] = node
        options = {
            "name": name,
            "port": node.port,
            "folder": str(self.folder),
            "socket": str(self.folder / "orders"),
            "secret": SECRET,
            "seeds": [other.port for other in self.running() if other is not node],
            "routes": self._routes[name],
            "settings": {**self._settings, **self._settings_of(name)},
            "cluster": self._cluster,
            "preference": self._preference,
            "tables": self.tables,
        }
        with self._lock:
            self._started.append(node)
            assert self._zygote.stdin is not None, "it is a pipe"
            self._zygote.stdin.write(json.dumps(options) + "\n")
            self._zygote.stdin.flush()
        if wait:
            node.ready.result(START_SECONDS)
        return node

    def running(self) -> list[NodeProcess]:
        return [node for node in self.nodes.values() if node.is_running]

    def until_met(self, seconds: float, nodes: Sequence[NodeProcess] | None = None) -> float:
        """Wait until these nodes (all that run) can give work to each other and to no others; how long that took.

        Raises TimeoutError.
        """
        among = list(nodes if nodes is not None else self.running())
        names = sorted(node.name for node in among)
        return self.until(
            lambda: all(sorted(node.ask("statistics")["members"]) == names for node in among),
            seconds,
            lambda: f"{names} do not meet: {[(node.name, node.ask('statistics')) for node in among]}",
        )

    def until_idle(self, seconds: float, nodes: Sequence[NodeProcess] | None = None) -> float:
        """Wait until nothing of any plan is left on these nodes (all that run); how long that took."""
        among = list(nodes if nodes is not None else self.running())
        return self.until(
            lambda: all(is_idle(node.ask("statistics")) for node in among),
            seconds,
            lambda: f"something is left: {[(node.name, node.ask('statistics')) for node in among]}",
        )

    def until_at_work(self, node: NodeProcess) -> float:
        """Wait until the node runs a part of another one's plan; how long that took. Raises TimeoutError."""
        return self.until(
            lambda: node.ask("statistics")["fragments"] > 0,
            START_SECONDS,
            lambda: f"no part of a plan is on {node.name}",
        )

    def until(self, holds: Callable[[], bool], seconds: float, problem: Callable[[], str]) -> float:
        started = time.monotonic()
        while not holds():
            if time.monotonic() - started > seconds:
                raise TimeoutError(problem())
            time.sleep(0.02)
        return time.monotonic() - started

    def logs(self) -> str:
        """What the nodes wrote, for a failure's message."""
        return "\n".join(f"--- {path.name}\n{path.read_text()[-4000:]}" for path in sorted(self.folder.glob("*.log")))

    def _open_ways(self, resources: ExitStack) -> None:
        if not self._is_proxied:
            return
        self.proxies = resources.enter_context(Proxies())
        for source, target in itertools.permutations(self._ports, 2):
            port = self._ports[target]
            self._routes[source][port] = self.proxies.open(source, target, port)

    def _hear_zygote(self) -> None:
        assert self._zygote.stdout is not None, "it is a pipe"
        starting = iter(self._started_in_order())
        with self._zygote.stdout as lines:
            self._take_starts(lines, starting)
        for node in self.running():
            node.note_ended(-signal.SIGKILL)

    def _take_starts(self, lines: Iterable[str], starting: Iterator[NodeProcess]) -> None:
        """And ends, until the zygote's."""
        for line in lines:
            told = json.loads(line)
            if "started" in told:
                node = next(starting)
                pid = told["started"]
                node.forked.set_result(pid)
                with self._lock:
                    self._by_pid[pid] = node
                    status = self._early.pop(pid, None)
                if status is not None:
                    node.note_ended(status)
            else:
                with self._lock:
                    ended = self._by_pid.pop(told["ended"], None)
                    if ended is None:
                        self._early[told["ended"]] = told["status"]
                if ended is not None:
                    ended.note_ended(told["status"])

    def _started_in_order(self) -> Iterator[NodeProcess]:
        for number in itertools.count():
            yield self._started[number]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._hear_node, args=(connection,), daemon=True).start()

    def _hear_node(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("r") as lines:
                line = lines.readline()
                if not line:
                    return
                told = json.loads(line)
                node = self.nodes[told["name"]]
                if node.is_running:
                    node.attach(connection)
                for line in lines:
                    node.take(json.loads(line))
        except (OSError, ValueError):
            """The process has ended in the middle of a word."""

    def _kill_all(self) -> None:
        for node in self.running():
            node.kill()
        self._zygote.kill()
        self._zygote.wait()
        assert self._zygote.stdin is not None, "it is a pipe"
        with suppress(BrokenPipeError):
            self._zygote.stdin.close()


def is_idle(statistics: Mapping[str, Any]) -> bool:
    """Whether nothing of any plan is left."""
    return not any(statistics[what] for what in ("plans", "fragments", "attempts", "messages", "reserved"))


def _held_port(resources: ExitStack) -> int:
    """A free port that the system gives to nobody who asks for any; who asks for this one and may reuse it gets it."""
    holder = resources.enter_context(socket.socket())
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    port: int = holder.getsockname()[1]
    return port
