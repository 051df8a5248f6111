"""What runs here runs twice: on a CUDA device where there is one, and everywhere on the stand-in for one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import pytest
import torch

from pystachio.runtime.devices import cuda_device_count
from tests.fake_device import DEVICE, FakeDevice

needs_cuda = [
    pytest.mark.gpu,
    pytest.mark.skipif(cuda_device_count() == 0, reason="needs a CUDA device"),
]


@dataclass(frozen=True)
class Device:
    """`stand_in` is None on hardware."""

    stand_in: FakeDevice | None

    torch_device = DEVICE

    def job(self) -> AbstractContextManager[None]:
        """As inside a job of a stream."""
        return nullcontext() if self.stand_in is None else self.stand_in.stream(self.stand_in.default)

    def require_no_misuse(self) -> None:
        if self.stand_in is not None:
            assert self.stand_in.misuses == []


@pytest.fixture(scope="module", params=["stand-in", pytest.param("cuda", marks=needs_cuda)])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    if request.param == "cuda":
        yield Device(None)
        torch.cuda.synchronize()
        return
    stand_in = FakeDevice()
    with pytest.MonkeyPatch.context() as monkeypatch:
        stand_in.install(monkeypatch)
        yield Device(stand_in)
