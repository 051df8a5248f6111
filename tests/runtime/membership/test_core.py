"""The membership's core: events in, actions out."""

from __future__ import annotations

from random import Random

from pystachio.runtime.membership.core import GATHER_SECONDS, RETRY_SECONDS, SETTLE_SECONDS, Membership
from pystachio.runtime.membership.events import (
    Action,
    AddressesDiscovered,
    AdoptView,
    AskJoin,
    Connect,
    ConnectFailed,
    Disconnect,
    DrainAsked,
    FenceMet,
    JoinAsked,
    LeaveAsked,
    MemberLost,
    NodeConnected,
    NodeDisconnected,
    NodeLeft,
    SayLeave,
    SeedAnswered,
    TellView,
    TimePassed,
    ViewHeard,
)
from pystachio.runtime.membership.views import NO_VIEW, Address, Member, View, ViewName, ViewTold, is_higher, name_of

A, B, C, D = (Member(name, "host", port, f"{name}1") for port, name in enumerate("abcd", 1))


def make_core(me: Member) -> Membership:
    return Membership(me, chance=Random(1), now=0.0)


def view(epoch: int, *members: Member, leader: Member | None = None) -> View:
    return View(epoch, (leader or members[0]).name, members)


def hear(core: Membership, sender: Member, heard: View, now: float, *, sequence: int = 1) -> list[Action]:
    told = ViewTold(sender, heard, name_of(core.view), sequence)
    return core.handle(ViewHeard(sender.name, told), now)


def introduce(core: Membership, peer: Member, now: float, heard: View | None = None) -> None:
    core.handle(NodeConnected(peer.name), now)
    hear(core, peer, heard if heard is not None else view(1, peer), now)


def follower(me: Member, leader: Member, *others: Member, epoch: int = 5) -> Membership:
    """A core that follows; it is connected with all, as of time 1."""
    core = make_core(me)
    members = tuple(sorted((me, leader, *others)))
    for peer in (leader, *others):
        introduce(core, peer, 1.0, view(epoch, *members, leader=leader))
    assert core.view == view(epoch, *members, leader=leader)
    return core


def adopted(actions: list[Action]) -> list[View]:
    return [action.view for action in actions if isinstance(action, AdoptView)]


def test_a_node_begins_as_its_own_leader() -> None:
    core = make_core(A)
    assert (core.view, core.is_leader, core.present) == (view(1, A), True, frozenset())
    assert core.next_wake() is None


def test_who_is_connected_is_told_the_view() -> None:
    core = make_core(A)
    assert core.handle(NodeConnected("b"), 0.0) == [TellView("b", ViewTold(A, view(1, A), NO_VIEW, 1))]


def test_what_is_not_known_to_have_arrived_is_told_again() -> None:
    core = make_core(A)
    core.handle(NodeConnected("b"), 0.0)
    assert core.next_wake() == RETRY_SECONDS
    assert core.handle(TimePassed(), RETRY_SECONDS) == [TellView("b", ViewTold(A, view(1, A), NO_VIEW, 2))]


def test_the_lesser_leader_takes_others_in_together() -> None:
    core = make_core(A)
    introduce(core, B, 1.0)
    introduce(core, C, 1.0)
    assert core.view == view(1, A)
    assert core.next_wake() == 1.0 + GATHER_SECONDS
    assert adopted(core.handle(TimePassed(), 1.2)) == [view(2, A, B, C)]


def test_the_greater_leader_waits_to_be_taken_in() -> None:
    core = make_core(B)
    introduce(core, A, 1.0)
    assert adopted(core.handle(TimePassed(), 2.0)) == []
    actions = hear(core, A, view(2, A, B), 2.1, sequence=2)
    assert actions[0] == AdoptView(view(2, A, B))
    assert TellView("a", ViewTold(B, view(2, A, B), ViewName(2, "a"), 3)) in actions, "the leader is to know"


def test_a_lost_member_is_out_at_once() -> None:
    core = make_core(A)
    introduce(core, B, 1.0)
    introduce(core, C, 1.0)
    core.handle(TimePassed(), 1.2)
    for peer in (B, C):
        hear(core, peer, view(2, A, B, C), 1.3, sequence=2)
    actions = core.handle(NodeDisconnected("b", "silence"), 2.0)
    assert adopted(actions) == [view(3, A, C)]
    assert MemberLost("b", "silence") in actions
    assert core.present == {"c"}


def test_the_next_in_line_takes_over_from_a_lost_leader() -> None:
    core = follower(B, A, C)
    actions = core.handle(NodeDisconnected("a", "silence"), 2.0)
    assert adopted(actions) == [view(6, B, C)]
    assert core.is_leader


def test_others_wait_for_the_next_in_line() -> None:
    core = follower(C, A, B)
    actions = core.handle(NodeDisconnected("a", "silence"), 2.0)
    assert adopted(actions) == []
    assert MemberLost("a", "silence") in actions
    assert adopted(hear(core, B, view(6, B, C), 2.1, sequence=2)) == [view(6, B, C)]


def test_a_follower_that_loses_a_member_leaves_it_to_the_leader() -> None:
    core = follower(B, A, C)
    assert adopted(core.handle(NodeDisconnected("c", "silence"), 2.0)) == []
    assert core.view == view(5, A, B, C)
    assert core.present == {"a"}


def test_lower_views_change_nothing() -> None:
    core = follower(B, A, C)
    assert adopted(hear(core, A, view(4, A, B), 2.0, sequence=2)) == []
    assert core.view.epoch == 5


def test_messages_that_were_overtaken_change_nothing() -> None:
    core = follower(B, A, C)
    hear(core, A, view(6, A, B, C), 2.0, sequence=9)
    assert hear(core, A, view(7, A, B), 2.1, sequence=8) == []
    assert core.view.epoch == 6


def test_views_come_from_their_leaders() -> None:
    core = follower(C, A, B)
    assert adopted(hear(core, B, view(9, A, B, C), 2.0, sequence=2)) == []


def test_of_equal_epochs_the_view_of_the_lesser_leader_is_higher() -> None:
    assert is_higher(view(2, A, C), view(2, B, C))
    assert not is_higher(view(2, B, C), view(2, A, C))
    assert is_higher(view(3, B, C), view(2, A, C))
    assert not is_higher(view(2, A, C), view(2, A, C))


def test_a_foreign_cluster_is_taken_in_as_a_whole() -> None:
    core = make_core(A)
    foreign = view(7, B, C)
    core.handle(NodeConnected("b"), 1.0)
    actions = hear(core, B, foreign, 1.0)
    assert Connect(C.address) in actions
    assert adopted(core.handle(TimePassed(), 1.5)) == [], "c would be left behind"
    introduce(core, C, 1.6, foreign)
    assert adopted(core.handle(TimePassed(), 1.8)) == [view(8, A, B, C)]


def test_who_cannot_be_reached_is_not_waited_for_for_long() -> None:
    core = make_core(A)
    introduce(core, B, 1.0, view(7, B, C))
    core.handle(TimePassed(), 1.0 + SETTLE_SECONDS)
    assert adopted(core.handle(TimePassed(), 1.1 + SETTLE_SECONDS)) == [view(8, A, B)]


def test_two_sides_of_a_partition_merge() -> None:
    """a lost b and c; b went on with c. Both published epoch 6."""
    core = make_core(A)
    for peer in (B, C):
        introduce(core, peer, 1.0)
    core.handle(TimePassed(), 1.2)
    core.handle(NodeDisconnected("b", "silence"), 2.0)
    core.handle(NodeDisconnected("c", "silence"), 2.0)
    alone = core.view
    assert alone.members == (A,)
    for peer in (B, C):
        introduce(core, peer, 9.0, view(alone.epoch + 3, B, C))
    assert adopted(core.handle(TimePassed(), 9.2)) == [view(alone.epoch + 4, A, B, C)]


def test_a_member_that_went_its_own_way_is_brought_back_by_a_new_view() -> None:
    """It lost the connection and went on alone; we have noticed nothing, and have it in our view still."""
    core = make_core(A)
    introduce(core, B, 1.0)
    core.handle(TimePassed(), 1.2)
    hear(core, B, view(2, A, B), 1.3, sequence=2)
    actions = hear(core, B, view(3, B), 2.0, sequence=3)
    actions += core.handle(TimePassed(), 2.2)
    assert adopted(actions) == [view(4, A, B)]


def test_a_node_that_started_anew_is_another_member() -> None:
    core = follower(B, A, C)
    anew = Member("c", "host", 3, "c2")
    told = ViewTold(anew, view(1, anew), NO_VIEW, 1)
    actions = core.handle(ViewHeard("c", told), 2.0)
    assert MemberLost("c", "the node has started anew") in actions
    assert not core.admits("c")


def test_strangers_are_fenced_until_they_are_taken_in() -> None:
    core = follower(B, A, C)
    introduce(core, D, 2.0)
    assert (core.admits("c"), core.admits("d"), core.admits("nobody")) == (True, False, False)
    hear(core, A, view(6, A, B, C, D), 2.1, sequence=2)
    assert core.admits("d")


def test_who_heard_of_its_admission_first_is_not_fenced() -> None:
    core = follower(B, A, C)
    introduce(core, D, 2.0)
    hear(core, D, view(6, A, B, C, D), 2.1, sequence=2)
    assert core.admits("d"), "the leader's word is on its way to us"


def test_an_excluded_member_is_lost_and_fenced() -> None:
    core = follower(B, A, C)
    actions = hear(core, A, view(6, A, B), 2.0, sequence=2)
    assert MemberLost("c", "the node is no member of the cluster any more") in actions
    assert not core.admits("c")


def test_who_was_fenced_tells_its_view_again() -> None:
    core = follower(B, A, C)
    actions = core.handle(FenceMet("a"), 2.0)
    assert [action.to for action in actions if isinstance(action, TellView)] == ["a"]


def test_the_leader_hears_of_strangers() -> None:
    core = follower(B, A, C)
    introduce(core, D, 2.0)
    assert AskJoin("a", D) in core.handle(TimePassed(), 3.5)


def test_the_leader_connects_to_who_asks_to_join() -> None:
    core = make_core(A)
    assert core.handle(JoinAsked(D), 1.0) == [Connect(D.address)]


def test_a_draining_member_stays_and_is_marked() -> None:
    core = make_core(A)
    introduce(core, B, 1.0)
    core.handle(TimePassed(), 1.2)
    hear(core, B.drained(True), view(2, A, B), 2.0, sequence=2)
    assert core.view == view(3, A, B.drained(True))
    assert adopted(core.handle(DrainAsked(True), 3.0)) == [view(4, A.drained(True), B.drained(True))]


def test_a_follower_that_drains_tells_its_leader_until_it_is_in_the_view() -> None:
    core = follower(B, A)
    assert any(isinstance(action, TellView) for action in core.handle(DrainAsked(True), 2.0))
    assert any(isinstance(action, TellView) for action in core.handle(TimePassed(), 4.0))
    drained = view(6, A, B.drained(True))
    told = ViewTold(A, drained, ViewName(6, "a"), 2)
    core.handle(ViewHeard("a", told), 5.0)
    core.handle(ViewHeard("a", ViewTold(A, drained, ViewName(6, "a"), 3)), 5.0)
    assert core.next_wake() is None, "nothing is left to say"


def test_who_leaves_says_so_and_is_quiet() -> None:
    core = follower(B, A, C)
    assert core.handle(LeaveAsked(), 2.0) == [SayLeave("a"), SayLeave("c")]
    assert core.handle(NodeDisconnected("a", "closed"), 2.1) == []
    assert core.next_wake() is None


def test_who_left_is_out_and_not_looked_for() -> None:
    core = make_core(A)
    introduce(core, B, 1.0)
    core.handle(TimePassed(), 1.2)
    hear(core, B, view(2, A, B), 1.3, sequence=2)
    actions = core.handle(NodeLeft("b"), 2.0)
    assert adopted(actions) == [view(3, A)]
    assert MemberLost("b", "the node has left") in actions
    core.handle(NodeDisconnected("b", "closed"), 2.1)
    assert core.next_wake() is None


def test_a_seed_is_whoever_answers() -> None:
    core = make_core(B)
    seed = Address("", "host", 1)
    assert core.handle(AddressesDiscovered((seed,)), 0.0) == [Connect(seed)]
    core.handle(NodeConnected("a"), 0.1)
    core.handle(SeedAnswered(seed, "a"), 0.1)
    assert not any(isinstance(action, Connect) for action in core.handle(TimePassed(), 60.0))
    core.handle(NodeDisconnected("a", "silence"), 61.0)
    assert Connect(seed) in core.handle(TimePassed(), 63.0)


def test_attempts_are_further_and_further_apart() -> None:
    core = make_core(B)
    actions = core.handle(AddressesDiscovered((A.address,)), 0.0)
    waits = []
    now = 0.0
    for _ in range(8):
        assert actions == [Connect(A.address)]
        core.handle(ConnectFailed(A.address, "refused"), now)
        wake = core.next_wake()
        assert wake is not None
        waits.append(wake - now)
        now = wake
        actions = core.handle(TimePassed(), now)
    assert waits[0] < 0.2
    assert 1.4 < waits[-1] < 4.6


def test_who_lies_about_its_name_is_disconnected() -> None:
    core = make_core(A)
    core.handle(NodeConnected("b"), 0.0)
    actions = core.handle(ViewHeard("b", ViewTold(C, view(1, C), NO_VIEW, 1)), 0.1)
    assert actions == [Disconnect("b", "a node told of itself what cannot be")]
