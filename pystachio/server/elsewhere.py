"""Files that other nodes have: what a source stands for on all of them together, and footers of what is not here."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from msgspec.structs import replace

from pystachio.embedded import CATALOG_PLAN
from pystachio.errors import DataError, InvalidRequest, NotFound, PystachioError
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.operators.parquet.footer import parse_footer, read_footers
from pystachio.operators.table import FileVersion, ParquetFile
from pystachio.planner.local_files import FoundFiles, look_for
from pystachio.runtime.failure_message import Failure
from pystachio.server.client_files import files_in
from pystachio.server.file_looks import FileLooks
from pystachio.server.plan_messages import FootersAsked, FootersTold, SameFile, SourceAsked, SourceTold
from pystachio.server.plane import Plane
from pystachio.server.questions import TRAVEL_SECONDS, Answers, Questions, together

Told = TypeVar("Told", SourceTold, FootersTold)

SPREAD_SECONDS = 1.0
"""For so long it is believed what other nodes have of a source, where they have files that this one does not."""
SHARED_SECONDS = 5.0
"""And where they have the same ones: new files are seen here first, then."""
_FOOTERS_AT_ONCE = 32
_TOLD_BYTES = 8 << 20
_KEPT_LISTINGS = 1024
_KEPT_ELSEWHERE = 1 << 17
"""Of so many files it is known which nodes have them, and of all those of the source that was found last."""


class NotUnicode(InvalidRequest):
    """The name of a file is bytes that are no text: nodes could not tell each other of it."""

    def __init__(self, path: str) -> None:
        shown = path.encode(errors="backslashreplace").decode()
        super().__init__(
            f"the name of a file is not UTF-8: {shown}", hint="rename it: nodes of a cluster tell each other the names"
        )


@dataclass(slots=True)
class _Listing:
    """What the other nodes have of a source: by file version the nodes that have it. `here` is what this one had,
    `missing` the paths that none of the others has anything of. `times`: which files some node finds more than once,
    and how often, in a source that names them more than once."""

    at: float
    here: frozenset[FileVersion]
    files: dict[FileVersion, list[str]]
    missing: frozenset[str]
    times: dict[FileVersion, int]


class FilesElsewhere:
    """Answers other nodes, and asks them: `async with` on the node's loop, where anybody may await `find` and
    `read_footers`. Leaving ends the answers that are not given yet.
    """

    def __init__(
        self,
        plane: Plane,
        transfers: IoSchedulerService,
        looks: FileLooks,
        *,
        client_folders: Sequence[Path] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`client_folders` are those whose files clients may name; None: all that this process can read."""
        self._plane = plane
        self._transfers = transfers
        self._looks = looks
        self._client_folders = None if client_folders is None else tuple(map(str, client_folders))
        self._now = now
        self._questions = Questions(plane, SourceTold, FootersTold, asked_for="which files it has")
        self._listings: dict[tuple[tuple[str, ...], bool], _Listing] = {}
        self._having: OrderedDict[FileVersion, list[str]] = OrderedDict()
        """By file that is not here the nodes that have it, those found last at the end."""
        self._forgotten: set[str] = set()
        """The nodes of files for which there was no room."""
        self._answers = Answers()
        plane.handle(SourceAsked, self._list)
        plane.handle(FootersAsked, self._read)
        plane.when_node_lost(lambda node, error: self.forget())
        plane.when_view_changes(lambda view: self.forget())
        plane.when_node_reached(lambda node: self.forget())

    async def __aenter__(self) -> FilesElsewhere:
        await self._answers.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._answers.__aexit__(kind, error, traceback)

    async def find(
        self, paths: Sequence[str], known: Sequence[FileVersion] = (), *, for_client: bool = False
    ) -> tuple[FileVersion, ...]:
        """The files that the paths and patterns stand for on any node, each as often as the source names it, sorted by
        path unless all are here.

        Who knew none asks for a table that is registered: all nodes are asked anew then. Raises NotFound for a path
        that no node has anything of, and where some of the `known` ones were on nodes that are gone and nobody else has
        them, DataError for a path that has two versions, ResourceExhausted when a file system here or there does not
        say what it has, Unauthorized where it is not `for_client` to see, InvalidRequest for a file whose name is not
        UTF-8, and what else `look_for` raises here or there: without what it hides, the table would lack rows.
        """
        found = await self._look(paths, for_client)
        here = tuple(found.files)
        listing = await self._listing(tuple(paths), here, for_client, anew=not known)
        by_path = {version.path: version for version in here}
        for version in listing.files:
            same = by_path.setdefault(version.path, version)
            if same != version:
                raise DataError(
                    f"nodes have different versions of a file: {version.path}: "
                    f"{_difference(same, version)} on {', '.join(listing.files[version])}",
                    hint="copy files with their modification times (cp -p, rsync -t), or share the storage",
                )
        self._require_reached(known, by_path)
        own = frozenset(here)
        for version in own:
            self._having.pop(version, None)
        for path, nowhere in found.missing.items():
            if path in listing.missing:
                raise nowhere
        if by_path.keys() == {version.path for version in here}:
            return here
        for version, nodes in listing.files.items():
            if version not in own:
                self._having[version] = nodes
                self._having.move_to_end(version)
        while len(self._having) > max(_KEPT_ELSEWHERE, len(listing.files)):
            self._forgotten.update(self._having.popitem(last=False)[1])
        times = listing.times | {version: count for version, count in Counter(here).items() if count > 1}
        return tuple(by_path[path] for path in sorted(by_path) for _ in range(times.get(by_path[path], 1)))

    def _require_reached(self, known: Sequence[FileVersion], by_path: Mapping[str, FileVersion]) -> None:
        """Rows do not vanish silently with a node: who leaves may come back with its files."""
        if not self._having:
            return  # this node has had everything, always
        unreached = [node for node in sorted(self._forgotten) if not self._plane.reaches(node)]
        for version in known:
            if version.path in by_path:
                continue
            # Where that is not known any more it may be where others were that are not.
            nodes = self._having.get(version, unreached)
            if nodes and not any(map(self._plane.reaches, nodes)):
                gone = NotFound(
                    f"a file was on a node that is gone: {version.path}: {', '.join(nodes)}",
                    hint="its files come back with the node; register the table again to go on without them",
                    node=nodes[0],
                )
                gone.retryable = True
                raise gone

    async def read_footers(self, versions: Sequence[FileVersion]) -> list[ParquetFile]:
        """The footers of files here or elsewhere, in this order."""
        try:
            return await self._footers(versions)
        except PystachioError:
            self.forget()
            raise

    def forget(self) -> None:
        """A file was not where it should be: whoever looks next asks the other nodes again."""
        self._listings = {}  # another one: what is asked for now is not kept, either

    async def _footers(self, versions: Sequence[FileVersion]) -> list[ParquetFile]:
        client = self._transfers.client(CATALOG_PLAN, PriorityClass.INTERACTIVE)
        here: list[FileVersion] = []
        by_node: dict[str, list[FileVersion]] = {}
        # Settled before anything is waited for: whoever looks meanwhile may find that a file is somewhere else now.
        for version in versions:
            nodes = self._having.get(version)
            (here if nodes is None else by_node.setdefault(self._one_of(nodes), [])).append(version)
        found = dict(zip(here, await read_footers(client, here), strict=True))
        for node, wanted in by_node.items():
            while wanted:
                told = await self._ask(node, partial(_footers_asked, wanted[:_FOOTERS_AT_ONCE]), FootersTold)
                if not 0 < len(told.footers) <= len(wanted):
                    raise DataError("a node told the footers of other files", node=node)
                some, wanted = wanted[: len(told.footers)], wanted[len(told.footers) :]
                found.update(await asyncio.to_thread(_parsed, some, told.footers))
        return [found[version] for version in versions]

    def _one_of(self, nodes: Sequence[str]) -> str:
        return next(filter(self._plane.reaches, nodes), nodes[0])

    async def _look(self, paths: Sequence[str], for_client: bool) -> FoundFiles:
        """What this node has of the source."""
        found = FoundFiles()
        for some in await self._looks.look(partial(self._files, for_client), paths, str):
            found.files += some.files
            found.missing |= some.missing
        return found

    def _files(self, for_client: bool, paths: Sequence[str]) -> FoundFiles:
        """On a thread that may hang."""
        if not for_client or self._client_folders is None:
            found = look_for(paths)
        else:
            found = files_in(self._client_folders, paths)
        for version in found.files:
            _require_unicode(version)
        return found

    async def _listing(
        self, paths: tuple[str, ...], here: tuple[FileVersion, ...], for_client: bool, *, anew: bool
    ) -> _Listing:
        known = self._listings.get((paths, for_client))
        if known is not None and not anew:
            own = frozenset(here)
            own_paths = {version.path for version in here}
            is_shared = known.files.keys() <= own
            changed = any(version.path in own_paths for version in known.files if version not in own)
            # A file that is here no more may be gone from all: nodes often share their disks.
            changed |= not known.here <= own
            if not changed and self._now() - known.at < (SHARED_SECONDS if is_shared else SPREAD_SECONDS):
                return known
        listings, at = self._listings, self._now()
        # Those that drain, too: they get no parts, but what they have belongs to the table.
        members = (member.name for member in self._plane.view.members if member.name != self._plane.name)
        names = [name for name in members if self._plane.reaches(name)]
        answers = await together(
            self._ask(name, lambda number: SourceAsked(number, paths, for_client), SourceTold) for name in names
        )
        told_by = {name: told.files for name, told in zip(names, answers, strict=True)}
        having, times = await asyncio.to_thread(_by_file, told_by)
        missing = set(range(len(paths))).intersection(*(told.missing for told in answers))
        nowhere = frozenset(paths[number] for number in missing)
        listing = listings[paths, for_client] = _Listing(at, frozenset(here), having, nowhere, times)
        if len(listings) > _KEPT_LISTINGS:
            del listings[next(iter(listings))]
        return listing

    async def _ask(self, node: str, question: Callable[[int], SourceAsked | FootersAsked], kind: type[Told]) -> Told:
        """Raises NodeLost when the node is gone or does not answer, and what it failed with."""
        told = await self._questions.ask(node, question, kind, seconds=self._looks.seconds + TRAVEL_SECONDS)
        if told.failure is not None:
            raise replace(told.failure, message=f"{told.failure.message} (on {node})").error()
        return told

    def _list(self, sender: str, message: SourceAsked) -> None:
        """What is here of another node's source; that there is nothing is an answer."""

        async def answer() -> None:
            found = await self._look(message.paths, message.for_client)
            missing = tuple(number for number, path in enumerate(message.paths) if path in found.missing)
            self._plane.tell(sender, SourceTold(message.number, _same(found.files), missing))

        def refuse(error: PystachioError) -> None:
            failure = Failure.of(error, self._plane.name)
            self._plane.tell(sender, SourceTold(message.number, (), failure=failure))

        self._answers.begin(answer, refuse)

    def _read(self, sender: str, message: FootersAsked) -> None:
        async def answer() -> None:
            versions = [FileVersion(file.path, file.size, file.mtime_ns) for file in message.files]
            client = self._transfers.client(CATALOG_PLAN, PriorityClass.INTERACTIVE)
            files = await read_footers(client, versions)
            self._plane.tell(sender, FootersTold(message.number, tuple(_that_fit([file.footer for file in files]))))

        def refuse(error: PystachioError) -> None:
            self._plane.tell(sender, FootersTold(message.number, (), Failure.of(error, self._plane.name)))

        self._answers.begin(answer, refuse)


def _difference(one: FileVersion, other: FileVersion) -> str:
    """How the other version differs, of which the message says where it is."""
    if one.size != other.size:
        return f"{one.size:,} bytes here or there, {other.size:,}"
    seconds = (other.mtime_ns - one.mtime_ns) / 1e9
    return f"{one.size:,} bytes all, but changed {abs(seconds):,.9g} s {'later' if seconds > 0 else 'earlier'}"


def _that_fit(footers: Sequence[bytes]) -> Iterator[bytes]:
    """The first ones, at least one, as far as a message holds them; who asked will ask for the others."""
    told = 0
    for footer in footers:
        if told and told + len(footer) > _TOLD_BYTES:
            return
        told += len(footer)
        yield footer


def _footers_asked(versions: Sequence[FileVersion], number: int) -> FootersAsked:
    return FootersAsked(number, _same(versions))


def _by_file(files: Mapping[str, Sequence[SameFile]]) -> tuple[dict[FileVersion, list[str]], dict[FileVersion, int]]:
    """The nodes that have each file, and how often some node has it, where that is more than once. Nodes may have very
    many: not on the loop."""
    having: dict[FileVersion, list[str]] = {}
    times: dict[FileVersion, int] = {}
    for node, had in files.items():
        for version, count in Counter(FileVersion(file.path, file.size, file.mtime_ns) for file in had).items():
            having.setdefault(version, []).append(node)
            if count > 1:
                times[version] = max(count, times.get(version, 0))
    return having, times


def _parsed(versions: Sequence[FileVersion], footers: Sequence[bytes]) -> dict[FileVersion, ParquetFile]:
    """Footers may be long: not on the loop."""
    return {version: parse_footer(version, footer) for version, footer in zip(versions, footers, strict=True)}


def _same(versions: Sequence[FileVersion]) -> tuple[SameFile, ...]:
    return tuple(SameFile(each.path, each.size, each.mtime_ns) for each in versions)


def _require_unicode(version: FileVersion) -> None:
    try:
        version.path.encode()
    except UnicodeEncodeError:
        raise NotUnicode(version.path) from None
