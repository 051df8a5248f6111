"""Where nodes may be found, and when to try the next time."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from pystachio.runtime.membership.views import Address

if TYPE_CHECKING:
    from random import Random

FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 3.0
"""Between attempts, give or take a half: who came back is found within this time."""
FORGET_SECONDS = 600.0
"""Those that were members once are looked for as long: a partition may last."""
STEADY_SECONDS = 5.0
"""A connection that lasted as long was a good one; shorter ones are tried again ever later."""
ATTEMPT_SECONDS = 15.0
"""An attempt of which nothing was heard for so long has failed."""


@dataclass(slots=True)
class _Contact:
    """`forget_at` is infinite for what the back end names."""

    address: Address
    forget_at: float
    due_at: float
    failures: int = 0
    connected_at: float | None = None
    answered_by: str = ""

    def name(self) -> str:
        return self.address.name or self.answered_by


class Contacts:
    """By name, seeds by their place. Jitter comes from `chance`: nodes that failed at once do not all come at once."""

    def __init__(self, own: Address, chance: Random) -> None:
        self._own = own
        self._chance = chance
        self._contacts: dict[str, _Contact] = {}

    def discover(self, addresses: Iterable[Address], now: float) -> None:
        """In place of what was discovered before."""
        for contact in self._contacts.values():
            if contact.forget_at == inf:
                contact.forget_at = now + FORGET_SECONDS
        for address in addresses:
            self._learn(address, inf, now)

    def learn(self, address: Address, now: float) -> None:
        """The node is, or was, there."""
        self._learn(address, now + FORGET_SECONDS, now)

    def forget(self, name: str) -> None:
        """The node has left; the back end may know better."""
        if self._contacts.get(name, _NOBODY).forget_at != inf:
            self._contacts.pop(name, None)

    def note_connected(self, name: str, now: float) -> None:
        for contact in self._of(name):
            contact.connected_at = now

    def note_lost(self, name: str, now: float) -> None:
        for contact in self._of(name):
            since, contact.connected_at = contact.connected_at, None
            if since is not None and now - since >= STEADY_SECONDS:
                contact.failures = 0
            contact.forget_at = max(contact.forget_at, now + FORGET_SECONDS)
            self._put_off(contact, now)

    def note_failed(self, address: Address, now: float) -> None:
        contact = self._contacts.get(_key(address))
        if contact is not None:
            self._put_off(contact, now)

    def note_answered(self, seed: Address, name: str, now: float) -> None:
        contact = self._contacts.get(_key(seed))
        if contact is not None:
            contact.answered_by = name
            contact.connected_at = now

    def due(self, connected: Set[str], now: float) -> list[Address]:
        """Whom to connect to now: each once, until the attempt has failed or the connection is lost."""
        addresses = []
        for key, contact in tuple(self._contacts.items()):
            if contact.name() in connected:
                continue
            if contact.forget_at <= now:
                del self._contacts[key]
            elif contact.due_at <= now:
                contact.due_at = now + ATTEMPT_SECONDS
                addresses.append(contact.address)
        return addresses

    def next_due(self, connected: Set[str]) -> float | None:
        waiting = (contact for contact in self._contacts.values() if contact.name() not in connected)
        return min((min(contact.due_at, contact.forget_at) for contact in waiting), default=None)

    def _learn(self, address: Address, forget_at: float, now: float) -> None:
        if address.name == self._own.name or (address.host, address.port) == (self._own.host, self._own.port):
            return
        contact = self._contacts.get(_key(address))
        if contact is None:
            self._contacts[_key(address)] = _Contact(address, forget_at, now)
            return
        contact.forget_at = max(contact.forget_at, forget_at)
        if contact.address != address:
            contact.address, contact.due_at = address, now

    def _of(self, name: str) -> Iterable[_Contact]:
        return (contact for contact in self._contacts.values() if contact.name() == name)

    def _put_off(self, contact: _Contact, now: float) -> None:
        delay = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(contact.failures, 10))
        contact.failures += 1
        contact.due_at = now + delay * self._chance.uniform(0.5, 1.5)


def _key(address: Address) -> str:
    return address.name or f"{address.host}:{address.port}"


_NOBODY = _Contact(Address("", "", 0), 0.0, 0.0)
