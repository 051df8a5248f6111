"""The central I/O service in a cluster: on the leader's node, and the way to it from every other.

A change of leader, and a view with new members (perhaps of a cluster that had a centre of its own), starts a centre
with an epoch above that of any before; it goes on from the weights of the leases that nodes hold. No lease is waited
for: until it is there, nodes hold the last one.
"""

from __future__ import annotations

from dataclasses import dataclass

from pystachio.io_scheduler.central.events import CentralMessage, NodeMessage
from pystachio.io_scheduler.central.scheduler import CentralStatistics
from pystachio.runtime.actors import Children
from pystachio.runtime.central import CentralService, LocalLink, NodeLeases
from pystachio.runtime.clock import Clock
from pystachio.runtime.membership.views import View
from pystachio.server.central_messages import from_centre, from_node, to_centre, to_node
from pystachio.server.control_plane import ControlPlane
from pystachio.server.messages import (
    CentreJoined,
    CentreMissedSome,
    CentreReported,
    CentreToNode,
    LeaseProlonged,
    LeaseSent,
    NodeToCentre,
)

EPOCHS_PER_VIEW = 1024
"""A centre that crashes is started again with the next epoch, which must not be that of the next leader's."""


@dataclass(frozen=True, slots=True)
class _RemoteLink:
    """The centre's way to another node."""

    control: ControlPlane
    node: str

    def publish(self, message: CentralMessage) -> None:
        self.control.tell(self.node, to_node(message))


class ClusterCentre:
    """`runtime.central.Centre` of a node in a cluster. One for each control plane."""

    def __init__(self, control: ControlPlane, children: Children, clock: Clock) -> None:
        self._control = control
        self._children = children
        self._clock = clock
        self._service: CentralService | None = None
        self._leases: NodeLeases | None = None
        self._view: View | None = None
        control.handle(CentreJoined, self._hear_node)
        control.handle(CentreReported, self._hear_node)
        control.handle(LeaseSent, self._hear_centre)
        control.handle(LeaseProlonged, self._hear_centre)
        control.handle(CentreMissedSome, self._hear_centre)
        control.when_view_changes(self._follow)

    def attach(self, leases: NodeLeases) -> None:
        """The node's own end."""
        self._leases = leases
        if self._control.is_open:
            self._follow(self._control.view)

    def send(self, message: NodeMessage) -> None:
        """To the leader's centre; lost while there is none."""
        if self._service is not None:
            self._service.send(message)
        elif self._view is not None:
            self._control.tell(self._view.leader, to_centre(message))

    def statistics(self) -> CentralStatistics | None:
        """None while another node leads."""
        return None if self._service is None else self._service.statistics()

    def close(self) -> None:
        if self._service is not None:
            self._service.close()
            self._service = None
        self._leases = None

    def _follow(self, view: View) -> None:
        if self._leases is None:
            return
        before, self._view = self._view, view
        names = {member.name for member in view.members}
        known = set() if before is None else {member.name for member in before.members}
        if before is not None and before.leader == view.leader and not names - known and not _restarted(before, view):
            if self._service is not None:
                for name in known - names:
                    self._service.lose(name)
            return
        if self._service is not None:
            self._service.close()
            self._service = None
        if view.leader == self._control.name:
            self._service = self._open(view, self._leases)
        self._leases.centre_changed(self)

    def _open(self, view: View, leases: NodeLeases) -> CentralService:
        service = CentralService(self._children, self._clock, epoch=view.epoch * EPOCHS_PER_VIEW)
        for member in view.members:
            own = member.name == self._control.name
            link = LocalLink(leases.take) if own else _RemoteLink(self._control, member.name)
            service.connect(member.name, link)
        return service

    def _hear_node(self, node: str, message: NodeToCentre) -> None:
        if self._service is not None:
            self._service.send(from_node(node, message))

    def _hear_centre(self, node: str, message: CentreToNode) -> None:
        """Only the leader's: one that was replaced may not know it yet."""
        if self._leases is not None and self._view is not None and node == self._view.leader:
            self._leases.take(from_centre(message))


def _restarted(before: View, view: View) -> bool:
    """Whether a member is another start of itself: the books on the old one are void."""
    return any(
        (known := before.member(member.name)) is not None and not known.is_same_start(member) for member in view.members
    )
