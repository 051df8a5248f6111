"""Scenario files are people's Python: whatever is wrong with one is said, with the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from pystachio.errors import InvalidRequest, NotFound
from pystachio.io_scheduler.simulation import load_scenario, simulate
from pystachio.io_scheduler.simulation.scenario import find_policy

GOOD = """
from pystachio.io_scheduler.simulation import Hardware, Scans, Scenario

def scenario():
    return Scenario(title="mine", hardware=Hardware(), workloads=[Scans()], seconds=0.1)
"""

BAD = {
    "def scenario(:\n    pass\n": r"not Python: .*bad\.py, line 1: ",
    "x = 1\n": r"no function `scenario`: .*bad\.py",
    "scenario = 3\n": r"no function `scenario`",
    "import nothing_of_the_kind\n": r"fails: .*bad\.py, line 1: ModuleNotFoundError: No module named",
    "def scenario():\n    return 1 / 0\n": r"fails: .*bad\.py, line 2: ZeroDivisionError",
    "def scenario():\n    return 'mine'\n": r"returned no Scenario but str: .*bad\.py",
    "def scenario(required):\n    pass\n": r"fails: .*bad\.py: TypeError",
    GOOD.replace(
        "Hardware()", "Hardware(disks=-1)"
    ): r"fails: .*bad\.py, line 5: Hardware\.disks must not be negative: -1",
    GOOD.replace("Hardware()", "Hardware(tapes=1)"): r"line 5: TypeError: .*'tapes'",
    GOOD.replace(
        "[Scans()]", "[Scans(path=['disk', 'gpu'])]"
    ): r"line 5: the path needs what the hardware does not have",
    GOOD.replace("seconds=0.1", "seconds='long'"): r"line 5: Scenario\.seconds is not a number: 'long'",
    GOOD.replace("Scans()", "Scans(plans=1.5)"): r"line 5: Scans\.plans is not a whole number: 1\.5",
    GOOD.replace("Scans()", "Scans(plans=True)"): r"line 5: Scans\.plans is not a whole number: True",
    GOOD.replace("Scans()", "Scans(plans=10**5000)"): r"line 5: Scans\.plans is not a whole number: <int>",
    GOOD.replace("Scans()", "Scans(priority='batch')"): r"line 5: Scans\.priority is not a PriorityClass: 'batch'",
    GOOD.replace("Scans()", "Scans(path='disk')"): r"line 5: Scans\.path is not a list of texts: 'disk'",
    GOOD.replace("Scans()", "Scans(consumer_seconds='1')"): r"line 5: Scans\.consumer_seconds is not a number: '1'",
    GOOD.replace("Scans()", "Scans(weight=float('inf'))"): r"line 5: Scans\.weight is not a number: inf",
    GOOD.replace("Scans()", "Scans"): r"line 5: not a workload: <class",
    GOOD.replace("[Scans()]", "5"): r"line 5: Scenario\.workloads is not a list of workloads: 5",
    GOOD.replace("seconds=", "faults=5, seconds="): r"line 5: Scenario\.faults is not a list of faults: 5",
    GOOD.replace("seconds=", "policies='fifo', seconds="): r"line 5: Scenario\.policies is not a list of texts: 'fifo'",
    GOOD.replace('"mine"', "5"): r"line 5: Scenario\.title is not a text: 5",
    GOOD.replace("Hardware()", "None"): r"line 5: Scenario\.hardware is not a Hardware: None",
    GOOD.replace("Hardware()", "Hardware(nodes=1.5)"): r"line 5: Hardware\.nodes is not a whole number: 1\.5",
    "raise SystemExit(7)\n": r"fails: .*bad\.py, line 1: SystemExit",
    "\0": r"not Python",
    "# coding: klingon\n": r"not Python",
}


def test_a_scenario_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    scenario = load_scenario(str(path))
    assert scenario.title == "mine"
    assert simulate(scenario, find_policy("pystachio")).chunks > 100


@pytest.mark.parametrize("source", BAD, ids=lambda source: BAD[source][:40])
def test_bad_files(tmp_path: Path, source: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(source)
    with pytest.raises(InvalidRequest, match=BAD[source]):
        load_scenario(str(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no such scenario file: .*absent\.py"):
        load_scenario(str(tmp_path / "absent.py"))
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(InvalidRequest, match="cannot be read"):
        load_scenario(str(tmp_path / "folder.py"))


def test_a_hint_goes_along(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(GOOD.replace("[Scans()]", "[Scans(path=['tape'])]"))
    with pytest.raises(InvalidRequest) as caught:
        load_scenario(str(path))
    assert caught.value.hint is not None
    assert "disk" in caught.value.hint
