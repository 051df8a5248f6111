from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from pystachio.errors import Cancelled, InternalError, PystachioError, Unsupported
from pystachio.io_scheduler.core.request import PathTaken
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest, Device
from pystachio.io_scheduler.devices.deferred import DeferredDevice
from tests.io_scheduler.scripted_device import ScriptedDevice

CONTENT = bytes(range(100))


class Opening:
    """A device that opens when the test says so, with what the test says."""

    def __init__(self) -> None:
        self.inner = ScriptedDevice({"/f": CONTENT})
        self.ends: SimpleQueue[ChunkEnd] = SimpleQueue()
        self.outcome: SimpleQueue[Device | Exception] = SimpleQueue()
        self.device = DeferredDevice(self._open, limits=self.inner.limits)
        self.file = self.device.open("/f")

    def _open(self) -> Device:
        outcome = self.outcome.get(timeout=30)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def start(self, offset: int) -> ChunkRequest:
        request = ChunkRequest(self.file, offset, memoryview(bytearray(10)), 10)
        self.device.start(request, self.ends.put)
        return request

    def next_end(self) -> ChunkEnd:
        return self.ends.get(timeout=30)


def test_chunks_wait_for_the_device_in_their_order_and_share_its_file() -> None:
    opening = Opening()
    waiting = [opening.start(offset) for offset in (30, 0, 50)]
    assert opening.inner.order == []
    opening.outcome.put(opening.inner)
    assert [opening.next_end() for _ in waiting] == [ChunkEnd(10, PathTaken.EMULATED)] * 3
    waiting.append(opening.start(20))
    assert opening.next_end().error is None
    assert opening.inner.order == [("/f", offset) for offset in (30, 0, 50, 20)]
    assert [bytes(request.buffer) for request in waiting] == [CONTENT[o : o + 10] for o in (30, 0, 50, 20)]  # type: ignore[arg-type]
    opening.file.close()
    opening.file.close()
    opening.device.close()
    assert opening.inner.closed
    assert [file.closed for file in opening.inner.files] == [True]


@pytest.mark.parametrize(
    ("outcome", "kind"), [(Unsupported("this device"), Unsupported), (ValueError("a defect"), InternalError)]
)
def test_all_chunks_of_a_device_that_does_not_open_fail(outcome: Exception, kind: type[PystachioError]) -> None:
    opening = Opening()
    opening.start(0)
    opening.outcome.put(outcome)
    first = opening.next_end().error
    opening.start(10)
    second = opening.next_end().error
    assert isinstance(first, kind)
    assert isinstance(second, kind)
    assert str(first) == str(second)
    first.plan_id = "one plan"
    assert second.plan_id is None
    opening.file.close()
    opening.device.close()


def test_a_chunk_that_is_given_up_meanwhile_never_reaches_the_device() -> None:
    opening = Opening()
    given_up, wanted = opening.start(0), opening.start(10)
    opening.device.abandon(given_up)
    opening.outcome.put(opening.inner)
    assert isinstance(opening.next_end().error, Cancelled)
    assert opening.next_end() == ChunkEnd(10, PathTaken.EMULATED)
    assert opening.inner.order == [("/f", 10)]
    opening.inner.at_once = False
    inside = opening.start(20)
    opening.device.abandon(inside)
    assert opening.inner.abandoned == [20]
    opening.inner.end_all()
    assert wanted.file is inside.file
    opening.device.close()


def test_nothing_is_opened_before_the_first_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(thread: threading.Thread) -> None:
        raise AssertionError("a thread for nothing")

    def opened() -> Device:
        raise AssertionError("opened for nothing")

    monkeypatch.setattr(threading.Thread, "start", started)
    open_device: Callable[[], Device] = opened
    device = DeferredDevice(open_device, limits=ScriptedDevice({}).limits)
    device.open("/f").close()
    device.close()


def test_a_chunk_that_the_device_refuses_fails_alone() -> None:
    opening = Opening()
    take, refused = opening.inner.start, []

    def start(request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        if request.offset == 10:
            refused.append(request)
            raise RuntimeError("no")
        take(request, ended)

    opening.inner.start = start  # type: ignore[method-assign]
    for offset in (0, 10, 20):
        opening.start(offset)
    opening.outcome.put(opening.inner)
    ends = [opening.next_end() for _ in range(3)]
    assert [type(end.error) for end in ends] == [type(None), InternalError, type(None)]
    opening.device.close()
