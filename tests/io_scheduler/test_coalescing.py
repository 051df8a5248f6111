from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystachio.errors import DataError
from pystachio.io_scheduler.coalescing import Run, coalesce
from pystachio.io_scheduler.core.request import Extent


def test_neighbours_are_joined_across_small_gaps_only() -> None:
    extents = [Extent(0, 10), Extent(15, 10), Extent(31, 10)]
    runs = coalesce(extents, gap_bytes=5)
    assert runs == [Run(Extent(0, 25), (0, 1), 20, 25), Run(Extent(31, 10), (2,), 10, 10)]


def test_the_order_of_the_extents_does_not_matter() -> None:
    assert coalesce([Extent(10, 5), Extent(0, 10)], gap_bytes=0) == [Run(Extent(0, 15), (1, 0), 15, 15)]


def test_a_run_stays_within_its_bound_but_an_extent_is_never_split() -> None:
    runs = coalesce([Extent(0, 60), Extent(60, 60), Extent(120, 500)], run_bytes=100)
    assert [run.extent for run in runs] == [Extent(0, 60), Extent(60, 60), Extent(120, 500)]


def test_bytes_that_were_asked_for_twice_count_once() -> None:
    (run,) = coalesce([Extent(0, 10), Extent(5, 10), Extent(0, 10)])
    assert (run.extent, run.useful) == (Extent(0, 15), 15)


def test_rounding_is_not_required_to_exist() -> None:
    (run,) = coalesce([Extent(5000, 100)], alignment=4096)
    assert run == Run(Extent(4096, 4096), (0,), 100, 1004)


def test_empty_extents_belong_to_no_run() -> None:
    assert coalesce([Extent(7, 0)]) == []
    assert [run.members for run in coalesce([Extent(7, 0), Extent(7, 1)])] == [(1,)]


@pytest.mark.parametrize("extent", [Extent(-1, 5), Extent(0, -5), Extent(1 << 62, 1 << 62)], ids=str)
def test_ranges_that_no_file_has_are_refused(extent: Extent) -> None:
    with pytest.raises(DataError):
        coalesce([extent])


EXTENTS = st.lists(st.builds(Extent, st.integers(0, 500), st.integers(0, 60)), max_size=12)


@given(EXTENTS, st.sampled_from([1, 8, 64]), st.integers(0, 30), st.integers(1, 200))
def test_runs_cover_every_byte_that_was_asked_for(
    extents: list[Extent], alignment: int, gap_bytes: int, run_bytes: int
) -> None:
    runs = coalesce(extents, alignment=alignment, gap_bytes=gap_bytes, run_bytes=run_bytes)
    assert sorted(member for run in runs for member in run.members) == [i for i, e in enumerate(extents) if e.length]
    for run in runs:
        wanted = {byte for member in run.members for byte in range(extents[member].offset, extents[member].end)}
        assert run.extent.offset % alignment == run.extent.length % alignment == 0
        assert run.extent.offset <= min(wanted)
        assert run.extent.offset + run.required == max(wanted) + 1 <= run.extent.end
        assert run.useful == len(wanted)
        if len(run.members) > 1:
            assert max(wanted) + 1 - min(wanted) <= run_bytes
