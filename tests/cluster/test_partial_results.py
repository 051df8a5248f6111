"""A node that is lost when its client has seen some rows: no second attempt, no row twice, one typed error."""

from __future__ import annotations

import gc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pystachio.errors import NodeLost
from pystachio.server import cluster_plan
from tests.cluster.local_cluster import local_cluster, session_on

ROWS = 300_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    numbers = pa.table({"n": range(ROWS), "text": [f"the text of row {n}" for n in range(ROWS)]})
    pq.write_table(numbers, tmp_path / "numbers.parquet", row_group_size=5_000)
    return tmp_path


def test_rows_that_a_client_has_seen_are_not_given_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_plan, "HELD_BYTES", 1)
    monkeypatch.setattr(cluster_plan, "_QUEUED_BYTES", 1)
    slow = [{"path": str(folder), "rate": 4_000_000, "latency": 0.0, "depth": 2}]
    with local_cluster(3, emulated=slow) as nodes:
        session = session_on(nodes[0])
        session.register("numbers", folder / "numbers.parquet")
        batches = session.sql("select n, text from numbers").batches()
        seen = next(batches).column(0).to_pylist()
        nodes[2].close()
        with pytest.raises(NodeLost) as raised:
            seen.extend(n for batch in batches for n in batch.column(0).to_pylist())
        assert raised.value.retryable
        assert len(seen) < ROWS
        assert len(set(seen)) == len(seen)
        again = session.sql("select n, text from numbers").to_arrow()
        assert sorted(again.column(0).to_pylist()) == list(range(ROWS))


def test_rows_that_no_client_has_seen_are_thrown_away(folder: Path) -> None:
    slow = [{"path": str(folder), "rate": 4_000_000, "latency": 0.0, "depth": 2}]
    with local_cluster(3, emulated=slow) as nodes:
        session = session_on(nodes[0])
        session.register("numbers", folder / "numbers.parquet")
        result = session.sql("select n, text from numbers")
        nodes[2].close()
        assert sorted(result.to_arrow().column(0).to_pylist()) == list(range(ROWS))


def test_rows_of_all_answers_together_wait_in_so_much_memory(folder: Path) -> None:
    """Beyond it, and their next rows, they are given out as they come."""
    with local_cluster(2) as nodes:
        session = session_on(nodes[0])
        session.register("numbers", folder / "numbers.parquet")
        coordinator = nodes[0].coordinator
        coordinator._held_bytes = 1 << 20
        results = [session.sql(f"select n, text, {number} as k from numbers") for number in range(4)]
        answers = [result.batches() for result in results]
        # None of them could be held whole beside the others.
        batches = [next(answer) for answer in answers]
        most = max(batch.nbytes for batch in batches)
        held = [plan.held_bytes for plan in coordinator._answers]
        assert len(held) == 4
        assert sum(held) <= (1 << 20) + 4 * most
        for number, (first, answer) in enumerate(zip(batches, answers, strict=True)):
            rows = pa.Table.from_batches([first, *answer])
            assert sorted(rows["n"].to_pylist()) == list(range(ROWS))
            assert set(rows["k"].to_pylist()) == {number}
        assert sum(plan.held_bytes for plan in coordinator._answers) == 0
        del results, answers, answer
        gc.collect()
        assert not coordinator._answers
