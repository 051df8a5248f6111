"""The membership's core: from who is connected, and what they tell, to one view of the cluster.

Each node follows the least member that it is connected with and that goes along with it; who finds none leads. A leader
publishes a view of those connected: losses at once, arrivals after `GATHER_SECONDS`, so that a cluster that starts
does not publish a view for each of its nodes. Of two clusters that see each other, the one whose leader has the lesser
name takes the other's members in, as soon as it is connected with all of them or has waited `SETTLE_SECONDS`; the
other's leader does nothing, so that two that cannot agree (a network that is not transitive) do not take members from
each other for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from pystachio.runtime.membership.contacts import Contacts
from pystachio.runtime.membership.events import (
    Action,
    AddressesDiscovered,
    AdoptView,
    AskJoin,
    Connect,
    ConnectFailed,
    Disconnect,
    DrainAsked,
    Event,
    FenceMet,
    JoinAsked,
    LeaveAsked,
    MemberLost,
    MemberReached,
    NodeConnected,
    NodeDisconnected,
    NodeLeft,
    SayLeave,
    SeedAnswered,
    TellView,
    TimePassed,
    ViewHeard,
)
from pystachio.runtime.membership.views import NO_VIEW, Member, View, ViewName, ViewTold, is_higher, name_of

if TYPE_CHECKING:
    from random import Random

GATHER_SECONDS = 0.1
SETTLE_SECONDS = 2.0
RETRY_SECONDS = 1.0
"""What was told, and is not known to have arrived, is told again."""


@dataclass(slots=True, eq=False)
class _Peer:
    """A connected node. It is introduced once it has told its view: then `member` and `view` are there.

    `foreign_since` is when it was first seen to belong to another cluster, which we may take in.
    """

    member: Member | None = None
    view: View | None = None
    includes_me: bool = False
    knows: ViewName = NO_VIEW
    sequence: int = -1
    foreign_since: float | None = None
    has_left: bool = False
    is_owed: bool = True


class Membership:
    """`handle` events and do what it returns; hand it TimePassed when `next_wake` has come."""

    def __init__(self, me: Member, *, chance: Random, now: float) -> None:
        self.me = me
        self.view = View(1, me.name, (me,))
        self._by_name = {me.name: me}
        self._peers: dict[str, _Peer] = {}
        self._contacts = Contacts(me.address, chance)
        self._pending: dict[str, float] = {}
        self._present: dict[str, str] = {}
        self._lost_because: dict[str, str] = {}
        self._highest_epoch = 1
        self._sequence = 0
        self._gathers_until: float | None = None
        self._retry_at = now + RETRY_SECONDS
        self._has_left = False

    @property
    def is_leader(self) -> bool:
        return self.view.leader == self.me.name

    @property
    def present(self) -> frozenset[str]:
        """The other members that can be reached now."""
        return frozenset(self._present)

    def admits(self, name: str) -> bool:
        """Whether what this node says counts: it is a member, or has heard before us that it is one.

        Otherwise it was declared dead, or never belonged to us, and has to be taken in first.
        """
        peer = self._peers.get(name)
        if peer is None or peer.member is None or peer.view is None or peer.has_left:
            return False
        return self._is_member(peer.member) or (peer.includes_me and is_higher(peer.view, self.view))

    def handle(self, event: Event, now: float) -> list[Action]:
        actions: list[Action] = []
        if self._has_left:
            return actions
        if now >= self._retry_at:
            self._retry(actions, now)
        self._take(event, actions, now)
        if not self._has_left:
            self._lead(actions, now)
            self._note_present(actions)
            self._send(actions)
            actions += (Connect(address) for address in self._contacts.due(self._peers.keys(), now))
        return actions

    def next_wake(self) -> float | None:
        """When TimePassed is due; None when there is nothing to wait for."""
        if self._has_left:
            return None
        times = list(self._pending.values())
        if (due := self._contacts.next_due(self._peers.keys())) is not None:
            times.append(due)
        if self._gathers_until is not None:
            times.append(self._gathers_until)
        for name, peer in self._peers.items():
            if peer.foreign_since is not None:
                times.append(max(peer.foreign_since + SETTLE_SECONDS, self._retry_at))
            if self._is_unanswered(name, peer):
                times.append(self._retry_at)
        return min(times, default=None)

    def _take(self, event: Event, actions: list[Action], now: float) -> None:
        match event:
            case NodeConnected(name):
                self._peers[name] = _Peer()
                self._contacts.note_connected(name, now)
            case NodeDisconnected(name, reason):
                self._drop(name, reason, now)
            case ConnectFailed(address):
                self._contacts.note_failed(address, now)
            case SeedAnswered(seed, name):
                self._contacts.note_answered(seed, name, now)
            case AddressesDiscovered(addresses):
                self._contacts.discover(addresses, now)
            case ViewHeard():
                self._hear(event, actions, now)
            case JoinAsked(member):
                if not self._is_member(member):
                    self._contacts.learn(member.address, now)
            case DrainAsked(draining):
                if self.me.draining != draining:
                    self.me = self.me.drained(draining)
                    self._owe_all()
            case LeaveAsked():
                actions += (SayLeave(name) for name in self._peers)
                self._has_left = True
            case NodeLeft(name):
                if name in self._peers:
                    self._peers[name].has_left = True
                    self._lost_because[name] = "the node has left"
                    self._contacts.forget(name)
            case FenceMet(name):
                if name in self._peers:
                    self._peers[name].is_owed = True
            case TimePassed():
                pass
            case _:
                assert_never(event)

    def _drop(self, name: str, reason: str, now: float) -> None:
        if self._peers.pop(name, None) is not None:
            self._contacts.note_lost(name, now)
            self._lost_because[name] = reason
        self._pending.pop(name, None)

    def _hear(self, heard: ViewHeard, actions: list[Action], now: float) -> None:
        name, told = heard.name, heard.told
        peer = self._peers.get(name)
        if peer is None:
            return
        if told.sender.name != name or not told.view.includes(told.sender):
            actions.append(Disconnect(name, "a node told of itself what cannot be"))
            return
        if peer.member is not None and peer.member.instance != told.sender.instance:
            # A connection of a new start took the place of an old one, whose loss nobody has told.
            self._drop(name, "the node has started anew", now)
            self._note_present(actions)
            peer = self._peers[name] = _Peer()
        elif told.sequence <= peer.sequence:
            return
        is_news = peer.view != told.view or peer.member != told.sender
        peer.member, peer.view, peer.knows, peer.sequence = told.sender, told.view, told.knows, told.sequence
        peer.includes_me = told.view.includes(self.me)
        peer.has_left = False
        self._pending.pop(name, None)
        self._highest_epoch = max(self._highest_epoch, told.view.epoch)
        self._contacts.learn(told.sender.address, now)
        peer.is_owed |= is_news or told.knows != name_of(self.view)
        if told.view.leader == name and peer.includes_me and is_higher(told.view, self.view):
            self._adopt(told.view, actions, now)

    def _adopt(self, view: View, actions: list[Action], now: float) -> None:
        before, self.view = self._by_name, view
        self._by_name = {member.name: member for member in view.members}
        self._gathers_until = None
        pending: dict[str, float] = {}
        for member in view.members:
            peer = self._peers.get(member.name)
            if member.name != self.me.name and (peer is None or peer.member is None):
                pending[member.name] = self._pending.get(member.name, now + SETTLE_SECONDS)
                self._contacts.learn(member.address, now)
        self._pending = pending
        for name, peer in self._peers.items():
            if self._is_told(name, peer) or name not in before:
                peer.is_owed = True
        actions.append(AdoptView(view))

    def _lead(self, actions: list[Action], now: float) -> None:
        """Publish who is there, unless somebody else is to."""
        for name in [name for name, until in self._pending.items() if until <= now]:
            del self._pending[name]
        mine, arrived = self._gather(now)
        if min(mine) != self.me.name:
            self._gathers_until = None
            return
        members = tuple(mine[name] for name in sorted(mine))
        if members == self.view.members and self.is_leader and not arrived:
            self._gathers_until = None
            return
        if self.is_leader and all(mine.get(name) == member for name, member in self._by_name.items()):
            if self._gathers_until is None:
                self._gathers_until = now + GATHER_SECONDS
            if now < self._gathers_until:
                return
        self._highest_epoch += 1
        self._adopt(View(self._highest_epoch, self.me.name, members), actions, now)

    def _gather(self, now: float) -> tuple[dict[str, Member], bool]:
        """Those who go along with this node, or would if it led, and whether some did not before.

        Who has a higher view than ours is not reached by it, even when it is in there: only a new one brings it back.
        """
        arrived = False
        mine = {self.me.name: self.me}
        for name in self._pending:
            mine[name] = self._by_name[name]
        for name, peer in self._peers.items():
            if peer.member is None or peer.view is None or peer.has_left:
                continue
            if self._goes_along(peer.member, peer.view, peer.includes_me):
                peer.foreign_since = None
                mine[name] = peer.member
                continue
            if peer.foreign_since is None:
                peer.foreign_since = now
            if self._may_take_in(name, peer.view, peer.foreign_since, now):
                mine[name] = peer.member
                arrived = True
        return mine, arrived

    def _goes_along(self, member: Member, view: View, includes_me: bool) -> bool:
        """It is in our view, and in no higher one without us."""
        return self._is_member(member) and (includes_me or not is_higher(view, self.view))

    def _may_take_in(self, name: str, view: View, since: float, now: float) -> bool:
        if not self.is_leader or name < self.me.name:
            return False
        if view.leader < self.me.name:
            # Its leader is to take us in, and must know us for that.
            leader = view.member(view.leader)
            if leader is not None and leader.name not in self._peers:
                self._contacts.learn(leader.address, now)
            return False
        missing = [member for member in view.members if not self._is_introduced(member)]
        for member in missing:
            self._contacts.learn(member.address, now)
        return not missing or now >= since + SETTLE_SECONDS

    def _note_present(self, actions: list[Action]) -> None:
        """Tell of the members that can be reached now or could be before, and not the other way round."""
        present = {
            name: peer.member.instance
            for name, peer in self._peers.items()
            if peer.member is not None
            and peer.view is not None
            and not peer.has_left
            and self._goes_along(peer.member, peer.view, peer.includes_me)
        }
        for name, instance in self._present.items():
            if present.get(name) != instance:
                reason = self._lost_because.get(name, "the node is no member of the cluster any more")
                actions.append(MemberLost(name, reason))
        actions += (MemberReached(name) for name, instance in present.items() if self._present.get(name) != instance)
        self._present = present
        self._lost_because.clear()

    def _retry(self, actions: list[Action], now: float) -> None:
        self._retry_at = now + RETRY_SECONDS
        for name, peer in self._peers.items():
            peer.is_owed |= self._is_unanswered(name, peer)
            if peer.foreign_since is not None and peer.member is not None and self.view.leader in self._peers:
                actions.append(AskJoin(self.view.leader, peer.member))

    def _send(self, actions: list[Action]) -> None:
        for name, peer in self._peers.items():
            if peer.is_owed:
                peer.is_owed = False
                knows = NO_VIEW if peer.view is None else name_of(peer.view)
                self._sequence += 1
                actions.append(TellView(name, ViewTold(self.me, self.view, knows, self._sequence)))

    def _is_told(self, name: str, peer: _Peer) -> bool:
        """Between members that only follow, nothing is said: their leader has told both."""
        return self.is_leader or name == self.view.leader or peer.member is None or not self._is_member(peer.member)

    def _is_unanswered(self, name: str, peer: _Peer) -> bool:
        if name == self.view.leader and self._by_name.get(self.me.name) != self.me:
            return True  # it has not heard that we drain, or do no more
        return self._is_told(name, peer) and peer.knows != name_of(self.view)

    def _is_member(self, member: Member) -> bool:
        known = self._by_name.get(member.name)
        return known is not None and known.instance == member.instance

    def _is_introduced(self, member: Member) -> bool:
        peer = self._peers.get(member.name)
        if member.name == self.me.name:
            return True
        return peer is not None and peer.member is not None and peer.member.instance == member.instance

    def _owe_all(self) -> None:
        for peer in self._peers.values():
            peer.is_owed = True
