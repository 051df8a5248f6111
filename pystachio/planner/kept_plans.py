"""Plans that outlive the process that made them, and what they are kept under."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Protocol

import pyarrow as pa

import pystachio
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.table import Table

_LONGEST_STATEMENT = 1 << 18
_QUOTES = frozenset('"`')


class KeptPlans(Protocol):
    """Where plans are kept."""

    def find(self, key: str, tables: Mapping[str, Table]) -> tuple[PhysicalPlan, frozenset[str]] | None:
        """The plan, if it was made of these `tables`, by name, as they are now; and the names of those that its
        statement reads."""
        ...

    def offer(self, key: str, plan: PhysicalPlan, tables: Mapping[str, Table]) -> None:
        """A plan that was made, and the tables that its statement reads. Does not wait."""
        ...


def plan_key(
    statement: str | bytes, parameters: Iterable[bytes], join_reordering: bool, tables: Mapping[str, Table]
) -> str | None:
    """What says which plan it is, apart from the content of the tables that it reads: the statement, the names of all
    `tables`, the columns of those that it may name, and who planned. None for a statement that is too long."""
    if len(statement) > _LONGEST_STATEMENT:
        return None
    text = statement if isinstance(statement, str) else statement.hex()
    named = named_tables(statement, tables)
    columns = [[name, [[f.name, str(f.type), f.nullable] for f in tables[name].schema]] for name in sorted(named)]
    what = [
        _planner(),
        type(statement).__name__,
        text,
        [value.hex() for value in parameters],
        join_reordering,
        sorted(tables),
        columns,
    ]
    return json.dumps(what)


def named_tables(statement: str | bytes, tables: Iterable[str]) -> frozenset[str]:
    """Those that the statement may name, and others: of some that it names nothing is left in its plan. In upper or
    lower case; a name with a quotation mark may be written in several ways."""
    if isinstance(statement, bytes):
        return frozenset(name for name in tables if name.encode(errors="surrogateescape") in statement)
    text = statement.casefold()
    return frozenset(name for name in tables if name.casefold() in text or not _QUOTES.isdisjoint(name))


@cache
def _planner() -> str:
    """The release of everything that a plan depends on. A change of a source file makes another one."""
    digest = hashlib.sha256(f"{pystachio.__version__} {pa.__version__}".encode())
    folder = Path(__file__).parent
    for part in (folder, folder.parent / "operators"):
        for path, status in sorted(_sources(part)):
            digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode(errors="surrogateescape"))
    for package in ("datafusion", "substrait"):
        found = importlib.util.find_spec(package)
        origin = None if found is None else found.origin
        digest.update(f"{origin} {os.stat(origin).st_mtime_ns if origin else None}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _sources(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _sources(Path(entry.path))
            elif entry.name.endswith(".py"):
                yield entry.path, entry.stat()
