"""Serves a node's clients: lets them in, gives them the node's tables, and keeps planning off the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pystachio.config import Settings
from pystachio.data_folder import tables_of_folder
from pystachio.errors import InternalError, InvalidRequest, NodeLost, PystachioError, ResourceExhausted
from pystachio.io_scheduler.network.visits import Visit
from pystachio.operators.table import FileVersion
from pystachio.runtime.activity import NodeActivity
from pystachio.runtime.logging import get_logger
from pystachio.runtime.urgency import Urgency, priority_class, urgency
from pystachio.server.client_files import tables_in
from pystachio.server.guest import Guest
from pystachio.server.guest_plan import GuestPlan
from pystachio.server.served_node import ServedNode
from pystachio.server.steering import Steering
from pystachio.session import Session

R = TypeVar("R")

PLANNING_THREADS = 4
_ASKING_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DoormanStatistics:
    """`clients` and `plans` are those here now; `malformed` counts messages that ended a visit."""

    clients: int
    plans: int
    malformed: int


SEEN_SECONDS = 0.1
"""What the node is doing is believed for so long."""


class Doorman:
    """`visited` is given to the node when it is made, `open` the node when it is there; then clients are served."""

    def __init__(
        self,
        settings: Settings,
        data: Sequence[Path] = (),
        *,
        client_folders: Sequence[Path] | None = None,
        most_plans: int = 64,
    ) -> None:
        """`data` are folders whose tables every client has; of other files it may name those in `client_folders`, or
        all. `most_plans` of one client may run at once."""
        self.most_plans = most_plans
        self._settings = settings
        self._data = tuple(data)
        self._client_folders = None if client_folders is None else tuple(map(str, client_folders))
        self._own_sources: set[tuple[str, ...]] = set()
        self._node: ServedNode | None = None
        self._steering: Steering | None = None
        self._session: Session | None = None
        self._guests: set[Guest] = set()
        self._plans: dict[str, GuestPlan] = {}
        self._settled: set[asyncio.Event] = set()
        self._malformed = 0
        self._is_draining = False
        self._is_stopping = False
        self._seen: NodeActivity | None = None
        self._seen_until = 0.0
        self._planning = ThreadPoolExecutor(PLANNING_THREADS, thread_name_prefix="pystachio-planning")
        self._asking = ThreadPoolExecutor(_ASKING_THREADS, thread_name_prefix="pystachio-asking")
        self._showing = ThreadPoolExecutor(1, thread_name_prefix="pystachio-showing")

    def open(self, node: ServedNode) -> None:
        """From a thread that is not the node's. Raises what the tables' folders raise."""
        self._node = node
        session = Session(self._settings, node=node, find_files=self._find_files)
        for folder in self._data:
            for name, path in tables_of_folder(folder).items():
                self._own_sources.add((str(path),))
                session.register(name, path)

        async def begin() -> None:
            self._steering = Steering(
                node.plane, self, nodes=lambda: tuple(member.name for member in node.plane.view.members)
            )
            self._session = session

        node.host.call(begin()).result()

    def close(self) -> None:
        """The node has ended, or is about to."""
        self._planning.shutdown(wait=False, cancel_futures=True)
        self._asking.shutdown(wait=False, cancel_futures=True)
        self._showing.shutdown(wait=False, cancel_futures=True)

    def visited(self, visit: Visit) -> None:
        """On the loop, for each client. Raises NodeLost while the node starts."""
        if self._session is None:
            raise NodeLost("the node is starting", hint="try again in a moment")
        guest = Guest(visit, self)
        self._guests.add(guest)
        visit.on_heard(guest.hear)
        visit.on_closed(lambda error: self._part(guest))

    def _part(self, guest: Guest) -> None:
        self._guests.discard(guest)
        guest.leave()

    @property
    def node(self) -> ServedNode:
        if self._node is None:
            raise InternalError("nobody is served yet")
        return self._node

    @property
    def steering(self) -> Steering:
        if self._steering is None:
            raise InternalError("nobody is served yet")
        return self._steering

    @property
    def session(self) -> Session:
        if self._session is None:
            raise InternalError("nobody is served yet")
        return self._session

    def own_session(self) -> Session:
        return Session(self._settings, node=self.node, find_files=self._find_files, tables_of=self.session)

    def _find_files(self, paths: Sequence[str], known: Sequence[FileVersion] = ()) -> tuple[FileVersion, ...]:
        """What the node itself gives to its clients need not be what they may name."""
        if tuple(paths) in self._own_sources:
            return self.node.find_files(paths, known)
        return self.node.find_client_files(paths, known)

    async def tables_of(self, folder: str) -> Mapping[str, Path]:
        [tables] = await self.node.looks.look(self._tables_in, [folder], str)
        return tables

    def _tables_in(self, folders: Sequence[str]) -> dict[str, Path]:
        [folder] = folders
        return tables_in(self._client_folders, folder)

    @property
    def is_ready(self) -> bool:
        """Plans are taken."""
        return self._session is not None and not self._is_draining

    def check_open(self) -> None:
        if self._is_draining:
            raise ResourceExhausted(
                f"the node takes no more plans: {self.node.name}",
                setting="draining",
                hint="submit the plan to another node of the cluster",
            )

    def drain(self, draining: bool = True) -> None:
        """From a thread that is not the node's: take no more plans, here and from other nodes, or take them again.

        Raises InvalidRequest where a node that stops is to take them again.
        """
        if self._is_stopping and not draining:
            raise InvalidRequest(f"the node is stopping: {self.node.name}", hint="start it again when it has ended")
        self._is_draining = draining
        self.node.drain(draining)

    def stop(self) -> None:
        """As `drain`, for good."""
        self._is_stopping = True
        self.drain()

    async def settled(self) -> None:
        """On the loop: wait until no plan of a client is left, and all clients have what they were told."""
        while self._plans:
            event = asyncio.Event()
            self._settled.add(event)
            try:
                await event.wait()
            finally:
                self._settled.discard(event)
        for guest in tuple(self._guests):
            with suppress(PystachioError):  # it has left
                await guest.drained()

    def statistics(self) -> DoormanStatistics:
        return DoormanStatistics(clients=len(self._guests), plans=len(self._plans), malformed=self._malformed)

    def add_plan(self, guest_plan: GuestPlan) -> None:
        self._plans[guest_plan.plan.plan_id] = guest_plan

    def remove_plan(self, guest_plan: GuestPlan) -> None:
        self._plans.pop(guest_plan.plan.plan_id, None)
        if not self._plans:
            for event in self._settled:
                event.set()

    def count_malformed(self) -> None:
        self._malformed += 1

    def activity(self) -> NodeActivity:
        """On the loop, which it takes to find out: however many look, and however often, ten times a second."""
        now = time.monotonic()
        if self._seen is None or now >= self._seen_until:
            self._seen, self._seen_until = self.node.host.node.activity(), now + SEEN_SECONDS
        return self._seen

    def plan_ids(self) -> Iterable[str]:
        """`steering.OwnPlans`."""
        return tuple(self._plans)

    def cancel(self, plan_id: str) -> None:
        self._plans[plan_id].cancel()

    def set_urgency(self, plan_id: str, priority: str, deadline: float | None) -> None:
        chosen = priority_class(priority)
        wanted = urgency(chosen, deadline, Urgency(chosen))
        plan = self._plans[plan_id].plan

        def change() -> None:
            try:
                plan.set_urgency(wanted)
            except PystachioError as error:
                get_logger().warning("a plan's priority could not be changed", plan_id=plan_id, error=str(error))

        self._asking.submit(change)

    async def plan(self, work: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._planning, work)

    async def ask(self, work: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._asking, work)

    async def show(self, work: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._showing, work)
