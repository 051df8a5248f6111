"""Supervisors of small processes that stand for nodes; no Ray."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pystachio.errors import InvalidRequest
from pystachio.server import supervisor as module
from pystachio.server.address_book import AddressBook
from pystachio.server.supervisor import (
    LONGEST_PAUSE_SECONDS,
    Report,
    State,
    Supervisor,
    pause_before,
    require_token_mode,
)

SECONDS = 20
NODE = """
import json, os, signal, sys
out = sys.argv[1]
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
names = [each.removeprefix("--name=") for each in sys.argv if each.startswith("--name=")]
open(f"{out}/environment", "w").write(json.dumps(dict(os.environ)))
print(f"{names[0]} serves at 127.0.0.1:{os.getpid() % 60000 + 1}", flush=True)
for line in sys.stdin:
    open(f"{out}/{names[0]}-{os.getpid()}", "a").write(line)
open(f"{out}/abandoned", "w").close()
"""
TOKEN = {"RAY_AUTH_MODE": "token"}


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "pystachio.toml"
    path.write_text(f'[cluster]\nsecret_file = "{tmp_path / "secret"}"\ndrain_seconds = 0\n')
    return str(path)


@asynccontextmanager
async def supervised(book: AddressBook, config: str, program: str = NODE, **changes: Any) -> AsyncIterator[Supervisor]:
    folder = str(Path(config).parent)
    options = {
        "host": "127.0.0.1",
        "exchange": book.exchange,
        "environment": {**os.environ, **TOKEN},
        "command": (sys.executable, "-c", program, folder),
        **changes,
    }
    supervisor = Supervisor("n1", config, **options)
    supervisor.start()
    try:
        async with asyncio.timeout(SECONDS):
            yield supervisor
    finally:
        await supervisor.stop()


async def until(supervisor: Supervisor, condition: Callable[[Report], bool]) -> Report:
    """Processes are no part of the loop: they are looked at."""
    while not condition(report := await supervisor.report()):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return report


async def until_served(supervisor: Supervisor, starts: int = 1) -> Report:
    return await until(supervisor, lambda report: report.state is State.SERVING and report.starts >= starts)


async def test_a_node_serves_is_in_the_book_and_ends_when_told(config: str) -> None:
    book = AddressBook()
    async with supervised(book, config) as supervisor:
        report = await until_served(supervisor)
        assert report.address is not None
        assert report.problem is None
        await asyncio.sleep(0)
        assert book.addresses() == (f"n1={report.address}",)
        stopped = await supervisor.stop()
        assert (stopped.state, stopped.exits, stopped.pid, stopped.address) == (State.STOPPED, (0,), None, None)
        assert (await supervisor.stop()).exits == (0,), "to be told twice is no harm"


async def test_a_node_that_is_killed_is_started_again_and_told_the_addresses_again(
    config: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.01)
    book = AddressBook()
    await book.exchange("other", "other=10.0.0.1:1", None)
    async with supervised(book, config) as supervisor:
        first = await until_served(supervisor)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        second = await until_served(supervisor, starts=2)
        assert second.exits == (-signal.SIGKILL,)
        assert second.pid != first.pid
        expected = sorted(["other=10.0.0.1:1", f"n1={second.address}"])
        heard = tmp_path / f"n1-{second.pid}"
        await until(supervisor, lambda _: heard.exists() and sorted(last_line(heard).split()) == expected)


async def test_the_node_gets_nothing_of_rays(config: str, tmp_path: Path) -> None:
    environment = {**os.environ, **TOKEN, "RAY_AUTH_TOKEN": "hush", "OMP_NUM_THREADS": "1"}
    async with supervised(AddressBook(), config, environment=environment) as supervisor:
        await until_served(supervisor)
        given = json.loads((tmp_path / "environment").read_text())
    assert not [name for name in given if name.startswith("RAY_") or name == "OMP_NUM_THREADS"]
    assert given["PYSTACHIO_CLUSTER_MEMBERSHIP"] == "ray"


async def test_a_node_on_all_interfaces_is_reached_at_its_host(config: str, tmp_path: Path) -> None:
    environment = {**os.environ, **TOKEN, "PYSTACHIO_CLUSTER_LISTEN": "0.0.0.0:0"}
    async with supervised(AddressBook(), config, environment=environment, host="10.1.2.3") as supervisor:
        report = await until_served(supervisor)
        assert report.address is not None
        assert report.address.startswith("10.1.2.3:")
        assert json.loads((tmp_path / "environment").read_text())["PYSTACHIO_CLUSTER_ADVERTISE"] == "10.1.2.3:0"


async def test_a_node_that_does_not_end_is_killed(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAVE_SECONDS", 0.05)
    deaf = NODE.replace("os._exit(0)", "None")
    async with supervised(AddressBook(), config, deaf) as supervisor:
        await until_served(supervisor)
        assert (await supervisor.stop()).exits == (-signal.SIGKILL,)


async def test_a_node_that_never_serves_is_killed_and_tried_again(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 0.05)
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.01)
    async with supervised(AddressBook(), config, "import time; time.sleep(60)") as supervisor:
        report = await until(supervisor, lambda report: len(report.exits) >= 2)
        assert set(report.exits) == {-signal.SIGKILL}


@pytest.mark.parametrize(
    ("text", "problem"),
    [("[cluster]\n", "secret"), ("[cluster]\nnonsense = 1\n", "nonsense"), (None, "no such configuration file")],
)
async def test_settings_that_no_node_can_have_are_told(tmp_path: Path, text: str | None, problem: str) -> None:
    other = tmp_path / "other.toml"
    if text is not None:
        other.write_text(text)
    async with supervised(AddressBook(), str(other)) as supervisor:
        report = await until(supervisor, lambda report: report.state is State.PAUSING)
        assert report.problem is not None
        assert problem in report.problem


async def test_without_token_mode_nothing_is_started(config: str) -> None:
    async with supervised(AddressBook(), config, environment={"RAY_AUTH_MODE": "disabled"}) as supervisor:
        report = await supervisor.report()
        assert (report.state, report.starts) == (State.REFUSED, 0)
        assert report.problem is not None
        assert "RAY_AUTH_MODE=token" in report.problem


def last_line(path: Path) -> str:
    return (path.read_text().splitlines() or [""])[-1]


@pytest.mark.parametrize("environment", [{}, {"RAY_AUTH_MODE": ""}, {"RAY_AUTH_MODE": "disabled"}])
def test_token_mode_is_required(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="token authentication"):
        require_token_mode(environment)


def test_pauses_grow_and_are_bounded() -> None:
    pauses = [pause_before(failures) for failures in range(60)]
    assert pauses[:4] == [0, 0.5, 1, 2]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
