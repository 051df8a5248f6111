"""What holds for every test: none writes decoded columns into the developer's home, and no example of Hypothesis fails
for the time that it took; Triton interprets without a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import Phase, settings

# Without explanations of failures, for which every line of every example is traced.
settings.register_profile("untimed", deadline=None, phases=[phase for phase in Phase if phase is not Phase.explain])
settings.load_profile("untimed")

if not torch.cuda.is_available():
    # Read when triton is imported, by whichever test comes first.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# What these assert depends neither on time nor on the processes of this machine, so several of them run at once.
BESIDE_OTHERS = tuple(
    Path(__file__).parent / name
    for name in (
        "cluster/test_spread.py",
        "cluster/test_statements.py",
        "cluster/test_tpch.py",
        "gpu",
        "io_scheduler/central",
        "io_scheduler/core",
        "operators",
        "planner",
        "queries",
        "server/simulation",
        "simulation",
    )
)


@pytest.hookimpl(tryfirst=True)  # Before `-m` chooses.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not any(item.path.is_relative_to(path) for path in BESIDE_OTHERS):
            item.add_marker(pytest.mark.alone)


@pytest.fixture(autouse=True, scope="session")
def no_chunk_cache_on_disk() -> Iterator[None]:
    """Tests of it name a folder and a size of their own. Processes that tests start inherit this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSTACHIO_CHUNK_CACHE_BYTES", "0")
        yield
