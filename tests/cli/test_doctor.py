"""What the report says of devices; the rest of it is the machine's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pystachio.cli import doctor
from pystachio.operators.kernels import triton_library


def findings() -> dict[str, doctor.Finding]:
    return {finding.topic: finding for finding in doctor._devices()}


def test_without_a_gpu_the_processor_computes() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert findings()["device"].value == "cpu"


@pytest.mark.parametrize(
    ("problem", "kernels", "advised"),
    [
        (None, "Triton's, checked against torch's", False),
        (triton_library.NOT_INSTALLED, "torch's: Triton is not installed", True),
        ("wrong on cuda:0: compact", "torch's: wrong on cuda:0: compact", False),
    ],
)
def test_a_gpu_is_described_with_the_kernels_it_would_run(
    monkeypatch: pytest.MonkeyPatch, problem: str | None, kernels: str, advised: bool
) -> None:
    properties = SimpleNamespace(name="A GPU", total_memory=80 << 30, multi_processor_count=132)
    monkeypatch.setattr("pystachio.runtime.devices.cuda_device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(triton_library, "problem", lambda device: problem)
    found = findings()
    assert found["device cuda:0"].value == "A GPU, 80.0 GiB, 132 multiprocessors"
    assert "not been verified on hardware" in found["device cuda:0"].advice
    assert found["kernels cuda:0"].value == kernels
    assert bool(found["kernels cuda:0"].advice) == advised
