"""What the report says of devices; the rest of it is the machine's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pystachio.cli import doctor
from pystachio.config import load
from pystachio.io_scheduler.devices import page_cache
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


@pytest.mark.parametrize(
    ("direct_io", "told", "value", "advice"),
    [
        ("auto", (True, True), "on quick local disks, what is read once is read around it", ""),
        ("auto", (True, None), "on quick local disks, what is read once is read around it", ""),
        ("auto", (True, False), "only of files that this user owns or may write", "direct_io=on"),
        ("auto", (False, False), "read through it: the system does not say", "Linux 6.5"),
        ("on", (False, False), "read around it: direct_io = on", ""),
        ("off", (True, True), "read through it: direct_io = off", ""),
    ],
)
def test_the_page_cache_is_passed_where_the_system_says_what_is_in_it(
    monkeypatch: pytest.MonkeyPatch, direct_io: str, told: tuple[bool, bool | None], value: str, advice: str
) -> None:
    monkeypatch.setattr(doctor, "_told_what_is_cached", lambda: told)
    finding = doctor._page_cache(load(direct_io=direct_io).settings)
    assert finding.topic == "page cache"
    assert value in finding.value
    assert advice in finding.advice
    assert bool(advice) == bool(finding.advice)


def test_the_system_is_asked_what_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    own, others = doctor._told_what_is_cached()
    assert own or not others
    monkeypatch.setattr(page_cache, "_CACHESTAT", 99_999)
    own, others = doctor._told_what_is_cached()
    assert not own
    assert not others
