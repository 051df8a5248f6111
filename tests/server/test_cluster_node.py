"""A node of a cluster by itself."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from pystachio.errors import ResourceExhausted
from pystachio.server import file_looks
from tests.cluster.local_cluster import local_cluster


def test_files_whose_disks_hang_stop_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than the loop has threads for all that does not belong on it."""
    dead = tmp_path / "dead"
    (tmp_path / "alive").write_bytes(b"a")
    answers = threading.Event()
    stat = os.stat

    def looked_at(path: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(f"{dead}/"):
            answers.wait(60)
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", looked_at)
    monkeypatch.setattr(file_looks, "mount_points", lambda: frozenset({"/", str(dead)}))
    with local_cluster(1, cluster={"file_seconds": 1}) as [node]:

        async def locate() -> None:
            transfers = node._embedded._transfers
            stuck = [asyncio.create_task(transfers.locate(f"{dead}/{number}")) for number in range(40)]
            await asyncio.sleep(0)
            async with asyncio.timeout(10):
                assert await asyncio.to_thread(str, 1) == "1"
                assert (await transfers.locate(str(tmp_path / "alive"))).medium == "disk"
                await asyncio.wait(stuck)
            assert all(isinstance(each.exception(), ResourceExhausted) for each in stuck)

        try:
            node.host.call(locate()).result(timeout=30)
        finally:
            answers.set()
