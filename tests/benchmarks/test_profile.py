"""The profile's kinds of time, by the files that it is spent in."""

from __future__ import annotations

from pathlib import Path

import pytest

import pystachio
from benchmarks.profile import _BY_PLACE

ROOT = Path(pystachio.__file__).parent


@pytest.mark.parametrize("prefix", [prefix for prefix, _ in _BY_PLACE])
def test_each_prefix_names_files_that_there_are(prefix: str) -> None:
    assert any(str(path.relative_to(ROOT)).startswith(prefix) for path in ROOT.rglob("*.py"))
