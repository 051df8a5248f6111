"""`ps`, `top`, `cancel` and `set-priority` beside a process with a plan: here one whose rows its client never reads."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

import pystachio
from pystachio.cli.main import app
from pystachio.errors import Cancelled
from pystachio.runtime.control_protocol import Refused, answer_line


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / "pystachio"


@pytest.fixture
def unread(runtime: Path, data: Path) -> Iterator[pystachio.Result]:
    with pystachio.connect(threads=1) as session:
        session.register("numbers", data / "numbers")
        yield session.sql("select n\n  from numbers", priority="batch")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def plans() -> list[dict[str, Any]]:
    done = run("ps", "--json")
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_ps_lists_plans(unread: pystachio.Result) -> None:
    (plan,) = plans()
    assert plan["plan_id"] == unread.plan_id
    assert (plan["process"], plan["priority"], plan["deadline"]) == (os.getpid(), "batch", None)
    assert plan["statement"] == "select n from numbers"
    done = run("ps")
    heading, line = done.stdout.splitlines()
    assert heading.split()[:3] == ["PLAN", "PROCESS", "CLASS"]
    assert line.startswith(f"{unread.plan_id}  {os.getpid()}")
    assert "its client" in line


def test_no_plans_and_no_processes(runtime: Path) -> None:
    assert plans() == []
    assert run("ps").stdout.startswith("PLAN")
    with pystachio.connect(threads=1):
        assert plans() == []
        assert len(json.loads(run("top", "--once", "--json", "--interval", "0.1").stdout)["nodes"]) == 1


def test_top_once_for_people_and_for_scripts(unread: pystachio.Result) -> None:
    done = run("top", "--once", "--interval", "0.1")
    assert done.exit_code == 0
    assert unread.plan_id in done.stdout
    assert "workers" in done.stdout.splitlines()[0]
    assert "disk" in done.stdout
    seen = json.loads(run("top", "--once", "--json", "--interval", "0.1").stdout)
    assert [plan["plan_id"] for plan in seen["plans"]] == [unread.plan_id]
    assert seen["links"][0]["bytes_per_second"] == 0.0


def test_a_plan_is_steered_by_the_beginning_of_its_id(unread: pystachio.Result) -> None:
    done = run("set-priority", unread.plan_id[:5], "interactive", "--deadline", "1m")
    assert done.exit_code == 0, done.stderr
    (plan,) = plans()
    assert plan["priority"] == "interactive"
    assert 50 < plan["deadline"] <= 60


def test_a_plan_is_cancelled(unread: pystachio.Result) -> None:
    done = run("cancel", unread.plan_id)
    assert (done.exit_code, done.stdout) == (0, "")
    with pytest.raises(Cancelled):
        unread.to_arrow()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["cancel", "zzz"], 1),
        (["cancel"], 2),
        (["set-priority", "zzz", "batch"], 1),
        (["set-priority", "zzz", "urgent"], 2),
        (["set-priority", "zzz", "batch", "--deadline", "2s"], 2),
        (["set-priority", "zzz", "interactive", "--deadline", "soon"], 2),
        (["top", "--interval", "0"], 2),
    ],
)
def test_exit_codes(runtime: Path, arguments: list[str], code: int) -> None:
    done = run(*arguments)
    assert done.exit_code == code
    assert done.stderr


def test_a_process_that_does_not_answer(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pystachio.runtime.control_client.ANSWER_SECONDS", 0.05)
    runtime.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(runtime / f"{os.getpid()}-mute.sock"))
        mute.listen()
        for command in (["ps"], ["top", "--once", "--interval", "0.1"], ["cancel", "abc"]):
            done = run(*command)
            assert done.exit_code == 3
            assert "does not answer" in done.stderr


EVIL = "\x1b]0;pwned\x07\x1b[2Jline\nline"


def test_no_text_of_a_plan_moves_the_cursor(runtime: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [EVIL])
    with pystachio.connect(threads=1) as session:
        session.register("numbers", data / "numbers")
        unread = session.sql(f"select n, '{EVIL}' as c from numbers", priority="batch")
        for command in (["ps"], ["top", "--once", "--interval", "0.1"]):
            done = run(*command)
            assert done.exit_code == 0
            assert not {"\x1b", "\x07"} & set(done.stdout), command
            assert "\\x1b]0;pwned\\x07" in done.stdout
        unread.cancel()


def test_what_an_evil_node_answers_does_not_move_the_cursor(runtime: Path) -> None:
    runtime.mkdir(mode=0o700)

    def refuse(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(answer_line(Refused("no", EVIL)))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(runtime / f"{os.getpid()}-evil.sock"))
        listener.listen()
        Thread(target=refuse, args=(listener,), daemon=True).start()
        for command in (["ps"], ["top", "--once", "--interval", "0.1"], ["cancel", "abc"]):
            done = run(*command)
            assert done.exit_code == 3
            assert "\\x1b]0;pwned\\x07" in done.stderr
            assert not {"\x1b", "\x07"} & set(done.stdout + done.stderr), command
        listener.shutdown(socket.SHUT_RDWR)


def test_a_process_may_keep_to_itself(runtime: Path) -> None:
    with pystachio.connect(threads=1, control_socket=False):
        assert not runtime.exists()
        assert plans() == []
