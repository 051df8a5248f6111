"""Links that others pass through: who gets the room that is freed there."""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import count

from pystachio.io_scheduler.core.events import (
    Action,
    ChunksCompleted,
    CompleteTransfer,
    Event,
    LinkOpened,
    PlanClosed,
    PlanOpened,
    PoolOpened,
    PriorityChanged,
    StartChunk,
    TransfersSubmitted,
)
from pystachio.io_scheduler.core.request import CreditPool, Extent, Link, LinkLimits, PriorityClass, Transfer
from pystachio.io_scheduler.core.scheduler import Scheduler

INTERACTIVE, NORMAL, BATCH = PriorityClass
BUS = Link("pcie", "0")
DISKS = [Link("disk", str(number)) for number in range(5)]
CHUNK = 100
POOL = CreditPool("host", 0)


def limits(chunk: int, window: int) -> LinkLimits:
    return LinkLimits(chunk_bytes=chunk, window_bytes=window, smallest_chunk_bytes=chunk, calibrated=False)


class Machine:
    """Disks behind one bus, which is what takes the time: a byte a microsecond.

    A chunk of each small disk fills the bus's window, and so does one chunk of the last disk alone.
    """

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.now = 0.0
        self.bus_free = 0.0
        self.ends: list[tuple[float, int, StartChunk]] = []
        self.ids = count()
        self.transfers: dict[int, Transfer] = {}
        self.served: Counter[Link] = Counter()
        self.tell(LinkOpened(BUS, limits(CHUNK, 4 * CHUNK)))
        for disk in DISKS[:-1]:
            self.tell(LinkOpened(disk, limits(CHUNK, CHUNK)))
        self.tell(LinkOpened(DISKS[-1], limits(4 * CHUNK, 4 * CHUNK)))

    def tell(self, event: Event) -> None:
        self.obey(self.scheduler.handle(event, self.now))
        self.scheduler.check_invariants()

    def submit(self, plan_id: str, disk: Link, chunks: int = 4) -> None:
        transfer = Transfer(next(self.ids), plan_id, disk, Extent(0, chunks * CHUNK), through=BUS)
        self.transfers[transfer.transfer_id] = transfer
        self.tell(TransfersSubmitted((transfer,)))

    def obey(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, StartChunk):
                self.bus_free = max(self.now, self.bus_free) + action.chunk.length * 1e-6
                heapq.heappush(self.ends, (self.bus_free, next(self.ids), action))

    def step(self) -> list[Action]:
        self.now, _, chunk = heapq.heappop(self.ends)
        self.served[self.transfers[chunk.transfer_id].link] += chunk.chunk.length
        actions = self.scheduler.handle(ChunksCompleted(((chunk.transfer_id, chunk.chunk.offset),)), self.now)
        self.obey(actions)
        self.scheduler.check_invariants()
        return actions

    def go_on(self, steps: int) -> None:
        """Whatever ends is asked for again."""
        for _ in range(steps):
            for action in self.step():
                if isinstance(action, CompleteTransfer):
                    ended = self.transfers[action.transfer_id]
                    self.submit(ended.plan_id, ended.link)


def test_an_urgent_chunk_that_is_larger_than_others_is_next() -> None:
    machine = Machine()
    machine.tell(PlanOpened("batch", BATCH))
    for disk in DISKS[:-1]:
        for _ in range(3):
            machine.submit("batch", disk)
    machine.go_on(50)
    machine.tell(PlanOpened("urgent", INTERACTIVE))
    machine.submit("urgent", DISKS[-1])
    asked_at = machine.now
    while not machine.served[DISKS[-1]]:
        machine.go_on(1)
    assert machine.now - asked_at <= (4 + 4) * CHUNK * 1e-6 * 1.01, "what was inside, and itself"


def test_a_larger_chunk_of_the_same_class_gets_its_turn_soon() -> None:
    machine = Machine()
    machine.tell(PlanOpened("batch", BATCH))
    for disk in DISKS:
        for _ in range(3):
            machine.submit("batch", disk)
    machine.go_on(5_000)
    least = min(machine.served[disk] for disk in DISKS)
    assert machine.now > 0.1
    assert least > 0.02 * machine.served.total(), "not only after seconds"


def test_credit_that_a_plan_may_use_in_its_new_class_is_used_at_once() -> None:
    machine = Machine()
    machine.tell(PoolOpened(POOL, 16 * CHUNK))
    for number, (plan_id, priority, chunks) in enumerate((("a", INTERACTIVE, 12), ("b", BATCH, 3))):
        machine.tell(PlanOpened(plan_id, priority))
        transfer = Transfer(number, plan_id, DISKS[number], Extent(0, chunks * CHUNK), credit=POOL)
        machine.transfers[number] = transfer
        machine.tell(TransfersSubmitted((transfer,)))
    assert len(machine.ends) == 1, "that much is kept for more urgent plans"
    machine.tell(PriorityChanged("b", INTERACTIVE))
    assert len(machine.ends) == 2


def test_credit_that_a_plan_waited_for_is_others_when_it_ends() -> None:
    machine = Machine()
    machine.tell(PoolOpened(POOL, 16 * CHUNK))
    for number, (plan_id, chunks) in enumerate((("a", 10), ("b", 8), ("c", 4))):
        machine.tell(PlanOpened(plan_id, INTERACTIVE))
        transfer = Transfer(number, plan_id, DISKS[number], Extent(0, chunks * CHUNK), credit=POOL)
        machine.transfers[number] = transfer
        machine.tell(TransfersSubmitted((transfer,)))
    machine.tell(PlanClosed("b"))
    assert {chunk.transfer_id for _, _, chunk in machine.ends} == {0, 2}
