"""Each of the compiled loops that this processor can run, not only the one that it would choose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pystachio.operators.kernels import native
from pystachio.operators.kernels.native import Instructions

_THERE = native.instructions() or Instructions.PLAIN


@pytest.fixture(params=[each for each in Instructions if each <= _THERE], ids=lambda each: each.name)
def instructions(request: pytest.FixtureRequest) -> Iterator[Instructions]:
    native.use_instructions(request.param)
    yield request.param
    native.use_instructions()
