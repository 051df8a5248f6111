"""Files on other nodes: which there are, and their footers, whatever changes meanwhile."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pystachio.errors import DataError, InvalidRequest, NotFound, PystachioError
from pystachio.io_scheduler.client import TransferClient
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.operators.parquet.footer import file_version, parse_footer
from pystachio.operators.table import FileVersion, ParquetFile
from pystachio.planner.local_files import FoundFiles
from pystachio.runtime.failure_message import Failure
from pystachio.server import elsewhere
from pystachio.server.elsewhere import FilesElsewhere
from pystachio.server.file_looks import FileLooks
from pystachio.server.messages import decode, encode
from pystachio.server.plan_messages import FootersTold, SameFile, SourceAsked, SourceTold
from tests.server.plain_plane import PlainPlane


def versions(kind: str, count: int) -> tuple[FileVersion, ...]:
    return tuple(FileVersion(f"/data/{kind}{number}.parquet", 1000, 1) for number in range(count))


def same(files: Sequence[FileVersion]) -> tuple[SameFile, ...]:
    return tuple(SameFile(each.path, each.size, each.mtime_ns) for each in files)


class SomeFiles:
    """`FileLooks` that find what they are told to."""

    seconds = 5.0

    def __init__(self, *here: FileVersion) -> None:
        self.here = here

    async def look(self, work: object, things: Sequence[str], path_of: object) -> list[FoundFiles]:
        missing = {} if self.here else {path: NotFound(f"nothing here: {path}") for path in things}
        return [FoundFiles(list(self.here), missing)]


class AnsweringPlane(PlainPlane):
    """Other nodes answer at once, with what the function makes of a question."""

    def __init__(self, answer: Callable[[str, Any], Any], *others: str) -> None:
        super().__init__("a", *others)
        self._answer = answer

    async def deliver(self, node: str, message: Any) -> None:
        await super().deliver(node, message)
        self.hear(node, self._answer(node, message))


def written(folder: Path, *names: str) -> list[FileVersion]:
    for name in names:
        pq.write_table(pa.table({name: [1]}), folder / f"{name}.parquet")
    return [file_version(str(folder / f"{name}.parquet")) for name in names]


def parsed(wanted: Sequence[FileVersion]) -> list[ParquetFile]:
    return [parse_footer(each, Path(each.path).read_bytes()[-footer_length(each) :]) for each in wanted]


def footer_length(version: FileVersion) -> int:
    """With its length and the magic."""
    return int.from_bytes(Path(version.path).read_bytes()[-8:-4], "little") + 8


@asynccontextmanager
async def opened(plane: PlainPlane, looks: SomeFiles | FileLooks) -> AsyncIterator[FilesElsewhere]:
    async with FilesElsewhere(plane, IoSchedulerService(), cast(FileLooks, looks)) as files:
        yield files


async def test_many_files_here_and_there_are_compared_in_time() -> None:
    here, there = versions("here", 5000), versions("there", 5000)

    def answer(node: str, asked: SourceAsked) -> SourceTold:
        return SourceTold(asked.number, same(there))

    plane = AnsweringPlane(answer, "b")
    async with opened(plane, SomeFiles(*here)) as files:
        began = time.process_time()
        first = await files.find(["/data"])
        again = await files.find(["/data"], first)
        assert time.process_time() - began < 1.0
    assert first == again == tuple(sorted(here + there))
    assert len(plane.told) == 1


async def test_files_may_appear_here_while_their_footers_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (version,) = written(tmp_path, "copied")
    (other,) = written(tmp_path, "here")
    footer = parsed([version])[0].footer

    def answer(node: str, asked: Any) -> Any:
        if isinstance(asked, SourceAsked):
            return SourceTold(asked.number, same([version]))
        return FootersTold(asked.number, (footer,))

    async def read(client: TransferClient, wanted: Sequence[FileVersion]) -> list[ParquetFile]:
        looks.here = (other, version)
        await files.find(["/data"])
        return parsed(wanted)

    looks = SomeFiles(other)
    async with opened(AnsweringPlane(answer, "b"), looks) as files:
        await files.find(["/data"])
        monkeypatch.setattr(elsewhere, "read_footers", read)
        found = await files.read_footers([other, version])
    assert [each.version for each in found] == [other, version]


async def test_where_files_are_is_remembered_of_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(node: str, asked: SourceAsked) -> SourceTold:
        return SourceTold(asked.number, same(versions(asked.paths[0], 4)))

    monkeypatch.setattr(elsewhere, "_KEPT_ELSEWHERE", 10)
    async with opened(AnsweringPlane(answer, "b"), SomeFiles()) as files:
        for source in range(20):
            assert len(await files.find([str(source)])) == 4
            assert len(files._having) <= 10
        monkeypatch.setattr(elsewhere, "_KEPT_ELSEWHERE", 3)
        await files.find(["one"])
        assert set(files._having) == set(versions("one", 4))  # all of a source, however many


async def test_files_of_which_it_was_forgotten_where_they_are_do_not_vanish(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"b": versions("b", 4), "c": versions("c", 20)}

    def answer(node: str, asked: SourceAsked) -> SourceTold:
        return SourceTold(asked.number, same(there[node] if asked.paths == (f"/{node}",) else ()))

    monkeypatch.setattr(elsewhere, "_KEPT_ELSEWHERE", 4)
    here = versions("here", 1)
    plane = AnsweringPlane(answer, "b", "c")
    async with opened(plane, SomeFiles(*here)) as files:
        known = await files.find(["/b"])
        await files.find(["/c"])
        plane.lose("b")
        with pytest.raises(NotFound, match="on a node that is gone: /data/b"):
            await files.find(["/b"], known)
        plane.come_back("b")
        assert await files.find(["/b"], known) == known


async def test_each_path_of_a_source_is_looked_for_by_itself(tmp_path: Path) -> None:
    """What a node has of the one is there, though it has nothing of the others."""
    for year in ("2024", "2025"):
        (tmp_path / year).mkdir()
    (mine,) = written(tmp_path / "2025", "mine")
    other = FileVersion(str(tmp_path / "2024" / "other.parquet"), 1000, 1)
    paths, looks = (f"{tmp_path}/2024/*.parquet", f"{tmp_path}/2025/*.parquet"), FileLooks(seconds=5)
    missing: tuple[int, ...] = (1,)
    plane = AnsweringPlane(lambda node, asked: SourceTold(asked.number, same([other]), missing), "b")
    async with opened(plane, looks) as files:
        assert await files.find(paths) == (other, mine)
        plane.hear("b", SourceAsked(7, paths))
        await plane.until_told(2)
        assert plane.told[-1] == ("b", SourceTold(7, same([mine]), (0,)))
        missing = (0, 1)
        with pytest.raises(NotFound, match="2024"):
            await files.find(paths)
    looks.close()


async def test_files_that_a_source_names_twice_are_there_twice(tmp_path: Path) -> None:
    """Wherever they are; as many as are only elsewhere once hid those."""
    here = written(tmp_path, "one", "two")
    there, both = versions("there", 2), here[0]
    paths, looks = (str(tmp_path), f"{tmp_path}/*.parquet"), FileLooks(seconds=5)
    told = (*there, *there, both, both)
    plane = AnsweringPlane(lambda node, asked: SourceTold(asked.number, same(told)), "b")
    async with opened(plane, looks) as files:
        assert await files.find(paths) == tuple(sorted([*here, *here, *there, *there]))
        told = (both, both)
        assert sorted(await files.find(paths)) == sorted([*here, *here])
    looks.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
async def test_who_cannot_say_what_it_has_does_not_say_that_it_has_nothing(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> object:
        raise OSError(number, os.strerror(number))

    there = versions("there", 1)
    looks, plane = FileLooks(seconds=5), PlainPlane("a", "b")
    monkeypatch.setattr(os, "scandir", fail)
    async with opened(plane, looks) as files:
        with pytest.raises(PystachioError, match=str(tmp_path)):
            await files.find([str(tmp_path)])
        plane.hear("b", SourceAsked(1, (str(tmp_path),)))
        await plane.until_told(1)
    ((_, told),) = plane.told
    assert told.failure is not None
    failed = told.failure
    plane = AnsweringPlane(lambda node, asked: SourceTold(asked.number, (), failure=failed), "b", "c")
    async with opened(plane, SomeFiles(*there)) as files:
        with pytest.raises(PystachioError, match=str(tmp_path)):
            await files.find([str(tmp_path)])
    looks.close()


NO_TEXT = os.fsdecode(b"donn\xe9es.parquet")


@pytest.mark.parametrize("source", ["{}", "{}/*", f"{{}}/{NO_TEXT}"], ids=["folder", "pattern", "file"])
async def test_a_file_whose_name_is_no_text_is_refused_by_name(source: str, tmp_path: Path) -> None:
    written(tmp_path, "good")
    (tmp_path / "good.parquet").rename(tmp_path / NO_TEXT)
    written(tmp_path, "good")
    paths, looks = [source.format(tmp_path)], FileLooks(seconds=5)
    plane = PlainPlane("b", "a")
    async with opened(plane, looks) as files:
        with pytest.raises(InvalidRequest, match=r"not UTF-8: .*donn\\udce9es.parquet"):
            await files.find(paths)
        assert plane.told == []
        plane.hear("a", SourceAsked(1, tuple(paths)))
        await plane.until_told(1)
    (told,) = plane.told
    assert isinstance(decode(encode(told[1])), SourceTold)
    assert told[1].failure is not None
    with pytest.raises(InvalidRequest, match=r"not UTF-8: .*donn\\udce9es.parquet"):
        raise told[1].failure.error()
    looks.close()


async def test_who_asks_is_told_of_what_nobody_foresaw() -> None:
    class Broken(SomeFiles):
        async def look(self, work: object, things: Sequence[str], path_of: object) -> list[FoundFiles]:
            raise ValueError("a defect")

    plane = PlainPlane("b", "a")
    async with opened(plane, Broken()):
        plane.hear("a", SourceAsked(1, ("/data",)))
        await plane.until_told(1)
    (told,) = plane.told
    assert told[1].failure is not None
    assert (told[1].failure.code, told[1].files) == ("internal_error", ())
    assert "a defect" in told[1].failure.message


@pytest.mark.parametrize(
    ("there", "difference"),
    [
        (FileVersion("/data/f", 900, 5_000_000_000), "1,000 bytes here or there, 900 on b"),
        (FileVersion("/data/f", 1000, 7_500_000_000), "1,000 bytes all, but changed 2.5 s later on b"),
        (FileVersion("/data/f", 1000, 4_999_999_999), "1,000 bytes all, but changed 1e-09 s earlier on b"),
    ],
)
async def test_it_is_said_how_versions_of_a_file_differ(there: FileVersion, difference: str) -> None:
    plane = AnsweringPlane(lambda node, message: SourceTold(message.number, same([there])), "b")
    async with opened(plane, SomeFiles(FileVersion("/data/f", 1000, 5_000_000_000))) as files:
        with pytest.raises(DataError, match=difference):
            await files.find(["/data/f"])


async def test_it_is_said_on_which_node_a_file_is_none() -> None:
    garbage = FileVersion("/data/f", 1000, 1)
    refusal = Failure.of(DataError("not a Parquet file: /data/f"), "b")

    def answer(node: str, message: Any) -> Any:
        if isinstance(message, SourceAsked):
            return SourceTold(message.number, same([garbage]))
        return FootersTold(message.number, (), refusal)

    async with opened(AnsweringPlane(answer, "b"), SomeFiles()) as files:
        with pytest.raises(DataError, match=r"not a Parquet file: /data/f \(on b\)") as caught:
            await files.read_footers(await files.find(["/data/f"]))
        assert caught.value.node == "b"


async def test_what_other_nodes_tell_is_taken_apart_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    class Watched(tuple[SameFile, ...]):
        def __iter__(self) -> Iterator[SameFile]:
            threads.append(threading.get_ident())
            return super().__iter__()

    def parse(version: FileVersion, footer: bytes) -> ParquetFile:
        threads.append(threading.get_ident())
        return parse_footer(version, footer)

    there = written(tmp_path, "one", "two")
    footers = tuple(file.footer for file in parsed(there))

    def answer(node: str, asked: Any) -> Any:
        if isinstance(asked, SourceAsked):
            return SourceTold(asked.number, Watched(same(there)))
        return FootersTold(asked.number, footers)

    monkeypatch.setattr(elsewhere, "parse_footer", parse)
    async with opened(AnsweringPlane(answer, "b"), SomeFiles()) as files:
        found = await files.find([str(tmp_path)])
        assert [file.version for file in await files.read_footers(found)] == there
    assert len(threads) == 3
    assert threading.get_ident() not in threads


async def test_files_do_not_vanish_with_the_only_node_that_has_them() -> None:
    """Until somebody names the source anew, or the node is back and has them no more."""
    here, there = versions("here", 2), list(versions("there", 2))

    def answer(node: str, asked: SourceAsked) -> SourceTold:
        return SourceTold(asked.number, same(there if node == "b" else ()))

    plane = AnsweringPlane(answer, "b", "c")
    async with opened(plane, SomeFiles(*here)) as files:
        known = await files.find(["/data"])
        assert set(known) == {*here, *there}
        plane.lose("b")
        for _ in range(2):
            with pytest.raises(NotFound, match=r"on a node that is gone: /data/there0\.parquet: b") as raised:
                await files.find(["/data"], known)
            assert raised.value.retryable
        assert await files.find(["/data"]) == here
        del there[1:]
        plane.come_back("b")
        assert set(await files.find(["/data"], known)) == {*here, *there}


async def test_a_table_that_is_registered_has_what_other_nodes_have_now() -> None:
    """One that is there already is believed to be what it was for a while."""
    here, there = versions("shared", 2), [*versions("shared", 2)]
    plane = AnsweringPlane(lambda node, asked: SourceTold(asked.number, same(there)), "b")
    async with opened(plane, SomeFiles(*here)) as files:
        known = await files.find(["/data"])
        there += versions("late", 1)
        assert await files.find(["/data"], known) == known
        assert set(await files.find(["/data"])) == {*known, *versions("late", 1)}
        assert set(await files.find(["/data"], known)) == {*known, *versions("late", 1)}


async def test_a_node_that_drains_is_asked_for_its_files() -> None:
    there = versions("there", 1)
    plane = AnsweringPlane(lambda node, asked: SourceTold(asked.number, same(there)), "b")
    plane.available = lambda: tuple(  # type: ignore[method-assign]
        member for member in plane.view.members if member.name == "a"
    )
    async with opened(plane, SomeFiles()) as files:
        assert await files.find(["/data"]) == there


async def test_what_a_node_told_that_is_lost_since_is_not_believed() -> None:
    there = {"b": versions("b", 2), "c": versions("c", 2)}
    plane = PlainPlane("a", "b", "c")
    async with opened(plane, SomeFiles()) as files:
        finding = asyncio.create_task(files.find(["/data"]))
        await plane.until_told(2)
        numbers = {node: asked.number for node, asked in plane.told}
        plane.hear("b", SourceTold(numbers["b"], same(there["b"])))
        await asyncio.sleep(0.01)
        plane.lose("b")
        plane.hear("c", SourceTold(numbers["c"], same(there["c"])))
        await finding
        again = asyncio.create_task(files.find(["/data"]))
        await plane.until_told(3)
        plane.hear("c", SourceTold(plane.told[2][1].number, same(there["c"])))
        assert await again == there["c"]
