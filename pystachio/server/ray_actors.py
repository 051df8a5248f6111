"""What runs inside of Ray: a supervisor for each node, and the one book of their nodes' addresses.

Imported where Ray has started a process; Ray itself is imported inside functions, since it is an extra.
"""

from __future__ import annotations

import os
from typing import Any

from pystachio.errors import InvalidRequest, NodeLost
from pystachio.server.address_book import AddressBook, News
from pystachio.server.supervisor import Report, Supervisor, require_token_mode


class BookActor:
    """`AddressBook` for calls from afar. All methods are coroutines: none of them keeps another waiting."""

    async def __init__(self) -> None:  # type: ignore[misc]  # Ray waits for it, on the loop of the actor's methods
        self._book = AddressBook()

    async def problem(self) -> str | None:
        """Why no node may run in this Ray."""
        try:
            require_token_mode(os.environ)
        except InvalidRequest as error:
            return str(error)
        return None

    async def exchange(self, supervisor: str, address: str | None, known: str | None) -> tuple[str, tuple[str, ...]]:
        version, addresses = await self._book.exchange(supervisor, address, known)
        return version, addresses

    async def leave(self, supervisor: str) -> None:
        self._book.leave(supervisor)


class SupervisorActor:
    """`Supervisor` for calls from afar. When Ray starts it again on another host, its node is started there."""

    async def __init__(self, name: str, config: str | None, book: Any) -> None:  # type: ignore[misc]
        from ray.util import get_node_ip_address

        self._name = name
        self._book = book
        self._supervisor = Supervisor(name, config, host=get_node_ip_address(), exchange=self._exchange)
        self._supervisor.start()

    async def report(self) -> Report:
        return await self._supervisor.report()

    async def stop(self) -> Report:
        report = await self._supervisor.stop()
        await self._book.leave.remote(self._name)
        return report

    async def _exchange(self, supervisor: str, address: str | None, known: str | None) -> News:
        from ray.exceptions import RayError

        try:
            return News(*await self._book.exchange.remote(supervisor, address, known))
        except RayError as error:
            raise NodeLost(f"the supervisors' book of addresses cannot be reached: {type(error).__name__}") from error
