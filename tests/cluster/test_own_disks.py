"""Files that not every node has: each is read where it is, and known everywhere. Processes in mount namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = 3


class Nodes:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "data"
        self.path.mkdir()
        self.processes: list[subprocess.Popen[str]] = []
        port = "0"
        for number in range(FOLDERS):
            own = str(folder / f"disk-{number}")
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.own_disk_node", own, str(self.path), f"n{number}", port],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            self.processes.append(process)
            answer = self._line(number)
            if answer == "forbidden":
                self.close()
                pytest.skip("mount namespaces are not allowed here")
            port = answer if port == "0" else port

    def ask(self, number: int, sql: str, source: str = "*.parquet") -> Any:
        order = {"members": FOLDERS, "source": str(self.path / source), "sql": sql}
        stdin = self.processes[number].stdin
        assert stdin is not None
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        return json.loads(self._line(number))

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def _line(self, number: int) -> str:
        stdout = self.processes[number].stdout
        assert stdout is not None
        return stdout.readline().strip()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Two nodes have a part of the table each, and one file that both have; the third has nothing."""
    folder = tmp_path_factory.mktemp("own")
    for number in range(FOLDERS):
        (folder / f"disk-{number}").mkdir()
    for number in range(2):
        rows = range(number * 1000, number * 1000 + 1000)
        part = pa.table({"n": rows, "who": [f"disk {number}"] * 1000})
        pq.write_table(part, folder / f"disk-{number}" / f"part-{number}.parquet", row_group_size=100)
    both = folder / "disk-0" / "part-both.parquet"
    pq.write_table(pa.table({"n": range(5000, 5100), "who": ["both"] * 100}), both, row_group_size=10)
    (folder / "disk-1" / "part-both.parquet").hardlink_to(both)
    pq.write_table(pa.table({"n": [1]}), folder / "disk-0" / "differs.dat")
    pq.write_table(pa.table({"n": [1, 2]}), folder / "disk-1" / "differs.dat")
    found = Nodes(folder)
    yield found
    found.close()


@pytest.mark.parametrize("node", range(FOLDERS))
def test_every_node_answers_over_the_files_of_all(nodes: Nodes, node: int) -> None:
    total = sum(range(2000)) + sum(range(5000, 5100))
    sql = "select count(*), sum(n), count(distinct who) from t where n >= 0 and who like '%'"
    assert nodes.ask(node, sql) == [[2100, total, 3]]
    assert nodes.ask(node, "select count(*), max(n) from t") == [[2100, 5099]]
    joined = "select a.who, count(*) from t a join t b on a.n = b.n group by a.who order by a.who"
    assert nodes.ask(node, joined) == [["both", 100], ["disk 0", 1000], ["disk 1", 1000]]


@pytest.mark.parametrize("node", range(FOLDERS))
def test_a_path_with_two_versions_is_refused(nodes: Nodes, node: int) -> None:
    assert nodes.ask(node, "select count(*) from t", "differs.dat") == "data_error"


def test_what_no_node_has_is_not_found(nodes: Nodes) -> None:
    assert nodes.ask(2, "select count(*) from t", "nothing-*.parquet") == "not_found"
