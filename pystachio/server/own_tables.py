"""The folders of tables that a node gives to all its clients, before it has any, and before it is anybody's member."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pystachio.data_folder import tables_of_folder
from pystachio.embedded import CATALOG_PLAN
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.operators.parquet.footer import read_footers
from pystachio.operators.table import table_of_files
from pystachio.planner.local_files import local_files
from pystachio.server.file_looks import FileLooks


async def require_readable(folders: Sequence[Path], looks: FileLooks, transfers: IoSchedulerService) -> None:
    """Look at what this node has of the tables, as it will when they are registered.

    Raises NotFound (no such folder, no tables), Unauthorized, DataError (no Parquet, schemas that differ), Unsupported,
    ResourceExhausted (the file system does not say).
    """
    client = transfers.client(CATALOG_PLAN, PriorityClass.INTERACTIVE)
    for folder in folders:
        [tables] = await looks.look(_tables, [folder], str)
        for name, path in tables.items():
            [versions] = await looks.look(local_files, [str(path)], str)
            table_of_files(name, await read_footers(client, versions))


def _tables(folders: Sequence[Path]) -> dict[str, Path]:
    [folder] = folders
    return tables_of_folder(folder)
