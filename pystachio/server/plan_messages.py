"""What nodes say to each other about plans: typed, of bounded size, nothing in it can be executed."""

from __future__ import annotations

from msgspec import Struct

from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.runtime.failure_message import Failure
from pystachio.runtime.metrics import OperatorSnapshot
from pystachio.runtime.tracing import WaitReason


class SameFile(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A version of a file (`operators.table.FileVersion`)."""

    path: str
    size: int
    mtime_ns: int


class StartFragment(Struct, frozen=True, forbid_unknown_fields=True, tag="start fragment"):
    """Run part number `here` of a plan on `nodes`, of which number 0 asks; answered with `FragmentEnded`, once.

    `plan` is of `operators.plan_codec`; `reachable` has, by path, the numbers of the nodes that can read a file that
    not all can; `footers` are those of files that this node cannot, to the files' ends. `priority` is that of
    `io_scheduler.core.request.PriorityClass`, `deadline` in seconds from now. `hashing` is how rows find their nodes:
    it must be the same on all. `epoch` is that of the coordinator's view, from which the nodes are.
    """

    plan_id: str
    epoch: int
    nodes: tuple[str, ...]
    here: int
    plan: bytes
    reachable: dict[str, tuple[int, ...]]
    footers: tuple[tuple[SameFile, bytes], ...]
    priority: int
    deadline: float | None
    label: str
    hashing: str


class OperatorCounts(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """`runtime.metrics.OperatorSnapshot`."""

    name: str
    rows_in: int
    rows_out: int
    batches: int
    bytes: int
    busy_seconds: float
    wait_seconds: dict[WaitReason, float]
    peak_memory: int
    counts: dict[str, int]

    @staticmethod
    def of(measured: OperatorSnapshot) -> OperatorCounts:
        waits = {reason: seconds for reason, seconds in measured.wait_seconds.items() if seconds}
        return OperatorCounts(
            measured.name,
            measured.rows_in,
            measured.rows_out,
            measured.batches,
            measured.bytes,
            measured.busy_seconds,
            waits,
            measured.peak_memory,
            dict(measured.counts),
        )

    def snapshot(self) -> OperatorSnapshot:
        return OperatorSnapshot(
            self.name,
            self.rows_in,
            self.rows_out,
            self.batches,
            self.bytes,
            self.busy_seconds,
            self.wait_seconds,
            self.peak_memory,
            self.counts,
        )


class FragmentEnded(Struct, frozen=True, forbid_unknown_fields=True, tag="fragment ended"):
    """Nothing of the plan is left on the node. `moved_bytes` are what its I/O scheduler moved, over all its links.

    `refused_at` is there when the node has not begun its part because the plan's nodes are not those of the cluster as
    it knows it: from the view of that epoch on, or from a later one, the plan may be started anew.
    """

    plan_id: str
    failure: Failure | None = None
    refused_at: int | None = None
    moved_bytes: int = 0
    operators: tuple[OperatorCounts, ...] = ()


class CancelFragment(Struct, frozen=True, forbid_unknown_fields=True, tag="cancel fragment"):
    """The plan has ended for its coordinator. It may come before a `StartFragment` that is long, which then starts
    nothing. Answered with `FragmentEnded`, unless it has been told already."""

    plan_id: str


class FilesAsked(Struct, frozen=True, forbid_unknown_fields=True, tag="files asked"):
    """Answered with `FilesSeen` of the same number."""

    number: int
    files: tuple[SameFile, ...]


class FilesSeen(Struct, frozen=True, forbid_unknown_fields=True, tag="files seen"):
    """`missing` are the positions of those that the node does not have in that version."""

    number: int
    missing: tuple[int, ...]


class PlansAsked(Struct, frozen=True, forbid_unknown_fields=True, tag="plans asked"):
    """Which plans that clients gave to the receiver begin so? Answered with `PlansFound` of the same number."""

    number: int
    beginning: str


class SteerPlan(Struct, frozen=True, forbid_unknown_fields=True, tag="steer plan"):
    """Cancel this plan of the receiver's, or give it another priority; answered with `PlansFound` of the same number,
    which is empty when it is not the receiver's. `priority` is the name of a class; None cancels."""

    number: int
    plan_id: str
    priority: str | None = None
    deadline: float | None = None


class PlansFound(Struct, frozen=True, forbid_unknown_fields=True, tag="plans found"):
    number: int
    plan_ids: tuple[str, ...] = ()


class SourceAsked(Struct, frozen=True, forbid_unknown_fields=True, tag="source asked"):
    """Which files do these paths and patterns stand for on your disks? Answered with `SourceTold`.

    `for_client`: the receiver's `client_folders` hold for them.
    """

    number: int
    paths: tuple[str, ...]
    for_client: bool = False


class SourceTold(Struct, frozen=True, forbid_unknown_fields=True, tag="source told"):
    """`missing`: which of the paths, counted from 0, nothing here is of."""

    number: int
    files: tuple[SameFile, ...]
    missing: tuple[int, ...] = ()
    failure: Failure | None = None


class FootersAsked(Struct, frozen=True, forbid_unknown_fields=True, tag="footers asked"):
    """Answered with `FootersTold`: each file's from its beginning to the file's end, in this order."""

    number: int
    files: tuple[SameFile, ...]


class FootersTold(Struct, frozen=True, forbid_unknown_fields=True, tag="footers told"):
    number: int
    footers: tuple[bytes, ...]
    failure: Failure | None = None


PlanMessage = (
    StartFragment
    | FragmentEnded
    | CancelFragment
    | FilesAsked
    | FilesSeen
    | SourceAsked
    | SourceTold
    | FootersAsked
    | FootersTold
    | PlansAsked
    | SteerPlan
    | PlansFound
)


def class_of(message: PlanMessage) -> PriorityClass:
    """Bulk of a plan is of the plan's class; the rest somebody waits for who is about to begin one."""
    return PriorityClass(message.priority) if isinstance(message, StartFragment) else PriorityClass.INTERACTIVE
