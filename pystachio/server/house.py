"""What a client's stand-in at its node needs of the visit, and of what all clients share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from pystachio.io_scheduler.network.tokens import Credential
from pystachio.runtime.activity import NodeActivity
from pystachio.server.guest_plan import GuestPlan
from pystachio.server.served_node import ServedNode
from pystachio.server.steering import Steering
from pystachio.session import Session

R = TypeVar("R")


class GuestVisit(Protocol):
    """The part of `io_scheduler.network.visits.Visit` that is needed here."""

    @property
    def credential(self) -> Credential: ...

    def tell(self, body: bytes) -> None: ...

    async def drained(self) -> None: ...

    def close(self, reason: str) -> None: ...


class House(Protocol):
    """What all clients of a node share: `doorman.Doorman`."""

    @property
    def node(self) -> ServedNode: ...

    @property
    def steering(self) -> Steering: ...

    @property
    def session(self) -> Session:
        """With the tables that every client has."""
        ...

    @property
    def most_plans(self) -> int:
        """Of one client, running."""
        ...

    def own_session(self) -> Session:
        """As `session`, for one client that has more tables, of files that clients may name. Looks at no file."""
        ...

    async def tables_of(self, folder: str) -> Mapping[str, Path]:
        """The tables of a folder that clients may name, by name."""
        ...

    def activity(self) -> NodeActivity:
        """What the node is doing, or did a moment ago."""
        ...

    def check_open(self) -> None:
        """Raises what to refuse new plans with."""
        ...

    def drain(self, draining: bool) -> None: ...

    def add_plan(self, guest_plan: GuestPlan) -> None: ...

    def remove_plan(self, guest_plan: GuestPlan) -> None: ...

    def count_malformed(self) -> None: ...

    async def plan(self, work: Callable[[], R]) -> R:
        """Run what takes long and blocks, on one of few threads."""
        ...

    async def ask(self, work: Callable[[], R]) -> R:
        """Run what blocks, but not for long, on a thread that no planning keeps."""
        ...

    async def show(self, work: Callable[[], R]) -> R:
        """As `ask`, for observers: on a thread that no client waits for."""
        ...
