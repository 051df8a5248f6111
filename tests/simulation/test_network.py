"""Messages, ports and the switch: times that can be worked out by hand, and what happens when somebody gives up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pystachio.errors import Cancelled, PystachioError
from pystachio.io_scheduler.core.events import PlanCancelled, PlanOpened
from pystachio.io_scheduler.core.policy import POLICIES
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.io_scheduler.simulation.hardware import Hardware, Network
from pystachio.io_scheduler.simulation.network import Message
from pystachio.io_scheduler.simulation.simulation import Simulation

SPEC = Network(
    bytes_per_second=1000.0,
    hop_seconds=0.5,
    chunk_bytes=1000,
    port_buffer_bytes=1000,
    control_bytes=0,
    timeout_seconds=1e6,
)
ROOMY = replace(SPEC, port_buffer_bytes=8000)
INTERACTIVE, NORMAL, BATCH = PriorityClass


class Cluster:
    """`arrived` says when each message was there, by its number; an error's code if it was not."""

    def __init__(self, nodes: int, spec: Network = SPEC, policy: str = "pystachio") -> None:
        hardware = Hardware(nodes=nodes, disks=0, network=spec, stage_bytes=None)
        self.simulation = Simulation(hardware, POLICIES[policy], 0, seconds=1e6)
        self.arrived: dict[int, float | str] = {}
        self._sent = 0
        for node in self.simulation.nodes:
            node.tell(PlanOpened("plan", BATCH))
            node.tell(PlanOpened("urgent", INTERACTIVE))

    def send(self, *messages: tuple[int, int, int], plan_id: str = "plan") -> None:
        """Each from, to, and bytes."""
        self.simulation.send([self._message(*message, plan_id) for message in messages])

    def _message(self, sender: int, receiver: int, length: int, plan_id: str) -> Message:
        self._sent += 1
        number = self._sent

        def ended(message: Message, error: PystachioError | None) -> None:
            self.arrived[number] = round(self.simulation.time.now, 9) if error is None else error.code

        return Message(sender, receiver, length, plan_id=plan_id, priority=BATCH, ended=ended)

    def run(self, until: float = 1000.0) -> dict[int, float | str]:
        self.simulation.time.run(until, lambda: None)
        return self.arrived


def test_a_message_is_offered_granted_and_sent() -> None:
    cluster = Cluster(2)
    cluster.send((0, 1, 1000))
    assert cluster.run() == {1: 0.5 + 0.5 + 1.0 + 0.5}
    assert cluster.simulation.messages == 2


def test_messages_about_transfers_take_bandwidth_of_their_sender() -> None:
    cluster = Cluster(2, replace(SPEC, control_bytes=100))
    cluster.send((0, 1, 1000))
    assert cluster.run() == {1: 2.6}


def test_without_grants_a_message_is_sent_at_once() -> None:
    cluster = Cluster(2, policy="fifo")
    cluster.send((0, 1, 1000))
    assert cluster.run() == {1: 1.5}
    assert cluster.simulation.messages == 0


def test_chunks_follow_each_other_without_a_gap() -> None:
    """Two are under way from one sender, so that a round trip of 1 s is hidden behind chunks of 1 s."""
    cluster = Cluster(2)
    cluster.send((0, 1, 10_000))
    (arrived,) = cluster.run().values()
    assert isinstance(arrived, float)
    assert 11.5 <= arrived <= 21.5
    port = next(meter for meter in cluster.simulation.meters if meter.node == 1 and "read" in str(meter.link))
    assert port.busy_seconds == pytest.approx(10.0)


def test_two_senders_share_the_receiver_and_not_their_own_ports() -> None:
    cluster = Cluster(3, ROOMY)
    cluster.send((1, 0, 1000), (2, 0, 1000))
    assert cluster.run() == {1: 2.5, 2: 3.5}


def test_a_full_buffer_holds_back_its_sender() -> None:
    """The buffer is free again when the first chunk has been received, at 2.5 s."""
    cluster = Cluster(3)
    cluster.send((1, 0, 1000), (2, 0, 1000))
    assert cluster.run() == {1: 2.5, 2: 4.0}


def test_what_cannot_leave_holds_back_what_is_meant_for_another_port() -> None:
    """Head-of-line blocking: node 1's message for node 2 is behind one for node 0, whose buffer node 3 has filled."""
    cluster = Cluster(4, policy="fifo")
    cluster.send((3, 0, 1000), (1, 0, 1000), (1, 2, 1000))
    assert cluster.run() == {1: 1.5, 2: 3.0, 3: 4.0}
    roomy = Cluster(4, ROOMY, policy="fifo")
    roomy.send((3, 0, 1000), (1, 0, 1000), (1, 2, 1000))
    assert roomy.run() == {1: 1.5, 2: 2.5, 3: 2.5}


def test_a_sender_serves_the_receiver_with_the_longest_backlog_first() -> None:
    cluster = Cluster(4)
    cluster.send((3, 1, 4000), (2, 1, 4000))
    cluster.send((0, 2, 1000), (0, 1, 1000), (0, 3, 1000))
    arrived = cluster.run()
    assert arrived[3] == min(float(arrived[number]) for number in (3, 4, 5))


def test_an_urgent_message_passes_what_waits() -> None:
    cluster = Cluster(3)
    cluster.send(*[(1, 0, 1000)] * 20)
    cluster.run(until=3.0)
    cluster.send((2, 0, 1000), plan_id="urgent")
    arrived = cluster.run()
    assert isinstance(arrived[21], float)
    assert arrived[21] <= 3.0 + 7.0
    assert float(arrived[20]) > 20.0


def test_a_receiver_that_cancels_takes_its_grants_back() -> None:
    """Node 0 may still send what is on the wire; what waits behind it is withdrawn."""
    cluster = Cluster(2)
    cluster.send((0, 1, 2000))
    cluster.run(until=1.2)
    cluster.simulation.nodes[1].tell(PlanCancelled("plan"))
    assert cluster.run() == {1: "cancelled"}
    assert not cluster.simulation.nodes[0].transfers
    assert not cluster.simulation.nodes[1].transfers
    assert sum(meter.busy_seconds for meter in cluster.simulation.meters if meter.node == 0) == pytest.approx(1.0)


def test_a_sender_that_cancels_withdraws_what_it_was_asked_for() -> None:
    cluster = Cluster(2)
    cluster.send((0, 1, 2000))
    cluster.run(until=0.8)
    cluster.simulation.nodes[0].tell(PlanCancelled("plan"))
    assert cluster.run() == {1: "cancelled"}
    assert not cluster.simulation.nodes[1].transfers


def test_a_silent_node_sees_what_it_was_sent_later() -> None:
    cluster = Cluster(2)
    assert cluster.simulation.network is not None
    cluster.simulation.network.port(1).fall_silent(until=10.0)
    cluster.send((0, 1, 1000))
    assert cluster.run() == {1: 10.0 + 0.5 + 1.0 + 0.5}


def test_the_error_says_that_the_sender_gave_up() -> None:
    cluster = Cluster(2)
    errors: list[PystachioError | None] = []
    message = Message(0, 1, 1000, plan_id="plan", priority=BATCH, ended=lambda _, error: errors.append(error))
    cluster.simulation.send([message])
    cluster.run(until=0.8)
    cluster.simulation.nodes[0].tell(PlanCancelled("plan"))
    cluster.run()
    assert isinstance(errors[0], Cancelled)
