"""Tables that other nodes' plans name, kept with all that scans have found out about them."""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from operator import attrgetter
from weakref import WeakValueDictionary

from pystachio.embedded import CATALOG_PLAN
from pystachio.errors import DataError
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.operators.parquet.footer import file_version, parse_footer, read_footers
from pystachio.operators.plan_codec.codec import TableReference
from pystachio.operators.table import FileVersion, ParquetFile, Table, table_of_files
from pystachio.server.file_looks import FileLooks
from pystachio.server.plan_messages import SameFile

MOST_TABLES = 1024
MOST_FILES = 1 << 17
"""Of all tables together, each time that a table has it."""
MOST_VERSIONS = 4
"""Of one table: plans made a moment ago name what it was before a file came."""


class ForeignTables:
    """On the loop. The tables used last are kept."""

    def __init__(self, transfers: IoSchedulerService, looks: FileLooks) -> None:
        self._transfers = transfers
        self._looks = looks
        self._tables: OrderedDict[TableReference, Table] = OrderedDict()
        self._versions: dict[tuple[str, str], list[TableReference]] = {}
        """Those of each table, by its name and folder, the newest last."""
        self._file_count = 0
        self._files: WeakValueDictionary[FileVersion, ParquetFile] = WeakValueDictionary()
        """Of all tables: a table of which one file is new reads one footer."""

    def __len__(self) -> int:
        return len(self._tables)

    async def open(
        self, references: Sequence[TableReference], footers: Sequence[tuple[SameFile, bytes]]
    ) -> dict[TableReference, Table]:
        """The tables of the plan; `footers` are those of files that are not here.

        Raises NotFound, Unauthorized, and DataError where a file is another one than on the coordinator.
        """
        elsewhere = {FileVersion(file.path, file.size, file.mtime_ns): footer for file, footer in footers}
        opened: dict[TableReference, Table] = {}
        for reference in references:
            table = self._tables.get(reference)
            if table is None:
                table = await self._read(reference, elsewhere)
                self._keep(reference, table)
            else:
                self._tables.move_to_end(reference)
            opened[reference] = table
        return opened

    def moved_bytes(self, plan_id: str) -> int:
        return self._transfers.ledger.plan(plan_id).transferred_bytes

    def _keep(self, reference: TableReference, table: Table) -> None:
        self._drop(reference)  # two plans may have read it at once
        self._tables[reference] = table
        self._file_count += len(reference.versions)
        versions = self._versions.setdefault(_identity(reference), [])
        versions.append(reference)
        if len(versions) > MOST_VERSIONS:
            self._drop(versions[0])
        while len(self._tables) > MOST_TABLES or (self._file_count > MOST_FILES and len(self._tables) > 1):
            self._drop(next(iter(self._tables)))

    def _drop(self, reference: TableReference) -> None:
        if self._tables.pop(reference, None) is None:
            return
        self._file_count -= len(reference.versions)
        versions = self._versions[_identity(reference)]
        versions.remove(reference)
        if not versions:
            del self._versions[_identity(reference)]

    async def _read(self, reference: TableReference, elsewhere: Mapping[FileVersion, bytes]) -> Table:
        known = {version: file for version in reference.versions if (file := self._files.get(version)) is not None}
        named = [version for version in reference.versions if version not in known]
        known.update(await asyncio.to_thread(_parsed, {each: elsewhere[each] for each in named if each in elsewhere}))
        missing = [version for version in named if version not in elsewhere]
        await self._looks.look(_require_same, missing, attrgetter("path"))
        client = self._transfers.client(CATALOG_PLAN, PriorityClass.INTERACTIVE)
        read: list[ParquetFile] = await read_footers(client, missing)
        known.update(zip(missing, read, strict=True))
        table = table_of_files(reference.name, [known[version] for version in reference.versions])
        if table.schema != reference.schema:
            raise DataError(f"a table has another schema on this node: {reference.name}")
        self._files.update(known)
        return table


def _identity(reference: TableReference) -> tuple[str, str]:
    """Clients may give the same name to different tables."""
    return reference.name, os.path.dirname(reference.versions[0].path) if reference.versions else ""


def _parsed(footers: Mapping[FileVersion, bytes]) -> dict[FileVersion, ParquetFile]:
    return {version: parse_footer(version, footer) for version, footer in footers.items()}


def _require_same(versions: Sequence[FileVersion]) -> None:
    for version in versions:
        found = file_version(version.path)
        if found != version:
            raise DataError(
                f"a file is another one than on the coordinator: {version.path}: {found.size:,} bytes, "
                f"not {version.size:,}, or of another time",
                hint="copy files with their modification times (cp -p, rsync -t), or share the storage",
            )
