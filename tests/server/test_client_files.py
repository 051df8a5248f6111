"""What clients are told of files: those below the folders, and of all others the same whether they are there or not."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pystachio.errors import PystachioError, ResourceExhausted
from pystachio.planner import file_patterns
from pystachio.server import client_files, file_looks
from pystachio.server.client_files import NotAllowed, files_in
from pystachio.server.file_looks import FileLooks
from tests.clock_by_hand import by_hand, pass_time, until

LINKS = ("out", "sub/out", "gone", "link.parquet")


@pytest.fixture
def allowed(tmp_path: Path) -> Path:
    """A folder with two files and links out of it: to folders, to a file, and to what is not there."""
    (tmp_path / "secret" / "year=2024").mkdir(parents=True)
    (tmp_path / "secret" / "pay.parquet").write_bytes(b"secret")
    allowed = tmp_path / "allowed"
    (allowed / "sub").mkdir(parents=True)
    (allowed / "a.parquet").write_bytes(b"a")
    (allowed / "sub" / "b.parquet").write_bytes(b"b")
    (allowed / "in").symlink_to(allowed / "sub")
    for link, target in zip(LINKS, ("secret", "secret", "nowhere", "secret/pay.parquet"), strict=True):
        (allowed / link).symlink_to(tmp_path / target)
    return allowed


def found(allowed: Path, source: str) -> list[str]:
    looked = files_in([str(allowed)], [f"{allowed}/{source}"])
    for nowhere in looked.missing.values():
        raise nowhere
    return [str(Path(version.path).relative_to(allowed)) for version in looked.files]


@pytest.mark.parametrize(
    ("source", "files"),
    [
        ("", ["a.parquet"]),
        ("*.parquet", ["a.parquet"]),
        ("in", ["in/b.parquet"]),
        ("*/*.parquet", ["in/b.parquet", "sub/b.parquet"]),
        ("s*", ["sub/b.parquet"]),
    ],
)
def test_what_lies_elsewhere_is_passed_over(allowed: Path, source: str, files: list[str]) -> None:
    assert found(allowed, source) == files


@pytest.mark.parametrize(
    ("there", "not_there"),
    [
        ("*/pay.parquet", "*/nay.parquet"),
        ("**/pay.parquet", "**/nay.parquet"),
        ("o[u]t", "o[u]n"),
        ("[o]ut/year=2024", "[o]ut/year=2025"),
        ("sub/*/pay.parquet", "sub/*/nay.parquet"),
        ("su*/../../secret/pay.parquet", "su*/../../secret/nay.parquet"),
        ("out", "gone"),
        ("out/pay.parquet", "out/nay.parquet"),
        ("out/pay.parquet", "gone/pay.parquet"),
        ("../secret/pay.parquet", "../secret/nay.parquet"),
    ],
)
def test_nothing_is_told_of_what_lies_elsewhere(allowed: Path, there: str, not_there: str) -> None:
    errors = []
    for source in (there, not_there):
        with pytest.raises(PystachioError) as raised:
            found(allowed, source)
        errors.append((type(raised.value), str(raised.value).replace(source, "SOURCE")))
    assert errors[0] == errors[1]


def test_hints_are_of_files_below_the_folders(allowed: Path, tmp_path: Path) -> None:
    (nowhere,) = files_in([str(tmp_path / "secrets")], [str(tmp_path / "secrets")]).missing.values()
    assert nowhere.hint is None
    with pytest.raises(PystachioError) as raised:
        found(allowed, "aa.parquet")
    assert raised.value.hint == f"did you mean {allowed}/a.parquet?"


def test_paths_that_lead_out_are_refused(allowed: Path) -> None:
    for source in ("link.parquet", "out", "gone", "gone/*.parquet", "..", "../*.parquet"):
        with pytest.raises(NotAllowed):
            found(allowed, source)


class Mounts:
    """Two folders with a file each; if it `hangs`, looks below `dead` wait until `answers` is set."""

    def __init__(self, folder: Path) -> None:
        self.alive = folder / "alive"
        self.dead = folder / "dead"
        self.answers = threading.Event()
        self.hangs = False
        self.stuck = 0
        for mount in (self.alive, self.dead):
            (mount / "shared").mkdir(parents=True)
            (mount / "shared" / "a.parquet").write_bytes(b"a")

    def pass_by(self, path: str) -> None:
        if self.hangs and path.startswith(f"{self.dead}/"):
            self.stuck += 1
            self.answers.wait(30)

    def folders(self, *others: Path) -> list[str]:
        return [str(self.dead / "shared"), str(self.alive / "shared"), *map(str, others)]


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mounts]:
    mounts = Mounts(tmp_path)
    lstat = os.lstat

    def looked_at(path: Any, **options: Any) -> os.stat_result:
        mounts.pass_by(os.fspath(path))
        return lstat(path, **options)

    monkeypatch.setattr(os, "lstat", looked_at)
    monkeypatch.setattr(file_looks, "mount_points", lambda: frozenset({"/", str(mounts.alive), str(mounts.dead)}))
    yield mounts
    mounts.answers.set()


class Waits:
    """Threads that look at files and wait for each other know no clock but the running loop's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.underway = 0
        self.asked: list[float] = []
        """For how many seconds."""
        self._clock = asyncio.get_running_loop()
        monkeypatch.setattr(file_patterns, "time", SimpleNamespace(monotonic=self._clock.time))
        threads = SimpleNamespace(Thread=threading.Thread, Event=lambda: _Awaited(self))
        monkeypatch.setattr(client_files, "threading", threads)

    def wait(self, seconds: float, is_set: Callable[[float], bool]) -> bool:
        end = self._clock.time() + seconds
        self.asked.append(seconds)
        self.underway += 1
        while not (done := is_set(0.001)) and self._clock.time() < end:
            pass
        self.underway -= 1
        return done


class _Awaited(threading.Event):
    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        return self._waits.wait(timeout, super().wait)


async def paths_found(looks: FileLooks, folders: Sequence[str], path: Path) -> list[str]:
    [found] = await looks.look(partial(files_in, folders), [str(path)], str)
    return [version.path for version in found.files]


@by_hand
async def test_a_folder_that_hangs_costs_the_others_nothing(mounts: Mounts, monkeypatch: pytest.MonkeyPatch) -> None:
    """But a share of the time, once, for those who ask for what lies in none of them."""
    waits, loop = Waits(monkeypatch), asyncio.get_running_loop()
    mounts.hangs = True
    looks = FileLooks(seconds=2)
    file = mounts.alive / "shared" / "a.parquet"
    for number in range(2 * file_looks.MOST_AT_ONCE):
        assert await paths_found(looks, mounts.folders(), file) == [str(file)]
        refused = asyncio.create_task(paths_found(looks, mounts.folders(), mounts.alive / "a.parquet"))
        if number == 0:
            await until(lambda: waits.underway and mounts.stuck == 1)
            await pass_time(0.375)
        with pytest.raises(NotAllowed):
            await refused
        assert loop.time() == 0.375
    assert waits.asked[0] == 0.375, "a quarter of three quarters of the time"
    stuck = asyncio.create_task(paths_found(looks, mounts.folders(), mounts.dead / "shared" / "a.parquet"))
    await until(lambda: mounts.stuck == 2)
    await pass_time(2)
    assert stuck.done()
    with pytest.raises(ResourceExhausted):
        await stuck
    assert looks._hanging[str(mounts.dead)] == looks._hanging.total() == 1
    await until(lambda: sum(thread.name == "pystachio-folder" for thread in threading.enumerate()) == 1)
    assert mounts.stuck == 2
    mounts.answers.set()
    looks.close()


@by_hand
async def test_where_a_link_led_is_known_while_it_hangs(mounts: Mounts, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, loop = Waits(monkeypatch), asyncio.get_running_loop()
    link = mounts.dead / "link"
    link.symlink_to(mounts.alive)
    looks = FileLooks(seconds=2)
    file = mounts.alive / "shared" / "a.parquet"
    with pytest.raises(NotAllowed):
        await paths_found(looks, [str(mounts.dead / "shared")], file)
    assert await paths_found(looks, [str(link)], file) == [str(file)]
    assert loop.time() == 0
    mounts.hangs = True
    known = asyncio.create_task(paths_found(looks, [str(link)], file))
    await until(lambda: waits.underway and mounts.stuck == 1)
    await pass_time(0.375)
    assert await known == [str(file)]
    assert loop.time() == 0.375
    assert set(waits.asked) == {0.375}
    mounts.answers.set()
    looks.close()
