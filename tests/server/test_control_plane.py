"""The control plane of nodes in one process, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from pystachio.errors import InternalError, PystachioError
from pystachio.io_scheduler.network.liveness import Health
from pystachio.runtime.membership.views import Address, View
from pystachio.server.control_plane import ControlPlane
from pystachio.server.messages import CentreMissedSome, DrainOrdered, Fenced, encode
from tests import virtual_time
from tests.server.hub import Hub, HubNetwork, addresses, make_control, names, opened


@dataclass
class Cluster:
    hub: Hub
    controls: dict[str, ControlPlane]
    networks: dict[str, HubNetwork]


async def start(stack: AsyncExitStack, *node_names: str) -> Cluster:
    """All of them, in one view."""
    cluster = Cluster(Hub(), {}, {})
    known = addresses(*node_names)
    for address in known:
        control = cluster.controls[address.name] = make_control(address.name, *known)
        network = await stack.enter_async_context(opened(cluster.hub, control, address.port))
        cluster.networks[address.name] = network
    await asyncio.sleep(3.0)
    return cluster


def test_a_node_alone_is_a_cluster() -> None:
    async def main() -> None:
        control = make_control("a")
        views: list[View] = []
        control.when_view_changes(views.append)
        async with opened(Hub(), control, 1):
            assert names(control) == ("a",)
            assert views == [control.view]
            assert [member.name for member in control.available()] == ["a"]

    virtual_time.run(main())


def test_a_control_plane_that_is_not_open_says_so() -> None:
    async def main() -> None:
        with pytest.raises(InternalError, match="not open"):
            make_control("a").view  # noqa: B018

    virtual_time.run(main())


def test_listed_nodes_come_together() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            cluster = await start(stack, "a", "b", "c")
            views = {control.view for control in cluster.controls.values()}
            assert len(views) == 1
            assert names(cluster.controls["a"]) == ("a", "b", "c")
            assert {control.view.leader for control in cluster.controls.values()} == {"a"}

    virtual_time.run(main())


def test_a_node_joins_by_the_address_of_any_member() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            cluster = await start(stack, "a", "b", "c")
            late = make_control("late", Address("", "host", 3))
            await stack.enter_async_context(opened(cluster.hub, late, 9))
            await asyncio.sleep(2.5)
            assert names(late) == ("a", "b", "c", "late")
            assert names(cluster.controls["b"]) == ("a", "b", "c", "late")
            assert len(late.available()) == 4

    virtual_time.run(main())


def test_messages_reach_their_handlers() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            cluster = await start(stack, "a", "b")
            heard: list[tuple[str, str]] = []
            for control in cluster.controls.values():
                control.handle(CentreMissedSome, lambda node, _, to=control.name: heard.append((node, to)))
            cluster.controls["a"].tell("b", CentreMissedSome())
            cluster.controls["a"].tell("a", CentreMissedSome())
            assert heard == [], "a node's own messages come with the next turn of the loop"
            await asyncio.sleep(1.0)
            assert heard == [("a", "a"), ("a", "b")]

    virtual_time.run(main())


def test_a_type_has_one_handler() -> None:
    async def main() -> None:
        control = make_control("a")
        for kind in (DrainOrdered, Fenced):
            with pytest.raises(InternalError, match="have a handler already"):
                control.handle(kind, lambda node, message: None)

    virtual_time.run(main())


def test_what_cannot_be_delivered_is_counted() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            cluster = await start(stack, "a", "b")
            a, b = cluster.controls.values()
            a.tell("nobody", CentreMissedSome())
            a.tell("b", CentreMissedSome())
            await asyncio.sleep(1.0)
            assert a.statistics().undeliverable == 1
            assert b.statistics().unhandled == 1

    virtual_time.run(main())


def test_a_handler_that_fails_loses_its_message_only() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            cluster = await start(stack, "a", "b")
            a, b = cluster.controls.values()
            seen: list[str] = []

            def fail(node: str, message: CentreMissedSome) -> None:
                seen.append(node)
                raise ValueError(node)

            b.handle(CentreMissedSome, fail)
            a.tell("b", CentreMissedSome())
            a.tell("b", CentreMissedSome())
            await asyncio.sleep(1.0)
            assert (seen, b.statistics().failed) == (["a", "a"], 2)
            assert names(b) == ("a", "b")

    virtual_time.run(main())


def test_who_sends_nonsense_is_disconnected_and_counted() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            cluster = await start(stack, "a", "b")
            b = cluster.controls["b"]
            cluster.networks["a"].tell("b", b"nonsense")
            await asyncio.sleep(0.01)
            assert b.statistics().malformed == 1
            assert cluster.networks["b"].peers == {}
            await asyncio.sleep(5.0)
            assert names(b) == ("a", "b"), "it came back"

    virtual_time.run(main())


def test_who_is_refused_a_message_does_not_wait_for_its_answer() -> None:
    """To a plan it is the same as a loss: its message has not arrived, and no other one will say so."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            cluster = await start(stack, "a", "b")
            a, _ = cluster.controls.values()
            lost: list[str] = []
            a.when_node_lost(lambda node, error: lost.append(f"{node} {error.code}"))
            a.note_heard("b", encode(Fenced(7)))
            assert lost == ["b node_lost"]

    virtual_time.run(main())


def test_strangers_are_fenced() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            cluster = await start(stack, "a", "b", "c")
            _, b, c = cluster.controls.values()
            heard: list[str] = []
            c.handle(CentreMissedSome, lambda node, _: heard.append(node))
            cluster.hub.cut(cluster.networks["a"], cluster.networks["b"])
            await asyncio.sleep(1.0)
            assert names(c) == ("a", "c"), "the leader lost b, which c still sees"
            b.tell("c", CentreMissedSome())
            await asyncio.sleep(1.0)
            assert heard == []
            assert c.statistics().fenced == 1
            cluster.hub.heal()
            await asyncio.sleep(8.0)
            b.tell("c", CentreMissedSome())
            await asyncio.sleep(0.1)
            assert heard == ["b"]

    virtual_time.run(main())


def test_a_killed_node_is_lost_everywhere_and_the_next_leads() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            cluster = await start(stack, "a", "b", "c")
            lost: list[tuple[str, str, str]] = []

            def note(at: str, node: str, error: PystachioError) -> None:
                lost.append((at, node, error.code))

            for name in ("b", "c"):
                cluster.controls[name].when_node_lost(lambda node, error, at=name: note(at, node, error))
            epoch = cluster.controls["b"].view.epoch
            cluster.networks["a"].kill()
            await asyncio.sleep(0.5)
            assert sorted(lost) == [("b", "a", "node_lost"), ("c", "a", "node_lost")]
            assert cluster.controls["b"].view == cluster.controls["c"].view
            assert names(cluster.controls["c"]) == ("b", "c")
            assert cluster.controls["c"].view.epoch == epoch + 1
            assert cluster.controls["b"].view.leader == "b"

    virtual_time.run(main())


def test_who_leaves_is_out_without_being_missed() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            cluster = await start(stack, "a", "b")
            known = addresses("a", "b", "c")
            leaving = make_control("c", *known)
            async with opened(cluster.hub, leaving, 3):
                await asyncio.sleep(3.0)
                assert len(cluster.controls["b"].available()) == 3
            await asyncio.sleep(0.5)
            assert names(cluster.controls["a"]) == ("a", "b")

    virtual_time.run(main())


def test_a_drained_node_stays_a_member_and_gets_no_work() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            cluster = await start(stack, "a", "b")
            a = cluster.controls["a"]
            a.drain("b")
            await asyncio.sleep(0.5)
            assert names(a) == ("a", "b")
            assert [member.name for member in a.available()] == ["a"]
            a.drain("b", draining=False)
            await asyncio.sleep(0.5)
            assert len(cluster.controls["b"].available()) == 2

    virtual_time.run(main())


def test_standings_show_health_and_the_leader() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            cluster = await start(stack, "a", "b", "c")
            c = cluster.controls["c"]
            cluster.networks["c"].suspected = frozenset({"a"})
            cluster.hub.cut(cluster.networks["b"], cluster.networks["c"])
            shown = {standing.member.name: (standing.health, standing.leads) for standing in c.standings()}
            assert shown == {"a": (Health.SUSPECT, True), "b": (Health.LOST, False), "c": (Health.ALIVE, False)}

    virtual_time.run(main())


def test_a_discovery_that_learns_more_is_followed() -> None:
    """As a back end does that asks a cluster manager: each list takes the place of the one before."""

    class Growing:
        async def addresses(self) -> AsyncIterator[tuple[Address, ...]]:
            yield ()
            await asyncio.sleep(5.0)
            yield addresses("a")

    async def main() -> None:
        async with AsyncExitStack() as stack:
            cluster = await start(stack, "a")
            late = ControlPlane("b", instance="1", discovery=Growing(), clock=virtual_time.clock())
            await stack.enter_async_context(opened(cluster.hub, late, 2))
            await asyncio.sleep(4.0)
            assert names(late) == ("b",)
            await asyncio.sleep(3.0)
            assert names(late) == ("a", "b")

    virtual_time.run(main())


def test_nothing_is_said_while_nothing_changes() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            cluster = await start(stack, "a", "b", "c")
            await asyncio.sleep(10.0)
            told = [control.statistics().told for control in cluster.controls.values()]
            await asyncio.sleep(3600.0)
            assert [control.statistics().told for control in cluster.controls.values()] == told

    virtual_time.run(main())


def test_messages_before_the_start_are_fenced() -> None:
    async def main() -> None:
        control = make_control("a")
        control.note_connected("b")
        control.note_heard("b", encode(CentreMissedSome()))
        assert control.statistics().fenced == 1

    virtual_time.run(main())
