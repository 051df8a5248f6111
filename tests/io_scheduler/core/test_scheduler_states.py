"""Random histories of the core, with the second books of `scheduler_model`.

Every byte is moved and delivered once, memory stays within credit, windows and peers' caps hold, urgent transfers are
not passed over, nobody waits who need not, and when devices and consumers do their part everything ends.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from pystachio.errors import DataError, PystachioError, ResourceExhausted
from pystachio.io_scheduler.core.events import (
    LeaseGranted,
    PlanCancelled,
    PlanClosed,
    PriorityChanged,
    TransfersBoosted,
    TransfersCancelled,
)
from pystachio.io_scheduler.core.policy import POLICIES
from pystachio.io_scheduler.core.request import (
    CreditPool,
    Extent,
    Lease,
    Link,
    LinkLimits,
    PlanOrder,
    PriorityClass,
    Transfer,
)
from tests.io_scheduler.core.scheduler_model import World

DISK, OTHER_DISK, BUS, NETWORK = (
    Link("disk", "1:0"),
    Link("disk", "2:0"),
    Link("pcie", "0"),
    Link("network", "n0"),
)
LINKS = (DISK, OTHER_DISK, BUS, NETWORK)
POOLS = tuple(CreditPool("host", stage) for stage in range(3))
PLANS = ("a", "b", "c", "d")
NOTHING_RESERVED = (0.0, 0.0, 0.0, 0.0)

ANY_PLAN = st.sampled_from(PLANS)
ANY_PRIORITY = st.sampled_from(PriorityClass)
ANY_POOL = st.sampled_from(POOLS)
ANY_POOL_SIZE = st.sampled_from([8, 16, 32, 64, 100])
ANY_POLICY = st.builds(
    lambda name, window, reserves: replace(
        POLICIES[name],
        window_bytes=None if POLICIES[name].window_bytes is None else window,
        **({} if reserves else {"reservations": NOTHING_RESERVED}),
    ),
    st.sampled_from(["pystachio", "pystachio", "pystachio", "strict", "fair", "fifo"]),
    st.sampled_from([None, 40, 64]),
    st.booleans(),
)
ANY_LIMITS = st.builds(
    LinkLimits,
    chunk_bytes=st.sampled_from([8, 16]),
    window_bytes=st.sampled_from([16, 24, 40]),
    smallest_chunk_bytes=st.just(4),
    alignment=st.sampled_from([1, 1, 4]),
    peer_bytes=st.sampled_from([None, 16, 32]),
    urgent_bytes=st.sampled_from([0, 0, 16]),
    timeout_seconds=st.sampled_from([30.0, 3.0]),
    calibrated=st.booleans(),
)
ANY_TRANSFER = st.builds(
    Transfer,
    st.just(0),
    ANY_PLAN,
    st.sampled_from(LINKS),
    st.builds(
        Extent, st.integers(0, 10).map(lambda number: 4 * number), st.sampled_from([0, 1, 5, 16, 20, 33, 64, 90])
    ),
    st.integers(-1, 2),
    st.none() | ANY_POOL,
    st.booleans(),
    st.sampled_from([None, None, BUS, DISK]),
    st.none() | st.sampled_from(["x", "y", "z"]),
    st.integers(0, 3),
    st.booleans(),
)
ERRORS: tuple[PystachioError | None, ...] = (
    None,
    None,
    None,
    DataError("broken"),
    ResourceExhausted("busy", setting="device", value=1),
)


class History(RuleBasedStateMachine):
    """What plans, devices, consumers, the centre and the clock may do, in any order."""

    @initialize(policy=ANY_POLICY, limits=ANY_LIMITS, pools=st.tuples(*[ANY_POOL_SIZE] * len(POOLS)))
    def start(self, policy: object, limits: LinkLimits, pools: tuple[int, ...]) -> None:
        self.world = World(policy)  # type: ignore[arg-type]
        self.submitted = 0
        self.leases = 0
        for link in LINKS:
            self.world.open_link(link, limits)
        for pool, nbytes in zip(POOLS, pools, strict=True):
            self.world.open_pool(pool, nbytes)

    @rule(
        plan_id=ANY_PLAN,
        priority=ANY_PRIORITY,
        weight=st.sampled_from([0.5, 1.0, 4.0]),
        due=st.none() | st.floats(-5.0, 50.0),
    )
    def open_plan(self, plan_id: str, priority: PriorityClass, weight: float, due: float | None) -> None:
        self.world.open_plan(plan_id, priority, weight, None if due is None else self.world.clock + due)

    @rule(transfers=st.lists(ANY_TRANSFER, min_size=1, max_size=4))
    def submit(self, transfers: list[Transfer]) -> None:
        numbered = [transfer._replace(transfer_id=self.submitted + n) for n, transfer in enumerate(transfers)]
        self.submitted += len(transfers)
        self.world.submit(numbered)

    @precondition(lambda self: self.world.inside())
    @rule(data=st.data(), error=st.sampled_from(ERRORS))
    def end_chunk(self, data: st.DataObject, error: PystachioError | None) -> None:
        self.world.end_chunk(*data.draw(st.sampled_from(self.world.inside())), error)

    @precondition(lambda self: self.world.inside())
    @rule(count=st.integers(1, 6))
    def end_chunks(self, count: int) -> None:
        self.world.end_chunks(self.world.inside()[:count])

    @precondition(lambda self: self.world.consumers)
    @rule(data=st.data(), named=st.booleans())
    def release(self, data: st.DataObject, named: bool) -> None:
        self.world.release(data.draw(st.integers(0, len(self.world.consumers) - 1)), named=named)

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def cancel_transfers(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.integers(0, self.submitted - 1), max_size=3))
        self.world.tell(TransfersCancelled(tuple(ids)))

    @rule(plan_id=ANY_PLAN, closed=st.booleans())
    def end_plan(self, plan_id: str, closed: bool) -> None:
        self.world.tell(PlanClosed(plan_id) if closed else PlanCancelled(plan_id))

    @rule(plan_id=ANY_PLAN, priority=ANY_PRIORITY, due=st.none() | st.floats(-5.0, 50.0))
    def change_priority(self, plan_id: str, priority: PriorityClass, due: float | None) -> None:
        self.world.tell(PriorityChanged(plan_id, priority, None if due is None else self.world.clock + due))

    @precondition(lambda self: self.submitted)
    @rule(data=st.data(), plan_id=ANY_PLAN, criticality=st.integers(0, 3))
    def boost(self, data: st.DataObject, plan_id: str, criticality: int) -> None:
        ids = data.draw(st.lists(st.integers(0, self.submitted - 1), max_size=3))
        self.world.tell(TransfersBoosted(tuple(ids), plan_id, criticality))

    @rule(pool=ANY_POOL, nbytes=ANY_POOL_SIZE)
    def resize(self, pool: CreditPool, nbytes: int) -> None:
        if nbytes >= self.world.used(pool):
            self.world.open_pool(pool, nbytes)

    @rule(weights=st.dictionaries(ANY_PLAN, st.floats(0.1, 10.0)))
    def grant_lease(self, weights: dict[str, float]) -> None:
        """Of weights alone: whose class a lease changes is none of this test's business."""
        self.leases += 1
        plans = self.world.scheduler.statistics().plans
        orders = tuple(
            PlanOrder(plan, self.world.plans[plan], w) for plan, w in weights.items() if plan in self.world.plans
        )
        self.world.tell(LeaseGranted(Lease(1, self.leases, 3.0, orders)))
        assert self.world.scheduler.statistics().plans == plans

    @rule(seconds=st.sampled_from([0.001, 0.02, 0.3, 1.0, 4.0]))
    def wait(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule(jump=st.sampled_from([-3.0, 20.0, 1000.0]))
    def jump(self, jump: float) -> None:
        self.world.advance(0.1, jump)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


History.TestCase.settings = settings(
    max_examples=200, stateful_step_count=60, suppress_health_check=[HealthCheck.too_slow]
)
TestHistory = History.TestCase
