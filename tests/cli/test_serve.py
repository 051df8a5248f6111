"""Nodes as processes: they get ready, say how they are, drain, end, and are missed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import pystachio as ps
from pystachio.cli.main import app
from pystachio.errors import Cancelled, NodeLost, ResourceExhausted
from pystachio.io_scheduler.network.tokens import TokenRole, issue, read
from pystachio.server.serving import JOIN_SECONDS
from tests.cli.served_process import MAIN, serving

ENDLESS = "select a.n from numbers a, numbers b"
LOST_SECONDS = 5.0


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    pq.write_table(pa.table({"n": pa.array(range(300_000), pa.int64())}), folder / "numbers.parquet")
    return folder


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    assert CliRunner().invoke(app, ["init", str(folder)]).exit_code == 0
    path = folder / "pystachio.toml"
    path.write_text(path.read_text().replace("127.0.0.1:7100", "127.0.0.1:0"))
    return path


@pytest.fixture(autouse=True)
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def token_of(config: Path, role: TokenRole = TokenRole.CLIENT) -> str:
    return str(issue(read(config.parent / "secret"), role, "test"))


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def status_of(address: str, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.fixture(scope="module")
def node(config: Path, tables: Path) -> Iterator[str]:
    """The address of a node that every test may ask."""
    with serving(config, "--name=first", f"--data={tables}") as (_, address):
        yield address


@pytest.fixture
def asked(node: str, config: Path) -> list[str]:
    return ["--node", node, "--config", str(config)]


def test_submit_answers_like_query(asked: list[str], tables: Path, tmp_path: Path) -> None:
    statement = "select n % 3 as k, count(*) as c from numbers group by n % 3 order by k"
    for form in ("table", "json", "csv"):
        there = run("submit", *asked, statement, "--format", form)
        here = run("query", statement, "--data", str(tables), "--format", form)
        assert there.exit_code == 0, there.stderr
        assert there.stdout == here.stdout
        assert "3 rows in" in there.stderr
    (tmp_path / "q.sql").write_text(statement)
    output = tmp_path / "out.parquet"
    done = run("submit", *asked, "--file", str(tmp_path / "q.sql"), "--output", str(output), "-q")
    assert (done.exit_code, done.stderr) == (0, "")
    assert pq.read_table(output).num_rows == 3


def test_submit_has_the_options_of_query(asked: list[str], tables: Path) -> None:
    assert "Aggregate" in run("submit", *asked, "--explain", "select count(*) as c from numbers").stdout
    analyzed = run("submit", *asked, "--analyze", "-q", "select sum(n) as t from numbers")
    assert "Scan numbers" in analyzed.stdout
    more = run("submit", *asked, "--data", str(tables), "--priority", "batch", "select max(n) as m from numbers", "-q")
    assert "299999" in more.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["selec 1"], 1),
        (["select * from nothing"], 1),
        ([], 2),
        (["select 1", "--format", "xml"], 2),
        (["select 1", "--deadline", "2s", "--priority", "batch"], 2),
        (["select 1", "--data", "/no/such/folder"], 1),
        (["select 1", "--token-file", "/no/such/file"], 2),
    ],
)
def test_submit_s_exit_codes(asked: list[str], arguments: list[str], code: int) -> None:
    done = run("submit", *asked, *arguments)
    assert done.exit_code == code, done.stderr
    assert done.stderr


def test_what_listens_is_no_node(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = f"127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            with suppress(OSError):
                for _ in range(2):
                    connection, _ = listener.accept()
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4)
                    with connection:
                        connection.recv(1 << 16)

        answering = threading.Thread(target=answer)
        answering.start()
        done = run("status", "--node", place, "--config", str(config))
        assert done.exit_code == 3
        assert f"{place} does not speak the protocol" in " ".join(done.stderr.split())
        with pytest.raises(NodeLost, match="does not speak the protocol") as caught:
            ps.connect(f"pystachio://{place}", token=token_of(config))
        assert caught.value.hint
        answering.join()


def test_an_address_of_ip_6_is_in_brackets(config: Path) -> None:
    done = run("status", "--node", "[::1]:1", "--config", str(config))
    assert (done.exit_code, "[::1]:1" in done.stderr) == (3, True)


def test_nodes_that_are_not_there(config: Path) -> None:
    for command in (["status"], ["drain"], ["ps"], ["top", "--once"], ["submit", "select 1"], ["cancel", "abc"]):
        done = run(*command, "--node", "127.0.0.1:1", "--config", str(config))
        assert done.exit_code == 3, command
        assert run(*command, "--node", "nowhere", "--config", str(config)).exit_code == 2


def test_status_ps_top_cancel_and_set_priority(node: str, config: Path, asked: list[str], tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{token_of(config, TokenRole.OBSERVER)}\n")
    file.chmod(0o600)
    looking = ["--node", node, "--token-file", str(file)]
    described = json.loads(run("status", *looking, "--json").stdout)
    assert (described["name"], described["address"], described["leader"]) == ("first", node, "first")
    assert "leader" in run("status", *looking).stdout
    with ps.connect(f"pystachio://{node}", token=token_of(config)) as session:
        result = session.sql(ENDLESS, priority="batch")
        batches = result.batches()
        next(batches)
        (plan,) = [json.loads(line) for line in run("ps", *looking, "--json").stdout.splitlines()]
        assert (plan["plan_id"], plan["process"], plan["priority"]) == (result.plan_id, "first", "batch")
        assert result.plan_id in run("top", "--once", "--interval", "0.1", *looking).stdout
        refused = run("cancel", result.plan_id, *looking)
        assert (refused.exit_code, "observer" in refused.stderr) == (1, True)
        assert run("set-priority", result.plan_id[:6], "interactive", "--deadline", "1m", *asked).exit_code == 0
        (plan,) = [json.loads(line) for line in run("ps", *looking, "--json").stdout.splitlines()]
        assert plan["priority"] == "interactive"
        assert run("cancel", result.plan_id[:6], *asked).exit_code == 0
        with pytest.raises(Cancelled):
            list(batches)
    assert run("cancel", "zzz", *asked).exit_code == 1


def test_a_token_s_file_is_as_private_as_the_secret_s(node: str, config: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token_of(config))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path, mode, problem in (
        (file, 0o644, "chmod 600"),
        (pipe, 0o600, "is no file"),
        (tmp_path, 0o700, "is no file"),
        (tmp_path / "none", 0, "No such file"),
    ):
        if mode:
            path.chmod(mode)
        refused = run("status", "--node", node, "--token-file", str(path))
        assert (refused.exit_code, problem in " ".join(refused.stderr.split())) == (2, True), refused.stderr
    file.chmod(0o600)
    assert run("status", "--node", node, "--token-file", str(file)).exit_code == 0


def test_drain_and_back(node: str, config: Path, asked: list[str]) -> None:
    assert run("drain", *asked).exit_code == 0
    refused = run("submit", *asked, "select 1 as one")
    assert (refused.exit_code, "no more plans" in refused.stderr) == (1, True)
    assert json.loads(run("status", *asked, "--json").stdout)["draining"]
    assert run("drain", "--undo", *asked).exit_code == 0
    assert run("submit", *asked, "select 1 as one").exit_code == 0


def test_a_node_that_is_told_to_stop_finishes_its_plans(config: Path, tables: Path) -> None:
    with serving(config, f"--data={tables}", "--health=127.0.0.1:0", "--name=h") as (served, address):
        health = f"127.0.0.1:{health_port(served.process.pid, address)}"
        assert (status_of(health, "/live"), status_of(health, "/ready")) == (200, 200)
        with ps.connect(f"pystachio://{address}", token=token_of(config)) as session:
            result = session.sql("select a.n from numbers a, (select n from numbers limit 20) b")
            batches = result.batches()
            rows = next(batches).num_rows
            served.signal(signal.SIGTERM)
            for _ in range(200):
                if status_of(health, "/ready") == 503:
                    break
                time.sleep(0.02)
            assert (status_of(health, "/live"), status_of(health, "/ready")) == (200, 503)
            with pytest.raises(ResourceExhausted, match="no more plans"):
                session.sql("select 1 as one")
            assert rows + sum(batch.num_rows for batch in batches) == 300_000 * 20
        code, log = served.ended()
        assert code == 0, log
        assert "running plans finish" in log


def health_port(pid: int, address: str) -> int:
    """The other port that the process listens at."""
    inodes = set()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{entry}")
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ports = {int(each[1].split(":")[1], 16) for each in listening if each[3] == "0A" and each[9] in inodes}
    (port,) = ports - {int(address.rpartition(":")[2])}
    return port


@pytest.mark.parametrize(
    ("signals", "expected"),
    [((signal.SIGTERM, signal.SIGTERM), 1), ((signal.SIGTERM, signal.SIGINT), 1), ((signal.SIGINT,), 130)],
)
def test_a_node_that_is_told_twice_cancels_its_plans(
    config: Path, tables: Path, signals: tuple[signal.Signals, ...], expected: int
) -> None:
    with (
        serving(config, f"--data={tables}") as (served, address),
        ps.connect(f"pystachio://{address}", token=token_of(config)) as session,
    ):
        batches = session.sql(ENDLESS).batches()
        next(batches)
        for number in signals:
            served.signal(number)
            time.sleep(0.2)  # two signals at once are one
        code, log = served.ended()
        assert code == expected, log
        assert "cancelled" in log
        with pytest.raises(NodeLost) as caught:  # not as if the client had cancelled them
            list(batches)
        assert caught.value.retryable


def test_plans_that_take_too_long_are_cancelled(config: Path, tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSTACHIO_CLUSTER_DRAIN_SECONDS", "100ms")
    with (
        serving(config, f"--data={tables}") as (served, address),
        ps.connect(f"pystachio://{address}", token=token_of(config)) as session,
    ):
        batches = session.sql(ENDLESS).batches()
        next(batches)
        served.signal(signal.SIGTERM)
        code, log = served.ended()
        assert (code, "drain_seconds" in log) == (1, True), log
        with pytest.raises(NodeLost):
            list(batches)


def test_a_node_that_joins_serves_as_a_member(node: str, config: Path, tables: Path) -> None:
    with serving(config, "--name=second", f"--join={node}", f"--data={tables}") as (served, address):
        asked = ["--node", address, "--config", str(config)]
        described = json.loads(run("status", *asked, "--json").stdout)
        assert [member["name"] for member in described["members"]] == ["first", "second"]
        done = run("submit", *asked, "select sum(n) as total from numbers", "--format", "json", "-q")
        assert json.loads(done.stdout) == {"total": 300_000 * 299_999 // 2}
        with ps.connect(f"pystachio://{node}", token=token_of(config)) as session:
            result = session.sql(ENDLESS)
            batches = result.batches()
            next(batches)
            assert run("cancel", result.plan_id, *asked).exit_code == 0
            with pytest.raises(Cancelled):
                list(batches)
        served.signal(signal.SIGTERM)
        code, log = served.ended()
        assert code == 0, log


def test_a_node_that_joins_one_that_drains_is_a_member(config: Path) -> None:
    """As when one node takes the place of another."""
    with serving(config, "--name=old") as (_, old):
        assert run("drain", "--node", old, "--config", str(config)).exit_code == 0
        began = time.monotonic()
        with serving(config, "--name=new", f"--join={old}") as (new, address):
            took = time.monotonic() - began
            described = json.loads(run("status", "--node", address, "--config", str(config), "--json").stdout)
            new.signal(signal.SIGTERM)
            log = new.ended()[1]
    assert [member["name"] for member in described["members"]] == ["new", "old"]
    assert "serving alone" not in log
    assert took < JOIN_SECONDS


def test_who_is_refused_does_not_serve_alone(node: str, config: Path, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["init", str(tmp_path / "other")]).exit_code == 0
    other = tmp_path / "other" / "pystachio.toml"
    for chosen, name, problem in (
        (other, "stranger", "does not know the cluster's secret"),
        (config, "first", "name is taken: 'first'"),
    ):
        options = ["--config", str(chosen), "--listen=127.0.0.1:0", f"--name={name}", f"--join={node}"]
        done = subprocess.run([*MAIN, "serve", *options, "--threads=1"], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"cannot be joined at {node}" in done.stderr
        assert problem in done.stderr
        assert "hint:" in done.stderr
    described = json.loads(run("status", "--node", node, "--config", str(config), "--json").stdout)
    assert [member["name"] for member in described["members"]] == ["first"]


def test_a_node_that_finds_nobody_serves_and_a_refusal_later_does_not_end_it(config: Path, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["init", str(tmp_path / "other")]).exit_code == 0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = f"127.0.0.1:{listener.getsockname()[1]}"
    with serving(config, "--name=early", f"--join={place}") as (early, address):
        with serving(tmp_path / "other" / "pystachio.toml", "--name=late", f"--listen={place}") as (late, _):
            time.sleep(6)  # it tries at least every 4.5 s
            late.signal(signal.SIGTERM)
            refuser = late.ended()[1]
        assert run("status", "--node", address, "--config", str(config)).exit_code == 0
        early.signal(signal.SIGTERM)
        code, log = early.ended()
    assert code == 0
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    (alone,) = [line for line in lines if "serving alone" in line["event"]]
    assert (alone["address"], "cannot be reached" in alone["reason"]) == (place, True)
    (refused,) = [line for line in lines if "refuses" in line["event"]]
    assert (refused["address"], "secret" in refused["reason"]) == (place, True)
    assert "a connection was refused" in refuser
    assert "127.0.0.1" in refuser


def test_a_node_that_waits_to_join_stops_when_it_is_told_to(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = f"127.0.0.1:{listener.getsockname()[1]}"
    options = ["--config", str(config), "--listen=127.0.0.1:0", "--name=early", f"--join={place}", "--threads=1"]
    with subprocess.Popen([*MAIN, "serve", *options], stderr=subprocess.PIPE, text=True) as node:
        assert node.stderr is not None
        assert "a view is in force" in node.stderr.readline()
        began = time.monotonic()
        node.send_signal(signal.SIGTERM)
        assert node.wait(JOIN_SECONDS) == 0
        assert time.monotonic() - began < JOIN_SECONDS / 2


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_node_that_is_to_join_itself_begins_a_cluster(name: str, config: Path) -> None:
    """At once: the list of nodes to join may be the same on all of them, by whatever names."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = f"127.0.0.1:{listener.getsockname()[1]}"
    began = time.monotonic()
    joined = f"{name}:{place.rpartition(':')[2]}"
    with serving(config, f"--listen={place}", f"--join={joined}") as (served, address):
        assert address == place
        assert time.monotonic() - began < JOIN_SECONDS
        served.signal(signal.SIGTERM)
        code, log = served.ended()
    assert (code, "the only node to join is this one" in log, "serving alone" in log) == (0, True, False), log


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_dies_is_missed_within_seconds(config: Path, tables: Path, how: signal.Signals) -> None:
    with (
        serving(config, f"--data={tables}") as (served, address),
        ps.connect(f"pystachio://{address}", token=token_of(config)) as session,
    ):
        result = session.sql(ENDLESS)
        batches = result.batches()
        next(batches)
        served.signal(how)
        began = time.monotonic()
        with pytest.raises(NodeLost) as caught:
            list(batches)
        assert address in str(caught.value)
        assert "another node" in str(caught.value)
        for ask in (session.tables, result.metrics, session.statistics, lambda: session.explain("select 1")):
            with pytest.raises(NodeLost):
                ask()
        assert time.monotonic() - began < LOST_SECONDS


def test_a_cluster_to_try_out(tables: Path, tmp_path: Path) -> None:
    command = [*MAIN, "cluster", "--nodes=2", f"--data={tables}", "--memory=128MiB", "--threads=1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        lines: list[str] = []
        while not lines or "Ctrl-C" not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], process.communicate()
        ask = next(line for line in lines if "submit" in line).split()
        looking = ask[ask.index("--node") : ask.index("--token-file") + 2]
        done = run("submit", *looking, "select count(*) as c from numbers", "--format", "json", "-q")
        assert (done.exit_code, done.stdout) == (0, '{"c": 300000}\n')
        members = json.loads(run("status", *looking, "--json").stdout)["members"]
        assert [member["name"] for member in members] == ["node0", "node1"]
        nodes = [line.split(" serves at ")[1].strip() for line in lines if " serves at " in line]
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=30)
        assert process.returncode == 0, log
        for address in nodes:
            host, _, port = address.rpartition(":")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, int(port)), timeout=1)
        assert not Path(looking[-1]).exists()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()


@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_cluster_ends_with_its_terminal(is_ignored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is started with nohup."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [*(["nohup"] if is_ignored else []), *MAIN, "cluster", "--nodes=1", "--memory=64MiB", "--threads=1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert " serves at " in process.stdout.readline()
        assert list(tmp_path.glob("pystachio-cluster-*"))
        process.send_signal(signal.SIGHUP)
        if is_ignored:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
            process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
        assert process.returncode == 0, log
        assert not list(tmp_path.glob("pystachio-cluster-*"))
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_nodes_end_with_the_process_that_started_them() -> None:
    process = subprocess.Popen([*MAIN, "cluster", "--nodes=1", "--memory=64MiB"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        host, _, port = process.stdout.readline().split(" serves at ")[1].strip().rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as node:
            process.kill()
            node.settimeout(30)
            while node.recv(4096):
                pass
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_commands_are_there_at_once() -> None:
    """Importing all of them leaves torch and pyarrow alone."""
    program = "import sys, pystachio.cli.main; sys.exit('torch' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([MAIN[0], "-c", program], timeout=60).returncode == 0
