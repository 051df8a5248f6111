"""`pystachio-node simulate`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from pystachio.cli.main import app
from pystachio.io_scheduler.simulation import chart

SCENARIO = """
from pystachio.io_scheduler.simulation import *

def scenario():
    return Scenario(
        title="one disk, one scan, some queries",
        hardware=Hardware(),
        workloads=(Scans(), Queries(per_second=20.0, bytes_per_node=8 * MIB)),
        seconds=1.0,
        policies=("pystachio", "fifo"),
    )
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "scenario.py"
    path.write_text(SCENARIO)
    return str(path)


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments])


def test_tables_for_people(scenario: str) -> None:
    done = simulate(scenario)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "one disk, one scan, some queries"
    assert lines[2].split() == ["policy", "class", "p50", "/", "idle", "p99", "/", "idle", "throughput", "plans"]
    assert [line.split()[:2] for line in lines[4:8]] == [
        [policy, name] for policy in ("pystachio", "fifo") for name in ("interactive", "batch")
    ]
    assert "node 0, disk 0 read" in done.stdout
    assert "event hash" in done.stdout
    assert done.stderr == "simulating pystachio\nsimulating fifo\n"


@pytest.mark.parametrize("title", ["[bold]x[/nope]", "Two disks [fast] and [red]x", ":smile: " + "long " * 50 + "end"])
def test_a_title_is_printed_as_it_is(tmp_path: Path, title: str) -> None:
    path = tmp_path / "scenario.py"
    path.write_text(SCENARIO.replace("one disk, one scan, some queries", title))
    done = simulate(str(path), "--quiet", "--policy", "fifo")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[0] == title


@pytest.mark.parametrize("option", ["--quiet", "--json"])
def test_a_reader_that_goes_away_is_no_failure(scenario: str, option: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "pystachio.cli.main", "simulate", scenario, "--policy", "fifo", option]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "error" not in done.stderr


def test_one_object_for_programs(scenario: str) -> None:
    done = simulate(scenario, "--json", "--quiet", "--policy", "pystachio", "--seed", "7")
    assert done.exit_code == 0
    assert done.stderr == ""
    said = json.loads(done.stdout)
    assert said["title"] == "one disk, one scan, some queries"
    (policy,) = said["policies"]
    assert policy["policy"] == "pystachio"
    assert policy["seed"] == 7
    assert policy["classes"]["interactive"]["p99_over_idle"] < 1.6
    assert policy["classes"]["batch"]["p50_seconds"] is None
    assert policy["links"][0]["busy"] > 0.99
    again = json.loads(simulate(scenario, "--json", "--quiet", "--policy", "pystachio", "--seed", "7").stdout)
    assert again == said


def test_built_in_scenarios_have_names() -> None:
    done = simulate("inheritance", "--quiet", "--policy", "pystachio")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("Priority inheritance")


def test_files(scenario: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    assert simulate(scenario, "--quiet", "--trace", str(trace)).exit_code == 0
    assert json.loads(trace.read_text())["traceEvents"]


@pytest.mark.parametrize("option", ["--trace", "--chart"])
def test_a_folder_that_is_not_there_is_said_before_anything_runs(scenario: str, tmp_path: Path, option: str) -> None:
    done = simulate(scenario, option, str(tmp_path / "none" / "file"))
    assert (done.exit_code, done.stderr) == (1, f"not found: no such folder: {tmp_path / 'none'}\n")


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_a_chart(scenario: str, tmp_path: Path) -> None:
    picture = tmp_path / "chart.png"
    assert simulate(scenario, "--quiet", "--chart", str(picture)).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_nothing_is_simulated(
    scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chart, "find_spec", lambda name: None)
    done = simulate(scenario, "--chart", str(tmp_path / "chart.png"))
    assert done.exit_code == 1
    assert done.stderr == "unsupported: not supported: charts without matplotlib\nhint: pip install matplotlib\n"
    assert not (tmp_path / "chart.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no such scenario: nowhere"),
        (["absent.py"], "no such scenario file: absent.py"),
        (["inheritance", "--policy", "lottery"], "no such policy: 'lottery'"),
        (["inheritance", "--seed", "many"], "valid integer"),
        ([], "Missing argument"),
    ],
    ids=str,
)
def test_wrong_usage(arguments: list[str], message: str) -> None:
    done = simulate(*arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())


def test_a_scenario_that_fails_says_where(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("def scenario():\n    return undefined\n")
    done = simulate(str(path))
    assert done.exit_code == 1
    assert f"invalid request: the scenario fails: {path}, line 2: NameError" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_workload_that_fails_while_it_runs_says_where(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        SCENARIO.replace("workloads=(", "workloads=(Broken(), ")
        + "\nclass Broken:\n"
        + "    def check(self, hardware): pass\n"
        + "    def alone(self): return None\n"
        + "    def start(self, simulation): simulation.nothing\n"
    )
    done = simulate(str(path))
    assert done.exit_code == 1
    assert f"the scenario fails: {path}, line 16: AttributeError" in done.stderr
    assert "defect" not in done.stderr


def test_a_deadlock_says_who_waits(tmp_path: Path) -> None:
    path = tmp_path / "stuck.py"
    path.write_text(
        SCENARIO.replace("Scans()", "Scans(consumer_seconds=None, bytes_per_disk=2**40)")
        .replace(", Queries(per_second=20.0, bytes_per_node=8 * MIB)", ",")
        .replace("seconds=1.0", "seconds=None")
    )
    done = simulate(str(path), "--quiet", "--policy", "pystachio")
    assert done.exit_code == 1
    assert "internal error: deadlock: everything waits and nothing is due" in done.stderr
    assert "plan scan0" in done.stderr
    assert "--seed 0 shows it again" in done.stderr
