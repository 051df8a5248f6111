"""The profile's kinds of time, by the files that it is spent in."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

import pystachio
from benchmarks.profile import _BY_PLACE, _kind

ROOT = Path(pystachio.__file__).parent


@pytest.mark.parametrize("prefix", [prefix for prefix, _ in _BY_PLACE])
def test_each_prefix_names_files_that_there_are(prefix: str) -> None:
    assert any(str(path.relative_to(ROOT)).startswith(prefix) for path in ROOT.rglob("*.py"))


def test_a_worker_that_has_nothing_to_do_is_about_nothing() -> None:
    others = set(threading.enumerate())
    with pystachio.connect(threads=2) as session:
        session.sql("select 1 as one").to_arrow()
        own = set(threading.enumerate()) - others
        workers = {thread.ident for thread in own if thread.name.startswith("pystachio-worker")}
        seen: set[str | None] = {"not looked at yet"}
        deadline = time.monotonic() + 30.0
        while seen != {None} and time.monotonic() < deadline:
            time.sleep(0.01)
            seen = {_kind(frame) for thread, frame in sys._current_frames().items() if thread in workers}
    assert len(workers) == 2
    assert seen == {None}
