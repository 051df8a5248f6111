"""Members, and views of who they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple


class Address(NamedTuple):
    """Where a node listens. Of a seed, only the place is known: its `name` is empty."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A node that is started: `instance` is random at each start. A `draining` one ends its plans and gets no more."""

    name: str
    host: str
    port: int
    instance: str
    draining: bool = False

    @property
    def address(self) -> Address:
        return Address(self.name, self.host, self.port)

    def is_same_start(self, other: Member) -> bool:
        return self.name == other.name and self.instance == other.instance

    def drained(self, draining: bool) -> Member:
        return replace(self, draining=draining)


@dataclass(frozen=True, slots=True)
class View:
    """Who belongs together, by the word of `leader`, who is one of them. `members` are sorted by name.

    A leader publishes one view per epoch, and each of a higher epoch than any view that it has heard of.
    """

    epoch: int
    leader: str
    members: tuple[Member, ...]

    def member(self, name: str) -> Member | None:
        return next((member for member in self.members if member.name == name), None)

    def includes(self, member: Member) -> bool:
        """This start of the node, that is."""
        known = self.member(member.name)
        return known is not None and known.instance == member.instance


class ViewName(NamedTuple):
    """What identifies a view in a conversation of two nodes."""

    epoch: int
    leader: str


NO_VIEW = ViewName(0, "")


def name_of(view: View) -> ViewName:
    return ViewName(view.epoch, view.leader)


def is_higher(view: View, other: View) -> bool:
    """A total order: by epoch; of equal epochs the view of the lesser leader is higher."""
    if view.epoch != other.epoch:
        return view.epoch > other.epoch
    return (view.leader, view.members) < (other.leader, other.members)


@dataclass(frozen=True, slots=True)
class ViewTold:
    """What nodes tell each other: on being connected, with each change, and again until it is known to have arrived.

    `knows` is the latest view that the sender has heard from the receiver. `sequence` rises with each of a sender's.
    """

    sender: Member
    view: View
    knows: ViewName
    sequence: int
