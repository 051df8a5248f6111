"""The CUDA stream's order of events, with stand-ins for torch.cuda: what was launched is always awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
import torch

from pystachio.errors import ResourceExhausted
from pystachio.runtime import cuda_streams
from pystachio.runtime.clock import SystemClock
from pystachio.runtime.cuda_streams import CudaStreams
from pystachio.runtime.metrics import OperatorMetrics
from pystachio.runtime.plan_entry import PlanEntry
from pystachio.runtime.streams import Stream
from pystachio.runtime.tracing import Tracing
from pystachio.runtime.worker_pool import WorkerPool

DEVICE = torch.device("cuda", 0)


class FakeDevice:
    """Records what happens; work on it ends when it is let go."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.done = threading.Event()
        self.launched = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.current: list[object] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fake = self

        class Stream:
            def __init__(self, device: torch.device, priority: int = 0) -> None:
                assert device == DEVICE
                self.priority = priority

        class Event:
            def __init__(self, blocking: bool) -> None:
                assert blocking

            def record(self, stream: Stream) -> None:
                assert fake.current[-1] is stream
                fake.log.append("recorded")
                fake._loop.call_soon_threadsafe(fake.launched.set)

            def synchronize(self) -> None:
                assert fake.done.wait(10)
                fake.log.append("synchronized")

        @contextmanager
        def stream(entered: Stream) -> Iterator[None]:
            fake.current.append(entered)
            yield
            fake.current.pop()

        default = Stream(DEVICE)
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "default_stream", lambda device: default)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "stream", stream)


@pytest.fixture
async def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    fake = FakeDevice()
    fake.install(monkeypatch)
    return fake


@pytest.fixture
async def streams(device: FakeDevice) -> AsyncIterator[CudaStreams]:
    launchers = WorkerPool(1)
    streams = CudaStreams(DEVICE, launchers, threads=1)
    yield streams
    device.done.set()
    await launchers.close()
    await streams.close()


def open_stream(streams: CudaStreams, priority: int = 1) -> tuple[Stream, PlanEntry]:
    plan = PlanEntry("p", priority, 1)
    return streams.open(plan, OperatorMetrics("operator", SystemClock())), plan


async def test_a_job_returns_when_the_device_has_done_it(device: FakeDevice, streams: CudaStreams) -> None:
    stream, plan = open_stream(streams)
    task = asyncio.create_task(stream.run(lambda: device.log.append("launched") or 7))
    await device.launched.wait()
    assert not task.done()
    assert plan.external == 1
    device.done.set()
    assert await task == 7
    assert device.log == ["launched", "recorded", "synchronized"]
    assert plan.external == 0


async def test_a_failed_launch_is_awaited_before_its_error_is_raised(device: FakeDevice, streams: CudaStreams) -> None:
    def fail() -> None:
        device.log.append("launched half of it")
        raise ValueError("bad")

    stream, _ = open_stream(streams)
    device.done.set()
    with pytest.raises(ValueError, match="bad"):
        await stream.run(fail)
    assert device.log == ["launched half of it", "recorded", "synchronized"]


async def test_cancellation_waits_for_the_device(device: FakeDevice, streams: CudaStreams) -> None:
    stream, plan = open_stream(streams)
    task = asyncio.create_task(stream.run(int))
    await device.launched.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.001)
        assert not task.done()
    device.done.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert device.log[-1] == "synchronized"
    assert plan.external == 0


async def test_interactive_plans_launch_on_a_stream_of_high_priority_and_the_others_on_the_default_one(
    device: FakeDevice, streams: CudaStreams
) -> None:
    device.done.set()
    used = [await open_stream(streams, priority)[0].run(lambda: device.current[-1]) for priority in (2, 1, 0, 0)]
    batch, normal, interactive, other_interactive = used
    assert batch is normal is torch.cuda.default_stream(DEVICE)
    assert interactive is other_interactive is not normal
    assert interactive.priority < batch.priority, "a lower number goes first"  # type: ignore[attr-defined]


async def test_the_launch_and_the_devices_work_are_traced(device: FakeDevice, streams: CudaStreams) -> None:
    tracing = Tracing()
    metrics = OperatorMetrics("operator", SystemClock(), plan_id="p", tracing=tracing)
    stream = streams.open(PlanEntry("p", 1, 1), metrics)
    device.done.set()
    await stream.run(int)
    launch, work = tracing.snapshot().jobs
    assert (launch.on_device, work.on_device, work.thread) == (False, True, "cuda:0")
    assert launch.submitted is not None
    assert launch.submitted <= launch.started <= work.started <= launch.ended <= work.ended


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU's machine pins memory")
def test_without_memory_to_pin_the_error_is_typed() -> None:
    with pytest.raises(ResourceExhausted, match="pinned memory") as raised:
        cuda_streams._pinned_bytes(64)
    assert (raised.value.setting, raised.value.needed) == ("threads", 64)
