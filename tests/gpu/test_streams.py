"""Real CUDA streams."""

from __future__ import annotations

import asyncio
import time

import pytest
import torch

from pystachio.runtime.clock import SystemClock
from pystachio.runtime.cuda_streams import CudaStreams
from pystachio.runtime.devices import choose_device
from pystachio.runtime.metrics import OperatorMetrics
from pystachio.runtime.plan_entry import PlanEntry
from pystachio.runtime.worker_pool import WorkerPool
from tests.gpu.conftest import needs_cuda

pytestmark = needs_cuda


def burn(cycles: int, value: float) -> torch.Tensor:
    torch.cuda._sleep(cycles)
    return torch.full((1 << 20,), value, device="cuda")


async def test_jobs_end_with_their_work_and_never_block_the_loop() -> None:
    launchers = WorkerPool(4)
    streams = CudaStreams(choose_device("cuda"), launchers, threads=4)
    stream = streams.open(PlanEntry("p", 1, 1), OperatorMetrics("operator", SystemClock()))
    await stream.run(burn, 1, 0.0)
    gaps = []

    async def watch() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.001)
            gaps.append(time.monotonic() - before)

    watcher = asyncio.create_task(watch())
    results = await asyncio.gather(*(stream.run(burn, 100_000_000, float(index)) for index in range(8)))
    watcher.cancel()
    for index, result in enumerate(results):
        assert await stream.run(lambda tensor=result: float(tensor.sum())) == index * (1 << 20)
    assert max(gaps) < 0.05
    await launchers.close()
    await streams.close()


async def test_a_cancelled_job_is_over_on_the_device() -> None:
    launchers = WorkerPool(1)
    streams = CudaStreams(choose_device("cuda"), launchers, threads=1)
    stream = streams.open(PlanEntry("p", 1, 1), OperatorMetrics("operator", SystemClock()))
    launched = asyncio.Event()
    loop = asyncio.get_running_loop()

    def job() -> torch.cuda.Stream:
        torch.cuda._sleep(1_000_000_000)
        loop.call_soon_threadsafe(launched.set)
        used.append(torch.cuda.current_stream())
        return used[0]

    used: list[torch.cuda.Stream] = []
    task = asyncio.create_task(stream.run(job))
    await launched.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert used[0].query()
    await launchers.close()
    await streams.close()


async def test_uploads_are_read_behind_their_copy_and_sources_may_go() -> None:
    launchers = WorkerPool(4)
    streams = CudaStreams(choose_device("cuda"), launchers, threads=4)
    stream = streams.open(PlanEntry("p", 1, 1), OperatorMetrics("operator", SystemClock()))

    def job(value: int) -> int:
        total = 0
        for step in range(20):
            copies, _ = stream.upload([torch.full((1 << 20,), value + step), torch.empty(0, dtype=torch.int8)])
            total += int(copies[0].sum())
            del copies
        return total

    results = await asyncio.gather(*(stream.run(job, value) for value in range(8)))
    assert results == [(20 * value + 190) << 20 for value in range(8)]
    await launchers.close()
    await streams.close()
