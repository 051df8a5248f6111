"""The whole way in virtual time: real services with emulated disks, their ledgers, the centre, and leases back."""

from __future__ import annotations

import asyncio

import pytest

from pystachio.io_scheduler.core.request import Link, LinkLimits, PriorityClass
from pystachio.io_scheduler.devices.emulated import EmulatedDevice
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.runtime.actors import Children, Directive
from pystachio.runtime.central import CentralService, LocalLink, NodeLeases
from tests import virtual_time

MIB = 1 << 20
RATE = 256 * MIB
LIMITS = LinkLimits(chunk_bytes=MIB, window_bytes=2 * MIB, smallest_chunk_bytes=MIB)
BUFFER = memoryview(bytearray(8 * MIB))


async def locate(path: str) -> Link:
    return Link("disk", "1:0")


class Machine:
    """A node's service with one disk, and its end of the central service."""

    def __init__(self, name: str, centre: CentralService) -> None:
        loop = asyncio.get_running_loop()
        self.service = IoSchedulerService(
            open_device=lambda link: EmulatedDevice(
                None, bytes_per_second=RATE, latency_seconds=100e-6, timers=loop, limits=LIMITS
            ),
            locate=locate,
            clock=loop.time,
        )
        self.leases = NodeLeases(
            name,
            clock=virtual_time.clock(),
            ledger=self.service.ledger,
            centre=centre,
            grant=self.service.set_lease,
            rerank=lambda reranking: None,
        )
        centre.connect(name, LocalLink(self.leases.take))

    def run(self, plan_id: str, tasks: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """A scan without end, some reads ahead."""
        client = self.service.client(plan_id, PriorityClass.BATCH)
        self.leases.plan_started(plan_id, PriorityClass.BATCH)

        async def read() -> None:
            while True:
                await client.read_into("file", 0, BUFFER)

        return [tasks.create_task(read()) for _ in range(3)]

    def moved(self, plan_id: str) -> int:
        return self.service.ledger.plan(plan_id).transferred_bytes


def test_what_services_moved_comes_back_as_weights() -> None:
    """One plan on two machines, one on the first of them only: both get one disk's worth."""

    async def main() -> None:
        async with Children(lambda name, error: Directive.ESCALATE) as children, asyncio.TaskGroup() as tasks:
            centre = CentralService(children, virtual_time.clock())
            machines = [Machine(name, centre) for name in ("n1", "n2")]
            for machine in machines:
                await machine.service.start()
            running = machines[0].run("small", tasks)
            for machine in machines:
                running += machine.run("large", tasks)
            await asyncio.sleep(8.0)
            before = machines[0].moved("small")
            await asyncio.sleep(4.0)
            assert (machines[0].moved("small") - before) / 4.0 > 0.95 * RATE
            for machine in machines:
                core = machine.service.statistics().core
                assert core.lease is not None
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            for machine in machines:
                machine.leases.close()
                await machine.service.stop()
            centre.close()

    virtual_time.run(main())


def test_equal_plans_on_a_single_machine_keep_their_weights() -> None:
    async def main() -> None:
        async with Children(lambda name, error: Directive.ESCALATE) as children, asyncio.TaskGroup() as tasks:
            centre = CentralService(children, virtual_time.clock())
            machine = Machine("local", centre)
            await machine.service.start()
            running = machine.run("a", tasks) + machine.run("b", tasks)
            await asyncio.sleep(8.0)
            assert machine.moved("a") == pytest.approx(machine.moved("b"), rel=0.02)
            assert centre.statistics().leases <= 2, "nothing changed, so the rest were renewals"
            assert centre.statistics().renewals >= 5
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            machine.leases.close()
            await machine.service.stop()
            centre.close()

    virtual_time.run(main())
