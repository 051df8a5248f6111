"""Where the nodes of all supervisors are: the one thing that supervisors share. Nothing else goes through Ray."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import NamedTuple

WAIT_SECONDS = 20.0
"""How long a call waits for a change: Ray has no messages to an actor but the answers to its calls."""
FORGET_SECONDS = 60.0
"""An address is kept for as long after its supervisor was last heard."""


class News(NamedTuple):
    """`addresses` are `NAME=HOST:PORT`; `version` names this state of the book."""

    version: str
    addresses: tuple[str, ...]


@dataclass(slots=True)
class _Entry:
    address: str | None
    heard: float


class AddressBook:
    """Of many callers on one loop. It may be lost and begin anew: each call brings its caller's own address again."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._changes = 0
        self._changed = asyncio.Event()
        self._beginning = secrets.token_hex(4)

    async def exchange(self, supervisor: str, address: str | None, known: str | None) -> News:
        """Note the address of the supervisor's node, None while there is none, and return all addresses.

        Waits for a change while the caller knows them: `known` is the version of its last news.
        """
        loop = asyncio.get_running_loop()
        self._note(supervisor, address, loop.time())
        give_up = loop.time() + WAIT_SECONDS
        while self._version == known and loop.time() < give_up:
            try:
                await asyncio.wait_for(self._changed.wait(), give_up - loop.time())
            except TimeoutError:
                break
        if (entry := self._entries.get(supervisor)) is not None:
            entry.heard = loop.time()  # it may have waited for longer than the others are kept
        self._forget(loop.time())
        return News(self._version, self.addresses())

    def leave(self, supervisor: str) -> None:
        """Its node has ended for good."""
        if self._entries.pop(supervisor, None) is not None:
            self._tell()

    def addresses(self) -> tuple[str, ...]:
        return tuple(sorted(entry.address for entry in self._entries.values() if entry.address is not None))

    @property
    def _version(self) -> str:
        return f"{self._beginning}-{self._changes}"

    def _note(self, supervisor: str, address: str | None, now: float) -> None:
        entry = self._entries.get(supervisor)
        before = None if entry is None else entry.address
        self._entries[supervisor] = _Entry(address, now)
        if address != before:
            self._tell()

    def _forget(self, now: float) -> None:
        silent = [name for name, entry in self._entries.items() if now - entry.heard > FORGET_SECONDS]
        for name in silent:
            del self._entries[name]
        if silent:
            self._tell()

    def _tell(self) -> None:
        self._changes += 1
        self._changed.set()
        self._changed = asyncio.Event()
