"""The control socket: listing and steering a node from outside, and everything that may go wrong on the way."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest

from pystachio.errors import Cancelled, DataError, InvalidRequest, NodeLost, NotFound
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.runtime import control_client
from pystachio.runtime.control import MOST_CONNECTIONS, ControlServer
from pystachio.runtime.control_client import look, node_of_plan, steer
from pystachio.runtime.control_folder import ControlSocket, control_folders, control_sockets
from pystachio.runtime.control_protocol import (
    MOST_ANSWER_BYTES,
    MOST_REQUEST_BYTES,
    Cancel,
    Look,
    Prioritize,
    request_line,
)
from pystachio.runtime.executor import PlanScope, TaskSpec
from pystachio.runtime.node import Node
from pystachio.runtime.observation import LONGEST_LABEL
from tests.runtime.nodes import make_node

T = TypeVar("T")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sockets"


@pytest.fixture
async def node(folder: Path) -> AsyncIterator[Node]:
    async with make_node() as node, ControlServer(node, folder=folder):
        yield node


def endless(scope: PlanScope) -> Sequence[TaskSpec]:
    return [TaskSpec("wait", asyncio.Event().wait)]  # type: ignore[list-item]


async def outside(call: Callable[[], T]) -> T:
    """As another process: not on the node's loop."""
    return await asyncio.to_thread(call)


@contextmanager
def mute_socket(folder: Path) -> Iterator[None]:
    """Of a living process that never answers."""
    folder.mkdir(mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(folder / f"{os.getpid()}-mute.sock"))
        mute.listen()
        yield


def socket_in(folder: Path) -> ControlSocket:
    (found,) = control_sockets((folder,))
    return found


async def exchange(folder: Path, line: bytes) -> dict[str, object]:
    """What the node answers to raw bytes."""
    reader, writer = await asyncio.open_unix_connection(socket_in(folder).path, limit=1 << 20)
    writer.write(line)
    answer = await reader.readline()
    writer.close()
    return dict(json.loads(answer))


async def test_plans_are_listed_steered_and_cancelled(node: Node, folder: Path) -> None:
    handle = await node.submit(endless, plan_id="abc1", priority=PriorityClass.BATCH, label="select 1")
    await node.submit(endless, plan_id="abd2", priority=PriorityClass.INTERACTIVE, deadline=60)
    found = await outside(lambda: look((folder,)))
    assert found[0].seen is not None
    plans = {plan.plan_id: plan for plan in found[0].seen.activity.plans}
    assert (plans["abc1"].priority, plans["abc1"].label, plans["abc1"].deadline) == ("batch", "select 1", None)
    assert plans["abd2"].deadline is not None
    assert found[0].seen.pid == os.getpid()

    where, plan_id = await outside(lambda: node_of_plan("abc", (folder,)))
    assert plan_id == "abc1"
    await outside(lambda: steer(where, Prioritize("abc1", "interactive", 5.0)))
    changed = {plan.plan_id: plan for plan in node.activity().plans}["abc1"]
    assert changed.priority == "interactive"
    assert changed.deadline is not None
    await outside(lambda: steer(where, Cancel("abc1")))
    assert isinstance(await handle.wait_ended(), Cancelled)


async def test_what_the_node_refuses(node: Node, folder: Path) -> None:
    where = socket_in(folder)
    await node.submit(endless, plan_id="p")
    with pytest.raises(NotFound, match="no running plan"):
        await outside(lambda: steer(where, Cancel("q")))
    with pytest.raises(InvalidRequest, match="no such priority"):
        await outside(lambda: steer(where, Prioritize("p", "urgent")))
    with pytest.raises(InvalidRequest, match="between now and a year"):
        await outside(lambda: steer(where, Prioritize("p", "interactive", -1.0)))
    with pytest.raises(InvalidRequest, match="interactive plans only"):
        await outside(lambda: steer(where, Prioritize("p", "batch", 1.0)))


def test_a_plan_that_no_node_has(folder: Path) -> None:
    for plan_id in ("a", "", "a" * 1000):
        with pytest.raises(NotFound, match="no running plan"):
            node_of_plan(plan_id, (folder,))
    with mute_socket(folder), pytest.raises(NodeLost, match="no answer in time"):
        node_of_plan("a", (folder,), seconds=0.05)


async def test_an_ambiguous_beginning(node: Node, folder: Path) -> None:
    for plan_id in ("abc1", "abc2", "abc"):
        await node.submit(endless, plan_id=plan_id)
    assert (await outside(lambda: node_of_plan("abc", (folder,))))[1] == "abc", "the whole id counts first"
    with pytest.raises(InvalidRequest, match="several plans") as caught:
        await outside(lambda: node_of_plan("ab", (folder,)))
    assert caught.value.hint == "one of abc, abc1, abc2"


async def test_long_statements_keep_nobody_from_looking_and_steering(node: Node, folder: Path) -> None:
    statement = "select 1 -- " + "x" * MOST_ANSWER_BYTES
    handle = await node.submit(endless, plan_id="abc1", label=statement)
    await node.submit(endless, plan_id="odd", label="\n  select '\udcff' \n from\tt " + " " * 2000)
    (found,) = await outside(lambda: look((folder,)))
    assert found.seen is not None
    labels = {plan.plan_id: plan.label for plan in found.seen.activity.plans}
    assert len(labels["abc1"]) == LONGEST_LABEL
    assert labels["abc1"].startswith("select 1 -- xxx")
    assert labels["odd"] == "select '?' from t…"
    where, plan_id = await outside(lambda: node_of_plan("abc", (folder,)))
    await outside(lambda: steer(where, Cancel(plan_id)))
    assert isinstance(await handle.wait_ended(), Cancelled)


async def test_plans_that_are_too_many_to_list_are_steered_all_the_same(
    node: Node, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pystachio.runtime.control.MOST_ANSWER_BYTES", 2000)
    handles = [await node.submit(endless, plan_id=f"plan{number}") for number in range(30)]
    (found,) = await outside(lambda: look((folder,)))
    assert "too many plans to list" in str(found.error)
    where, plan_id = await outside(lambda: node_of_plan("plan29", (folder,)))
    await outside(lambda: steer(where, Cancel(plan_id)))
    assert isinstance(await handles[29].wait_ended(), Cancelled)
    with pytest.raises(InvalidRequest, match="several plans"):
        await outside(lambda: node_of_plan("plan", (folder,)))


async def test_a_node_with_too_many_connections_says_so(node: Node, folder: Path) -> None:
    path = socket_in(folder).path
    held = [await asyncio.open_unix_connection(path) for _ in range(MOST_CONNECTIONS)]
    (found,) = await outside(lambda: look((folder,)))
    assert "too many connections to the node" in str(found.error)
    with pytest.raises(NodeLost, match="too many connections"):
        await outside(lambda: node_of_plan("a", (folder,)))
    for _, writer in held:
        writer.close()


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"hello\n",
        b"[]\n",
        b"{}\n",
        b'{"kind": "look", "version": 2}\n',
        b'{"kind": "run", "version": 1, "code": "import os"}\n',
        b'{"kind": "look", "more": 1}\n',
        b'{"kind": "cancel"}\n',
        b'{"kind": "cancel", "plan_id": ""}\n',
        b'{"kind": "find", "beginning": ""}\n',
        b'{"kind": "cancel", "plan_id": 7}\n',
        b'{"kind": "cancel", "plan_id": "' + b"x" * 300 + b'"}\n',
        b'{"kind": "prioritize", "plan_id": "p", "priority": "batch", "deadline": "soon"}\n',
        b"\xff\xfe\x00\n",
        b"[" * 5000 + b"\n",
    ],
)
async def test_what_is_no_request_is_refused(node: Node, folder: Path, line: bytes) -> None:
    answer = await exchange(folder, line)
    assert (answer["kind"], answer["code"]) == ("refused", "invalid_request")


async def test_a_line_without_end_is_refused_and_the_connection_closed(node: Node, folder: Path) -> None:
    answer = await exchange(folder, b"x" * (MOST_REQUEST_BYTES + 2))
    assert "longer than" in str(answer["message"])
    assert (await exchange(folder, request_line(Look())))["kind"] == "seen"


async def test_many_connections_do_not_take_the_node_down(node: Node, folder: Path) -> None:
    path = socket_in(folder).path
    held = [await asyncio.open_unix_connection(path) for _ in range(MOST_CONNECTIONS)]
    reader, writer = await asyncio.open_unix_connection(path)
    assert json.loads(await reader.readline())["code"] == "resource_exhausted"
    for each in (writer, *(each for _, each in held)):
        each.close()
    for _ in range(100):
        if (await exchange(folder, request_line(Look())))["kind"] == "seen":
            break
    else:
        raise AssertionError("places are not given back")


async def test_the_socket_is_for_its_user_alone_and_goes_with_the_node(folder: Path) -> None:
    async with make_node() as node, ControlServer(node, folder=folder) as server:
        assert server.problem is None
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        assert stat.S_IMODE(os.stat(socket_in(folder).path).st_mode) == 0o600
    assert os.listdir(folder) == []


async def test_open_connections_do_not_keep_the_node_from_ending(folder: Path) -> None:
    async with make_node() as node, ControlServer(node, folder=folder):
        reader, writer = await asyncio.open_unix_connection(socket_in(folder).path)
        writer.write(request_line(Look()))
        await reader.readline()
    assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize("obstacle", ["file", "open to others", "symlink", "long", "missing parent"])
async def test_a_socket_that_cannot_be_opened_fails_nothing(
    tmp_path: Path, obstacle: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "sockets"
    match obstacle:
        case "file":
            folder.write_text("")
        case "open to others":
            folder.mkdir()
            folder.chmod(0o755)
        case "symlink":
            (tmp_path / "elsewhere").mkdir(mode=0o700)
            folder.symlink_to(tmp_path / "elsewhere")
        case "long":
            folder = tmp_path / ("x" * 120)
        case "missing parent":
            folder = tmp_path / "none" / "sockets"
    async with make_node() as node:
        async with ControlServer(node, folder=folder) as server:
            assert server.problem
            (said,) = [record.getMessage() for record in caplog.records]
            assert str(folder) in said
            assert server.problem in said
            assert "XDG_RUNTIME_DIR" in said
            await node.submit(endless, plan_id="p")
            assert await outside(lambda: look((folder,))) == []
        await node.cancel("p")


async def test_sockets_of_dead_processes_are_removed(node: Node, folder: Path) -> None:
    dead = folder / "4194304000-aaaaaaaa.sock"
    with socket.socket(socket.AF_UNIX) as forgotten:
        forgotten.bind(str(dead))
    (folder / "notes.txt").write_text("not a socket")
    (folder / "²-a.sock").write_text("its name is no number")
    found = await outside(lambda: look((folder,)))
    assert [each.node.pid for each in found] == [os.getpid()]
    assert not dead.exists()
    assert (folder / "notes.txt").exists()


def test_who_does_not_answer_is_named_and_one_that_answers_nonsense_too(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as mute, socket.socket(socket.AF_UNIX) as left_behind:
        mute.bind(str(folder / f"{os.getpid()}-mute.sock"))
        mute.listen()
        left_behind.bind(str(folder / "4194304000-child.sock"))
        left_behind.listen()
        (found,) = look((folder,), seconds=0.05)
        assert isinstance(found.error, NodeLost)
        assert [path.name for path in folder.iterdir()] == [f"{os.getpid()}-mute.sock"], "its process is dead"


class Impatient(socket.socket):
    """Each piece that it receives takes 0.05 seconds of `now`, and no other time passes; it waits longer if it must."""

    now = 0.0
    most_seconds = 0.0
    """To the next piece."""

    def settimeout(self, seconds: float | None) -> None:
        assert seconds is not None
        self.most_seconds = seconds

    def recv(self, *arguments: int) -> bytes:
        assert Impatient.now + self.most_seconds == pytest.approx(0.3), "no longer than is left"
        Impatient.now += 0.05
        return super().recv(*arguments)


def test_an_answer_that_dribbles_is_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(Impatient, "now", 0.0)
    monkeypatch.setattr(control_client, "time", SimpleNamespace(monotonic=lambda: Impatient.now))
    sockets = SimpleNamespace(socket=Impatient, AF_UNIX=socket.AF_UNIX, SOCK_STREAM=socket.SOCK_STREAM)
    monkeypatch.setattr(control_client, "socket", sockets)

    def dribble(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            while True:
                connection.sendall(b"x")

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / f"{os.getpid()}-slow.sock"))
        listener.listen()
        thread = threading.Thread(target=dribble, args=(listener,), daemon=True)
        thread.start()
        (found,) = look((folder,), seconds=0.3)
        thread.join()
    assert Impatient.now == pytest.approx(0.3)
    assert "no answer in time" in str(found.error)


async def test_an_answer_without_sense(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir(mode=0o700)

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b'{"kind": "seen", "pid": "me"}\n')
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(babble, folder / f"{os.getpid()}-x.sock"):
        (found,) = await outside(lambda: look((folder,)))
    assert isinstance(found.error, DataError)


def test_folders(tmp_path: Path) -> None:
    fallback = control_folders({})[0]
    assert fallback.name == f"pystachio-{os.getuid()}"
    assert control_folders({"XDG_RUNTIME_DIR": str(tmp_path)}) == (tmp_path / "pystachio", fallback)
    for unusable in ("", "relative", str(tmp_path / "none")):
        assert control_folders({"XDG_RUNTIME_DIR": unusable}) == (fallback,)


FORKED = """
import os, sys, time
import pystachio
from pystachio.runtime.control_client import look

session = pystachio.connect(threads=1)
child = os.fork()
if child == 0:
    for stream in (0, 1, 2):
        os.close(stream)  # whoever started the parent waits for their end
    time.sleep(60)
    os._exit(0)
(found,) = look()
assert found.seen is not None and found.seen.pid == os.getpid(), found
print(child, flush=True)
os._exit(0)  # without tidying up: the child holds what is left
"""


def test_a_forked_child_does_not_serve_its_parents_socket(tmp_path: Path) -> None:
    environment = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        close_fds=True,
        check=False,
    )
    child = int(done.stdout)
    try:
        assert done.returncode == 0, done.stderr
        assert len(control_sockets((tmp_path / "pystachio",))) == 1
        assert look((tmp_path / "pystachio",), seconds=0.2) == []
        assert control_sockets((tmp_path / "pystachio",)) == []
    finally:
        os.kill(child, signal.SIGKILL)
