"""A cluster that Ray started: the same statements, and what becomes of nodes and supervisors that are killed."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

import pystachio as ps
from pystachio.cli.at_node import ClusterEyes, connected_to
from pystachio.cli.main import app
from pystachio.cli.oracle import disagreement
from pystachio.io_scheduler.network.tokens import TokenRole, issue, read
from tests.cluster.local_ray import LocalRay, local_ray
from tests.queries.tables import duckdb_over, register, statements, write_tables

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="the package ray is not installed: pip install -e '.[ray]'"
)

NODES = 3
SETTLE_SECONDS = 30
SMALL = {"PYSTACHIO_MEMORY": "256MiB", "PYSTACHIO_THREADS": "1"}
TOTAL = "select count(*) as n, sum(id) as s from facts"


@dataclass(frozen=True)
class Started:
    ray: LocalRay
    config: Path

    def members(self, address: str) -> dict[str, str]:
        """Addresses of those that can be given work, as the node there sees it."""
        with connected_to(address, None, self.config) as connection, closing(ClusterEyes(connection)) as eyes:
            return {each.name: each.address for each in eyes.describe().members if each.state == "alive"}

    def session(self, address: str) -> ps.RemoteSession:
        token = issue(read(self.config.parent / "secret"), TokenRole.CLIENT, "test")
        return ps.connect(f"pystachio://{address}", token=str(token))


def until(what: str, condition: Callable[[], bool]) -> None:
    """Other processes are looked at."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables")
    write_tables(path)
    return path


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb_over(folder) as connection:
        yield connection


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """Nodes by `ray up`; nothing of them is left after `ray down`."""
    place = tmp_path_factory.mktemp("cluster")
    assert CliRunner().invoke(app, ["init", str(place)]).exit_code == 0
    config = place / "pystachio.toml"
    config.write_text(config.read_text().replace("127.0.0.1:7100", "127.0.0.1:0"))
    private = {"XDG_RUNTIME_DIR": str(place), "XDG_CONFIG_HOME": str(place)}
    with local_ray(NODES, {**SMALL, **private}) as ray:
        started = ray.reports("up", "--config", str(config), f"--nodes={NODES}")
        assert [(each["name"], each["state"]) for each in started] == [
            (f"node{number}", "serving") for number in range(NODES)
        ]
        yield Started(ray, config)
        last = ray.reports("status")
        supervisors = [parent_of(each["pid"]) for each in last]
        ended = ray.reports("down")
        assert [(each["state"], each["exits"][-1]) for each in ended] == [("stopped", 0)] * NODES
        for pid in (*(each["pid"] for each in last), *supervisors):
            until(f"process {pid} is left", lambda pid=pid: not is_alive(pid))
        assert ray.reports("status") == []


@pytest.fixture
def reports(started: Started) -> list[dict[str, Any]]:
    """Of nodes that know of each other."""
    found = started.ray.reports("status")
    expected = {each["name"]: each["address"] for each in found}
    for report in found:
        until("the nodes find each other", lambda at=report["address"]: started.members(at) == expected)
    return found


@pytest.fixture(scope="module")
def session(started: Started, folder: Path) -> Iterator[ps.RemoteSession]:
    (*_, last) = started.ray.reports("status")
    until("the nodes find each other", lambda: len(started.members(last["address"])) == NODES)
    with started.session(last["address"]) as session:
        register(session, folder)
        yield session


@pytest.mark.parametrize("sql", statements())
def test_equals_duckdb(session: ps.RemoteSession, oracle: duckdb.DuckDBPyConnection, sql: str) -> None:
    assert disagreement(session.sql(sql).to_arrow(), oracle.execute(sql).fetchall(), sql) is None


def test_nodes_are_no_part_of_ray(reports: list[dict[str, Any]]) -> None:
    """Neither its token nor its libraries are in them."""
    for report in reports:
        process = Path(f"/proc/{report['pid']}")
        assert b"RAY_" not in (process / "environ").read_bytes()
        assert "_raylet" not in (process / "maps").read_text()


def check_all_is_well(
    started: Started, reports: list[dict[str, Any]], struck: str, folder: Path, oracle: duckdb.DuckDBPyConnection
) -> dict[str, Any]:
    """Every node sees a new start of the one that was struck, and a plan runs on all of them. Its new report."""
    before = {each["name"]: each["address"] for each in reports}

    def is_whole(address: str) -> bool:
        members = started.members(address)
        return members.keys() == before.keys() and members[struck] != before[struck]

    for name, address in before.items():
        if name != struck:
            until(f"{struck} comes back to {name}", lambda address=address: is_whole(address))
    with started.session(before["node0" if struck != "node0" else "node1"]) as session:
        register(session, folder)
        expected = oracle.execute(TOTAL).fetchall()
        assert disagreement(session.sql(TOTAL).to_arrow(), expected, TOTAL) is None
    (report,) = [each for each in started.ray.reports("status") if each["name"] == struck]
    assert report["state"] == "serving"
    return report


def test_a_node_that_is_killed_comes_back(
    started: Started, reports: list[dict[str, Any]], folder: Path, oracle: duckdb.DuckDBPyConnection
) -> None:
    os.kill(reports[1]["pid"], signal.SIGKILL)
    report = check_all_is_well(started, reports, "node1", folder, oracle)
    assert report["starts"] == reports[1]["starts"] + 1
    assert report["exits"][-1] == -signal.SIGKILL


def test_a_supervisor_that_is_killed_takes_its_node_along_and_both_come_back(
    started: Started, reports: list[dict[str, Any]], folder: Path, oracle: duckdb.DuckDBPyConnection
) -> None:
    node = reports[2]["pid"]
    os.kill(parent_of(node), signal.SIGKILL)
    until("the node of a supervisor that is gone ends", lambda: not is_alive(node))
    report = check_all_is_well(started, reports, "node2", folder, oracle)
    assert (report["starts"], report["exits"]) == (1, []), "another supervisor began anew"


def test_a_second_cluster_in_the_same_ray_is_refused(started: Started) -> None:
    done = started.ray.node_command("up")
    assert done.returncode == 1
    assert "ray down" in done.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RAY_AUTH_MODE": "disabled"}, "RAY_AUTH_MODE=token"),
        ({"RAY_AUTH_TOKEN_PATH": "/nowhere"}, "cannot be read: /nowhere"),
    ],
)
def test_without_rays_token_nothing_is_done(started: Started, changes: Mapping[str, str], message: str) -> None:
    done = started.ray.node_command("status", **changes)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_ray_without_token_mode_gets_no_nodes(tmp_path: Path) -> None:
    """It is the hosts' Ray that counts, not what the caller says."""
    with local_ray(1, {"RAY_AUTH_MODE": "disabled"}) as ray:
        done = ray.node_command("up", RAY_AUTH_MODE="token")
        assert done.returncode == 1
        assert "RAY_AUTH_MODE=token" in done.stderr
        assert ray.node_command("status", "--json", RAY_AUTH_MODE="token").stdout == ""


@pytest.mark.slow
def test_one_node_for_each_gpu_sees_that_gpu_alone(tmp_path: Path) -> None:
    """Ray believes in GPUs that are not there; nodes that find none work on the host."""
    assert CliRunner().invoke(app, ["init", str(tmp_path / "cluster")]).exit_code == 0
    private = {"XDG_RUNTIME_DIR": str(tmp_path), "PYSTACHIO_CLUSTER_LISTEN": "127.0.0.1:0", "PYSTACHIO_DEVICE": "cpu"}
    with local_ray(1, {**SMALL, **private}, gpus=2) as ray:
        started = ray.reports("up", "--config", str(tmp_path / "cluster" / "pystachio.toml"))
        visible = [
            re.findall(rb"(?<=CUDA_VISIBLE_DEVICES=)[^\0]*", Path(f"/proc/{each['pid']}/environ").read_bytes())
            for each in started
        ]
        assert sorted(visible) == [[b"0"], [b"1"]]
        assert [each["exits"] for each in ray.reports("down")] == [[0], [0]]


@pytest.mark.slow
def test_settings_that_no_node_can_have_leave_nothing_behind(tmp_path: Path) -> None:
    config = tmp_path / "pystachio.toml"
    config.write_text("[cluster]\n")
    with local_ray(1, SMALL) as ray:
        for nodes, message in (("1", "secret"), ("2", "1 CPUs")):
            done = ray.node_command("up", f"--nodes={nodes}", "--config", str(config))
            assert done.returncode == 1
            assert message in done.stderr
            assert ray.reports("status") == []
