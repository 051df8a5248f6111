from __future__ import annotations

import gc
import sys

import pytest

from pystachio.runtime.interpreter import (
    SWITCH_SECONDS,
    YOUNG_OBJECTS,
    collect_after_many_objects,
    switch_threads_often,
)


@pytest.mark.parametrize("before", [0.005, SWITCH_SECONDS / 2])
def test_the_interval_is_lowered_and_never_raised(before: float) -> None:
    usual = sys.getswitchinterval()
    try:
        sys.setswitchinterval(before)
        switch_threads_often()
        assert sys.getswitchinterval() == pytest.approx(min(before, SWITCH_SECONDS), abs=1e-6)
    finally:
        sys.setswitchinterval(usual)


@pytest.mark.parametrize(
    ("before", "after"), [(700, YOUNG_OBJECTS), (YOUNG_OBJECTS + 5, YOUNG_OBJECTS + 5), (0, 0)], ids=str
)
def test_collections_come_more_seldom_never_more_often(before: int, after: int) -> None:
    usual = gc.get_threshold()
    try:
        gc.set_threshold(before, 7, 9)
        collect_after_many_objects()
        assert gc.get_threshold() == (after, 7, 9)
    finally:
        gc.set_threshold(*usual)
