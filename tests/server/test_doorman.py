"""What a node's clients have in common: its tables, and the threads that plan."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio as ps
from pystachio.errors import InvalidRequest
from pystachio.server.doorman import PLANNING_THREADS, SEEN_SECONDS
from tests.cluster.served_cluster import served_cluster, token


def test_a_data_folder_that_hangs_stops_no_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients' sessions have the node's tables, as they are known, besides their own."""
    answers = threading.Event()
    hangs = threading.Event()
    iterdir = Path.iterdir
    for name in ("data", "own"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"n": [1, 2]}), tmp_path / name / f"{name}.parquet")

    def listed(folder: Path) -> Iterator[Path]:
        if hangs.is_set() and folder == tmp_path / "data":
            answers.wait(60)
        return iterdir(folder)

    monkeypatch.setattr(Path, "iterdir", listed)
    with served_cluster(1, tmp_path / "data") as [served], ThreadPoolExecutor(PLANNING_THREADS) as clients:

        def register() -> list[str]:
            with ps.connect(served.address, token=str(token())) as session:
                session.register("own", tmp_path / "own")
                return sorted(session.tables())

        hangs.set()
        try:
            registered = [clients.submit(register) for _ in range(PLANNING_THREADS)]
            assert [each.result(timeout=20) for each in registered] == [["data", "own"]] * PLANNING_THREADS
            with ps.connect(served.address, token=str(token())) as session:
                assert session.sql("select count(*) as c from data").to_arrow().to_pylist() == [{"c": 2}]
        finally:
            answers.set()


def test_a_node_that_stops_takes_no_plans_again() -> None:
    with served_cluster(1) as [served]:
        served.doorman.drain()
        served.doorman.drain(False)
        assert served.doorman.is_ready
        served.doorman.stop()
        with pytest.raises(InvalidRequest, match="is stopping: n0"):
            served.doorman.drain(False)
        assert not served.doorman.is_ready
        assert served.node.describe().draining


def test_what_a_node_is_doing_is_not_found_out_anew_for_everybody() -> None:
    with served_cluster(1) as [served]:

        async def look(times: int, pause: float) -> int:
            seen = set()
            for _ in range(times):
                seen.add(served.doorman.activity().at)
                await asyncio.sleep(pause)
            return len(seen)

        assert served.node.host.call(look(1000, 0)).result() < 20
        assert served.node.host.call(look(3, 2 * SEEN_SECONDS)).result() == 3
