"""Plans in the folder of the chunk cache: a statement that was planned before, over the same files, is not planned by
the next process.

    <folder>/plans/<digest of what was planned>.plan

A plan counts as long as the tables that its statement reads are of the same file versions. It is a few KB; the least
recently used go when there are too many. Like the columns, plans are written behind everybody's back, checked when they
are read, and missed without harm.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import Final

import msgspec
import xxhash

from pystachio.errors import DataError, PystachioError
from pystachio.io_scheduler.devices.listing import list_files
from pystachio.io_scheduler.os_errors import from_os_error
from pystachio.operators.chunks.cache import ChunkCache
from pystachio.operators.chunks.samples import FetchAll
from pystachio.operators.chunks.store import UNFINISHED
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.plan_codec.codec import TableReference, decode_plan, encode_plan
from pystachio.operators.table import Table
from pystachio.runtime.context import Context

MOST_PLANS: Final = 1024
MOST_BYTES_OF_ALL: Final = 8 << 20
_SHARE: Final = 0.05
"""Of what the chunks may take, beside them."""
_KEPT_SHARE: Final = 0.9
"""Of either, when it was too much."""
_MOST_BYTES: Final = 64 << 10
_TOUCH_SECONDS: Final = 60
_SUFFIX: Final = ".plan"
_CHECKSUM_BYTES: Final = 16


class _Record(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """`digest`: of what was planned. `tables`: the file versions of those that the statement reads, by name."""

    digest: str
    tables: dict[str, str]
    plan: bytes


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_Record)


class ChunkPlans:
    """`planner.kept_plans.KeptPlans`. Safe for several threads; blocking."""

    def __init__(self, cache: ChunkCache, fetch: FetchAll) -> None:
        self._cache = cache
        self._fetch = fetch
        self._folder = f"{cache.store.root}/plans"
        self._sequence = count()

    def find(self, key: str, tables: Mapping[str, Table]) -> tuple[PhysicalPlan, frozenset[str]] | None:
        """What is kept of what `key` says, and the names of the tables that its statement reads; None where there is
        nothing, or `tables` have changed since."""
        digest, path = _digest(key), self._path(key)
        try:
            status = os.stat(path)
        except OSError:
            return None
        if status.st_size > _MOST_BYTES + _CHECKSUM_BYTES:
            return None
        if not self._cache.is_own():
            return None
        try:
            (content,) = self._fetch([(path, status.st_size)], self._cache.store.root)()
        except PystachioError:  # the whole folder is gone
            return None
        record = None if content is None else _read(content.view)
        if record is None or record.digest != digest:
            return None
        found = {name: tables[name] for name in record.tables if name in tables}
        if {name: self._versions(table) for name, table in found.items()} != record.tables:
            return None
        try:
            plan = decode_plan(record.plan, {TableReference.of(table): table for table in found.values()})
        except DataError:  # of another release
            return None
        now = time.time()
        if now - status.st_mtime > _TOUCH_SECONDS:
            with suppress(OSError):
                os.utime(path, (now, now))
        return plan, frozenset(record.tables)

    def offer(self, key: str, plan: PhysicalPlan, tables: Mapping[str, Table]) -> None:
        """The plan of what `key` says, which reads `tables`. Does not wait."""

        async def keep(ctx: Context) -> None:
            content = await ctx.stream.run(self._encoded, _digest(key), plan, tables)
            if content is None:
                return
            temporary = f"{self._folder}/{os.getpid()}-{next(self._sequence)}-{time.time_ns()}{UNFINISHED}"
            try:
                await ctx.stream.run(self._make_folder)
                await ctx.transfers.write(temporary, 0, content, spill=True)
                await ctx.stream.run(self._publish, temporary, self._path(key))
            except BaseException:
                with suppress(OSError):  # perhaps it was never begun
                    os.unlink(temporary)
                raise

        self._cache.do_later(keep)

    def _path(self, key: str) -> str:
        return f"{self._folder}/{_digest(key)}{_SUFFIX}"

    def _versions(self, table: Table) -> str:
        versions = "".join(file.digest for file in table.files)
        return hashlib.sha256(versions.encode()).hexdigest()

    def _encoded(self, digest: str, plan: PhysicalPlan, tables: Mapping[str, Table]) -> memoryview | None:
        """None for a plan that has no place there."""
        try:
            encoded = encode_plan(plan)
        except PystachioError:
            return None
        versions = {name: self._versions(table) for name, table in tables.items()}
        body = _ENCODER.encode(_Record(digest, versions, encoded))
        if len(body) > _MOST_BYTES:
            return None
        return memoryview(bytearray(xxhash.xxh3_128_digest(body) + body))

    def _make_folder(self) -> None:
        try:
            self._cache.store.prepare_folder(self._folder)
        except OSError as error:
            raise from_os_error(error, self._folder, "written") from error

    def _publish(self, temporary: str, path: str) -> None:
        try:
            os.rename(temporary, path)
            plans = [file for file in list_files(self._folder) if file.name.endswith(_SUFFIX)]
        except OSError as error:
            raise from_os_error(error, path, "written") from error
        number, nbytes = len(plans), sum(plan.nbytes for plan in plans)
        most_bytes = min(MOST_BYTES_OF_ALL, int(_SHARE * self._cache.store.most_bytes))
        if number <= MOST_PLANS and nbytes <= most_bytes:
            return
        for old in sorted(plans, key=lambda plan: plan.changed_ns):
            if number <= _KEPT_SHARE * MOST_PLANS and nbytes <= _KEPT_SHARE * most_bytes:
                break
            with suppress(OSError):
                os.unlink(f"{self._folder}/{old.name}")
            number, nbytes = number - 1, nbytes - old.nbytes


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


def _read(content: memoryview) -> _Record | None:
    checksum, body = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    if xxhash.xxh3_128_digest(body) != checksum:
        return None
    try:
        return _DECODER.decode(body)
    except msgspec.MsgspecError:  # of another release
        return None
