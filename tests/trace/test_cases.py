"""The ten plans of the benchmark, on real nodes with emulated devices: the verdict names what bounds each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import data, trace_cases
from pystachio.trace.perfetto_export import perfetto_trace
from pystachio.trace.verdict import verdict
from tests.trace.test_perfetto_export import decode


@pytest.fixture(scope="module", autouse=True)
def _tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The benchmark keeps its tables; tests leave nothing behind."""
    with pytest.MonkeyPatch.context() as patch:
        folder: Path = tmp_path_factory.mktemp("tpch")
        patch.setattr(data, "ROOT", folder)
        yield


@pytest.mark.parametrize("case", trace_cases.CASES, ids=lambda case: str(case.bottleneck))
def test_the_verdict_and_the_file(case: trace_cases.Case) -> None:
    trace = asyncio.run(case.run())
    found = verdict(trace)
    assert found.bottleneck is case.bottleneck, str(found)
    assert sum(found.shares.values()) == pytest.approx(1)
    assert decode(perfetto_trace(trace)).slices
