from __future__ import annotations

import sys

import pytest

from pystachio.runtime.interpreter import SWITCH_SECONDS, switch_threads_often


@pytest.mark.parametrize("before", [0.005, SWITCH_SECONDS / 2])
def test_the_interval_is_lowered_and_never_raised(before: float) -> None:
    usual = sys.getswitchinterval()
    try:
        sys.setswitchinterval(before)
        switch_threads_often()
        assert sys.getswitchinterval() == pytest.approx(min(before, SWITCH_SECONDS), abs=1e-6)
    finally:
        sys.setswitchinterval(usual)
