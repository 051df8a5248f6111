"""Which pinned buffer is filled next, who waits for what, and that bytes arrive whatever their sizes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from pystachio.runtime.pinned_staging import StagingBuffers, copy_staged
from tests.fake_device import DEVICE, FakeDevice


class ScriptedEvent:
    """Passes when the test says so, or when somebody waits for it."""

    def __init__(self) -> None:
        self.passed = False
        self.waits = 0

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.passed = True
        self.waits += 1


def buffers_of(count: int, nbytes: int = 64) -> StagingBuffers:
    return StagingBuffers(count=count, nbytes=nbytes, allocate=lambda size: torch.empty(size, dtype=torch.uint8))


def test_buffers_are_made_only_when_none_is_empty() -> None:
    buffers = buffers_of(3)
    assert buffers.allocated_bytes == 0
    first = buffers.take()
    event = ScriptedEvent()
    buffers.give_back(first, event)
    second = buffers.take()
    assert second is not first, "a copy still reads the first"
    event.passed = True
    assert buffers.take() is first
    assert buffers.allocated_bytes == 128
    assert event.waits == 0


def test_with_all_under_way_the_oldest_copy_is_waited_for() -> None:
    buffers = buffers_of(2)
    taken, events = [buffers.take(), buffers.take()], [ScriptedEvent(), ScriptedEvent()]
    for buffer, event in zip(taken, events, strict=True):
        buffers.give_back(buffer, event)
    assert buffers.take() is taken[0]
    assert [event.waits for event in events] == [1, 0]
    assert buffers.allocated_bytes == 128


def test_a_thread_waits_for_one_that_fills() -> None:
    buffers = buffers_of(1)
    held, found = buffers.take(), []
    waiting = threading.Thread(target=lambda: found.append(buffers.take()))
    waiting.start()
    assert found == []
    buffers.give_back(held, ScriptedEvent())
    waiting.join(10)
    assert found == [held]


def test_no_buffer_is_lost_when_there_is_no_memory() -> None:
    answers = iter([MemoryError(), torch.empty(64, dtype=torch.uint8)])

    def allocate(nbytes: int) -> torch.Tensor:
        answer = next(answers)
        if isinstance(answer, MemoryError):
            raise answer
        return answer

    buffers = StagingBuffers(count=1, nbytes=64, allocate=allocate)
    with pytest.raises(MemoryError):
        buffers.take()
    assert buffers.take().memory.nbytes == 64


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    device = FakeDevice()
    device.install(monkeypatch)
    return device


@pytest.fixture
def job(device: FakeDevice) -> Iterator[None]:
    with device.stream(device.default):
        yield


def record() -> torch.cuda.Event:
    event = torch.cuda.Event(blocking=True)
    event.record(torch.cuda.current_stream())
    return event


SOURCES = {
    "nothing": [],
    "empty ones among others": [torch.empty(0), torch.arange(5), torch.empty(0, 3), torch.arange(3, dtype=torch.int8)],
    "larger than all buffers": [torch.arange(1000), torch.arange(77, dtype=torch.int16)],
    "as large as a buffer": [torch.arange(32), torch.arange(32) + 1, torch.arange(64)],
    "with steps, dimensions and flags": [torch.arange(60).view(6, 10)[::2, ::3], torch.arange(9) % 2 == 0],
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.usefixtures("job")
def test_bytes_arrive(device: FakeDevice, name: str, count: int) -> None:
    """The stand-in refuses a buffer that is filled while a copy may read it."""
    buffers = StagingBuffers(
        count=count, nbytes=256, allocate=lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True)
    )
    for _ in range(2):
        copies = copy_staged(SOURCES[name], DEVICE, buffers, record)
        for copy, source in zip(copies, SOURCES[name], strict=True):
            assert copy.device == DEVICE
            assert torch.equal(copy.cpu(), source)
    assert device.misuses == []
    assert device.pinned.nbytes == buffers.allocated_bytes <= 256 * count


@pytest.mark.usefixtures("job")
def test_a_failed_copy_returns_its_buffer(device: FakeDevice) -> None:
    """Not usable before the copies that were issued are over."""
    buffers = buffers_of(1, 256)
    with pytest.raises(RuntimeError, match="Contiguous"):
        copy_staged([torch.arange(4), torch.eye(3).to_sparse()], DEVICE, buffers, record)
    assert buffers.take().emptied is not None
