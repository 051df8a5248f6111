"""The stand-in refuses what a CUDA device would not do, and counts what makes its host wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from tests.fake_device import DEVICE, DeviceMisuse, FakeDevice, FakeStream


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    device = FakeDevice()
    device.install(monkeypatch)
    return device


@pytest.fixture
def job(device: FakeDevice) -> Iterator[None]:
    with device.stream(device.default):
        yield


@pytest.mark.usefixtures("job")
def test_it_computes() -> None:
    values = torch.arange(10, device=DEVICE)
    values[2:4] = 7
    values += 1
    running = torch.zeros(11, dtype=torch.int64, device=values.device)
    torch.cumsum(values, 0, out=running[1:])
    assert values.device == DEVICE
    assert running.tolist() == [0, *np.cumsum([1, 2, 8, 8, 5, 6, 7, 8, 9, 10]).tolist()]
    assert torch.where(values > 8, values, 0).cpu().tolist() == [0] * 8 + [9, 10]


@pytest.mark.parametrize(
    "misuse",
    [
        lambda values: values + torch.arange(4),
        lambda values: torch.arange(4) + values,
        lambda values: values.index_select(0, torch.tensor([1])),
        lambda values: values[torch.tensor([1])],
        lambda values: torch.cat((values, torch.arange(4))),
        lambda values: values.numpy(),
        lambda values: np.asarray(values),
        lambda values: np.equal(values, 1),
        lambda values: values.data_ptr(),
        lambda values: values @ values,
        lambda values: values.to(torch.uint32) + 1,
    ],
)
@pytest.mark.usefixtures("job")
def test_it_refuses(device: FakeDevice, misuse: Callable[[torch.Tensor], object]) -> None:
    values = torch.arange(4, device=DEVICE)
    with pytest.raises(DeviceMisuse):
        misuse(values)
    assert device.misuses


@pytest.mark.usefixtures("job")
def test_cpu_scalars_may_take_part() -> None:
    assert (torch.arange(2, device=DEVICE) + torch.tensor(3)).tolist() == [3, 4]


def test_work_belongs_into_jobs(device: FakeDevice) -> None:
    with pytest.raises(DeviceMisuse):
        torch.zeros(3, device=DEVICE)
    with device.stream(device.default):
        values = torch.zeros(3, device=DEVICE)
    assert len(values) == values.shape[0] == 3
    with pytest.raises(DeviceMisuse):
        values + 1


@pytest.mark.usefixtures("job")
def test_waits_are_counted(device: FakeDevice) -> None:
    values = torch.arange(4, device=DEVICE)
    assert bool((values > 2).any())
    assert int(values[1]) == 1
    assert values[values > 2].tolist() == [3]
    torch.nonzero(values)
    values.cpu()
    assert device.waits == {"__bool__": 1, "__int__": 1, "__getitem__": 1, "tolist": 1, "nonzero": 1, "cpu": 1}


@pytest.mark.usefixtures("job")
def test_streams_must_wait_for_each_other(device: FakeDevice) -> None:
    side = FakeStream("side")
    with torch.cuda.stream(side):
        values = torch.arange(4).to(DEVICE, non_blocking=True)
        written = torch.cuda.Event()
        written.record(side)
    with pytest.raises(DeviceMisuse):
        values + 1
    torch.cuda.current_stream().wait_event(written)
    assert (values + 1).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.usefixtures("job")
def test_memory_must_outlive_its_readers(device: FakeDevice, recorded: bool) -> None:
    side = FakeStream("side")
    with torch.cuda.stream(side):
        values = torch.arange(4).to(DEVICE, non_blocking=True)
        written = torch.cuda.Event()
        written.record(side)
    torch.cuda.current_stream().wait_event(written)
    total = values + 1
    if recorded:
        values.record_stream(torch.cuda.current_stream())
    del values
    assert bool(device.misuses) is not recorded
    assert total.shape == (4,)


@pytest.mark.parametrize("waited", [False, True])
@pytest.mark.usefixtures("job")
def test_pinned_memory_must_not_change_under_a_copy(device: FakeDevice, waited: bool) -> None:
    pinned = torch.empty(8, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(4, dtype=torch.uint8, device=DEVICE)
    pinned[:4].copy_(torch.arange(4))
    target.copy_(pinned[:4], non_blocking=True)
    copied = torch.cuda.Event(blocking=True)
    copied.record(torch.cuda.current_stream())
    pinned[4:].copy_(torch.arange(4))
    assert not copied.query()
    if waited:
        copied.synchronize()
        assert copied.query()
        pinned[:4].copy_(torch.arange(4))
    else:
        with pytest.raises(DeviceMisuse):
            pinned[:4].copy_(torch.arange(4))
    assert target.tolist() == [0, 1, 2, 3]
