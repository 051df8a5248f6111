from __future__ import annotations

import gc
import sys

import pytest

import pystachio
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


def test_who_embeds_a_node_has_both() -> None:
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    try:
        sys.setswitchinterval(0.005)
        gc.set_threshold(700, 10, 10)
        with pystachio.connect(memory="64MiB", threads=1):
            assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS, abs=1e-6)
            assert gc.get_threshold() == (YOUNG_OBJECTS, 10, 10)
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*threshold)
