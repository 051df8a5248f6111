"""Which device is chosen, on machines with and without an accelerator."""

from __future__ import annotations

import pytest
import torch

from pystachio.errors import InvalidRequest
from pystachio.runtime import devices
from pystachio.runtime.devices import choose_device


@pytest.mark.parametrize(
    ("requested", "cuda_devices", "chosen"),
    [
        ("auto", 0, "cpu"),
        ("auto", 2, "cpu"),
        ("cpu", 2, "cpu"),
        ("cuda", 2, "cuda:0"),
        ("cuda:1", 2, "cuda:1"),
    ],
)
def test_the_device_asked_for(monkeypatch: pytest.MonkeyPatch, requested: str, cuda_devices: int, chosen: str) -> None:
    monkeypatch.setattr(devices, "cuda_device_count", lambda: cuda_devices)
    assert choose_device(requested) == torch.device(chosen)


@pytest.mark.parametrize("requested", ["cuda:2", "mps", "gpu", "", "cuda:x"])
def test_a_device_that_is_not_there_names_those_that_are(monkeypatch: pytest.MonkeyPatch, requested: str) -> None:
    monkeypatch.setattr(devices, "cuda_device_count", lambda: 2)
    with pytest.raises(InvalidRequest) as caught:
        choose_device(requested)
    assert caught.value.hint == "available: cpu, cuda:0, cuda:1"


def test_counting_devices_never_raises() -> None:
    assert devices.cuda_device_count() >= 0
