"""One core among peers that tell it anything at any time: what holds whatever comes."""

from __future__ import annotations

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pystachio.runtime.membership.core import Membership
from pystachio.runtime.membership.events import (
    AddressesDiscovered,
    AdoptView,
    Connect,
    ConnectFailed,
    DrainAsked,
    Event,
    FenceMet,
    JoinAsked,
    MemberLost,
    MemberReached,
    NodeConnected,
    NodeDisconnected,
    NodeLeft,
    TellView,
    TimePassed,
    ViewHeard,
)
from pystachio.runtime.membership.views import Address, Member, View, ViewName, ViewTold, is_higher

ME = Member("m", "host", 1, "m1")
NAMES = st.sampled_from(("a", "b", "p", "z"))
STARTS = st.sampled_from(("1", "2"))


@st.composite
def members(draw: st.DrawFn) -> Member:
    name = draw(NAMES)
    return Member(name, "host", ord(name), name + draw(STARTS), draw(st.booleans()))


@st.composite
def views_told(draw: st.DrawFn) -> ViewTold:
    """A view that holds together, of any epoch, with or without us."""
    sender = draw(members())
    others = {member.name: member for member in draw(st.lists(members(), max_size=3))}
    if draw(st.booleans()):
        others[ME.name] = ME
    others[sender.name] = sender
    listed = tuple(others[name] for name in sorted(others))
    epoch = draw(st.integers(1, 12))
    knows = ViewName(draw(st.integers(0, 12)), draw(st.sampled_from(("", "a", "m", "z"))))
    return ViewTold(sender, View(epoch, listed[0].name, listed), knows, draw(st.integers(0, 40)))


class CoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.core = Membership(ME, chance=Random(7), now=0.0)
        self.now = 0.0
        self.connected: set[str] = set()
        self.trying: set[Address] = set()
        self.present: frozenset[str] = frozenset()
        self.published: dict[int, View] = {}

    def take(self, event: Event) -> None:
        before = self.core.view
        actions = self.core.handle(event, self.now)
        for action in actions:
            match action:
                case AdoptView(view):
                    assert is_higher(view, before), "epochs never go back"
                    assert view.includes(ME)
                    assert view.leader == view.members[0].name, "the least member leads"
                    if view.leader == ME.name:
                        assert view.epoch not in self.published
                        self.published[view.epoch] = view
                    before = view
                case TellView(to, told):
                    assert to in self.connected
                    assert (told.sender, told.view) == (self.core.me, self.core.view)
                case Connect(address):
                    assert address.name not in self.connected
                    assert address not in self.trying, "one attempt at a time"
                    self.trying.add(address)
                case MemberLost(name):
                    assert name in self.present, "nobody is lost who was not there"
                    self.present -= {name}
                case MemberReached(name):
                    assert name not in self.present, "nobody is reached who was there"
                    self.present |= {name}
                case _:
                    pass
        assert before == self.core.view
        assert self.present == self.core.present, "who comes and goes was told"

    @rule(name=NAMES)
    def connect(self, name: str) -> None:
        if name not in self.connected:
            self.connected.add(name)
            self.trying = {address for address in self.trying if address.name != name}
            self.take(NodeConnected(name))

    @rule(name=NAMES)
    def disconnect(self, name: str) -> None:
        if name in self.connected:
            self.connected.remove(name)
            self.take(NodeDisconnected(name, "silence"))

    @rule(told=views_told())
    def hear(self, told: ViewTold) -> None:
        if told.sender.name in self.connected:
            self.take(ViewHeard(told.sender.name, told))

    @rule(seconds=st.sampled_from((0.05, 0.5, 2.5, 5.0)))
    def wait(self, seconds: float) -> None:
        for address in sorted(self.trying):
            self.trying.remove(address)
            self.take(ConnectFailed(address, "refused"))
        self.now += seconds
        self.take(TimePassed())

    @rule(name=NAMES)
    def leave_or_refuse(self, name: str) -> None:
        self.take(NodeLeft(name))
        self.take(FenceMet(name))

    @rule(member=members(), draining=st.booleans())
    def ask(self, member: Member, draining: bool) -> None:
        self.take(JoinAsked(member))
        self.take(DrainAsked(draining))

    @rule(known=st.lists(members(), max_size=3))
    def discover(self, known: list[Member]) -> None:
        self.take(AddressesDiscovered(tuple(member.address for member in known)))

    @invariant()
    def the_view_holds_together(self) -> None:
        view = self.core.view
        names = [member.name for member in view.members]
        assert names == sorted(set(names))
        assert view.includes(self.core.me)
        assert self.core.present <= set(names) - {ME.name}
        assert self.core.present <= self.connected

    @invariant()
    def time_moves_on(self) -> None:
        """A wake that is due already would come again and again."""
        wake = self.core.next_wake()
        if wake is not None and wake <= self.now:
            self.take(TimePassed())
            again = self.core.next_wake()
            assert again is None or again > self.now


TestCoreMachine = CoreMachine.TestCase
TestCoreMachine.settings = settings(max_examples=100, stateful_step_count=40)
