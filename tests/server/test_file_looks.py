"""Looks at file systems that may hang: what answers is answered, and nobody waits longer than allowed."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from pystachio.errors import NotFound, ResourceExhausted
from pystachio.io_scheduler.devices.disks import System, mount_points
from pystachio.planner import file_patterns
from pystachio.planner.file_patterns import require_time
from pystachio.server import file_looks
from pystachio.server.file_looks import FileLooks, Places
from tests.clock_by_hand import by_hand, pass_time, stand_still, until


class FileSystems:
    """Those below `/dead` hang until `answers` is set."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.seen: list[str] = []

    def look(self, paths: Sequence[str]) -> list[str]:
        self.seen.extend(paths)
        if any(path.startswith("/dead") for path in paths):
            self.answers.wait(30)
        return [path.upper() for path in paths]

    async def until_seen(self, dead: int) -> None:
        """So many paths below `/dead`: their looks hang."""
        await until(lambda: self.dead_seen() == dead)

    def dead_seen(self) -> int:
        return sum(path.startswith("/dead") for path in self.seen)


@pytest.fixture
def systems(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileSystems]:
    monkeypatch.setattr(file_looks, "mount_points", lambda: frozenset({"/", "/dead", "/alive"}))
    systems = FileSystems()
    yield systems
    systems.answers.set()


@asynccontextmanager
async def looking(seconds: float) -> AsyncIterator[FileLooks]:
    looks = FileLooks(seconds=seconds)
    yield looks
    looks.close()


async def refused(looks: FileLooks, systems: FileSystems, *paths: str) -> float:
    """Seconds until it was."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(ResourceExhausted) as raised:
        await looks.look(systems.look, paths, str)
    assert raised.value.setting == "cluster_file_seconds"
    return loop.time() - began


@by_hand
async def test_what_was_seen_comes_back(systems: FileSystems) -> None:
    async with looking(5) as looks:
        names = [f"/alive/{number}" for number in range(100)]
        seen = await asyncio.gather(*(looks.look(systems.look, [name], str) for name in names))
        assert seen == [[[name.upper()]] for name in names]
        assert looks._threads <= file_looks.MOST_AT_ONCE


@by_hand
async def test_errors_are_those_of_the_look(systems: FileSystems) -> None:
    def look(paths: Sequence[str]) -> None:
        raise NotFound(f"not there: {paths}")

    async with looking(5) as looks:
        for paths in (["/alive/a"], ["/alive/a", "/a"]):
            with pytest.raises(NotFound, match="not there"):
                await looks.look(look, paths, str)


@by_hand
async def test_things_are_looked_at_by_mount_in_their_order(systems: FileSystems) -> None:
    async with looking(5) as looks:
        paths = ["/b", "/a", "/alive/x", "/alive", "/aliveness"]
        assert await looks.look(systems.look, paths, str) == [["/B", "/A"], ["/ALIVE/X", "/ALIVE"], ["/ALIVENESS"]]
        assert await looks.look(systems.look, [], str) == []


@by_hand
async def test_what_hangs_is_refused_at_once_until_it_is_back(systems: FileSystems) -> None:
    async with looking(0.2) as looks:
        first = asyncio.create_task(refused(looks, systems, "/dead/a"))
        await systems.until_seen(1)
        await pass_time(0.2)
        assert await first == 0.2
        for _ in range(200):
            assert await refused(looks, systems, "/dead/a") == 0
        assert systems.seen == ["/dead/a"]
        assert looks._threads == 1
        systems.answers.set()
        await until(lambda: not looks._hanging.total())
        assert await looks.look(systems.look, ["/dead/a"], str) == [["/DEAD/A"]]


@pytest.mark.parametrize("seconds", [5, 1.3])
@by_hand
async def test_what_stood_still_with_the_process_has_its_time_again(systems: FileSystems, seconds: float) -> None:
    """Also when that was hardly longer than the rest of its time."""
    async with looking(2) as looks:
        stopped = asyncio.create_task(looks.look(systems.look, ["/dead/a"], str))
        hanging = asyncio.create_task(refused(looks, systems, "/dead/b"))
        await systems.until_seen(2)
        await pass_time(1)
        stand_still(seconds)
        await pass_time(1.9)
        assert not stopped.done()
        assert not hanging.done()
        assert not looks._hanging.total()
        await pass_time(0.1)
        assert await hanging == pytest.approx(1 + seconds + 2), "two seconds from when it went on"
        with pytest.raises(ResourceExhausted):
            await stopped
        systems.answers.set()
        await until(lambda: not looks._hanging.total())
        again = asyncio.create_task(looks.look(systems.look, ["/dead/a"], str))
        await pass_time(0)
        stand_still(5)
        assert await again == [["/DEAD/A"]]


@by_hand
async def test_a_process_that_stands_still_again_and_again_waits_for_nothing(systems: FileSystems) -> None:
    async with looking(2) as looks:
        hanging = asyncio.create_task(refused(looks, systems, "/dead/a"))
        await systems.until_seen(1)
        for _ in range(2):
            stand_still(5)
            await pass_time(0)
        assert await hanging == 10
        assert looks._hanging.total() == 1


@by_hand
async def test_a_mount_that_hangs_does_not_stop_others(systems: FileSystems) -> None:
    """However many paths below it are asked for, and whoever is waiting for them."""
    async with looking(0.3) as looks:
        stuck = [asyncio.create_task(refused(looks, systems, f"/dead/{number}")) for number in range(100)]
        await asyncio.sleep(0)
        for path in ("/alive/a", "/other/a"):
            assert await looks.look(systems.look, [path], str) == [[path.upper()]]
        await systems.until_seen(file_looks.MOST_AT_ONCE)
        assert not any(each.done() for each in stuck)
        await pass_time(0.3)
        assert {await each for each in stuck} == {0.3}
        assert await refused(looks, systems, "/dead/another") == 0
        assert await refused(looks, systems, "/alive/a", "/dead/another") == 0
        for path in ("/alive/a", "/other/a"):
            assert await looks.look(systems.look, [path], str) == [[path.upper()]]
        assert systems.dead_seen() == file_looks.MOST_AT_ONCE
        assert not looks._waiting


@by_hand
async def test_what_nobody_waits_for_is_not_begun(systems: FileSystems) -> None:
    async with looking(30) as looks:
        names = [f"/dead/{number}" for number in range(file_looks.MOST_AT_ONCE)]
        stuck = [asyncio.create_task(looks.look(systems.look, [name], str)) for name in names]
        late = asyncio.create_task(looks.look(systems.look, ["/dead/late"], str))
        await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        systems.answers.set()
        await asyncio.gather(*stuck)
        assert sorted(systems.seen) == names
        assert not looks._waiting


@by_hand
async def test_a_look_that_was_cancelled_may_hang_all_the_same(systems: FileSystems) -> None:
    async with looking(0.2) as looks:
        for number in range(file_looks.MOST_AT_ONCE):
            left = asyncio.create_task(looks.look(systems.look, [f"/dead/{number}"], str))
            await systems.until_seen(number + 1)
            left.cancel()
        await pass_time(0.2)
        assert await refused(looks, systems, "/dead/another") == 0


@by_hand
async def test_what_has_too_much_to_do_ends_and_shuts_off_nobody(
    systems: FileSystems, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(file_patterns, "time", SimpleNamespace(monotonic=loop.time))

    looked: Counter[str] = Counter()

    def search(paths: Sequence[str]) -> None:
        while not systems.answers.wait(0.001):
            require_time("/alive/**/none")
            looked[paths[0]] += 1

    async def look_again() -> None:
        """All of them, with the time that it is now."""
        so_far = dict(looked)
        await until(lambda: len(looked) == 4 and all(looked[path] > so_far.get(path, 0) + 1 for path in looked))

    async with looking(0.5) as looks:
        searches = [asyncio.create_task(looks.look(search, [f"/alive/{number}"], str)) for number in range(4)]
        await look_again()
        await pass_time(0.375)
        await look_again()
        assert not any(each.done() for each in searches)
        await pass_time(0.001)
        await asyncio.wait(searches)
        assert loop.time() == 0.376, "three quarters of the time, and no more"
        for each in searches:
            with pytest.raises(ResourceExhausted, match=r"too much to look through: /alive/\*\*/none"):
                each.result()
        assert not looks._hanging.total()
        assert await looks.look(systems.look, ["/alive/a"], str) == [["/ALIVE/A"]]


@by_hand
async def test_what_had_to_wait_for_its_turn_does_not_hang_yet(systems: FileSystems) -> None:
    """Whose asker waits no longer may still end in time."""
    began = threading.Event()

    def late(paths: Sequence[str]) -> None:
        began.set()
        systems.answers.wait(30)

    async with looking(0.6) as looks:
        turn = threading.Event()

        def early(paths: Sequence[str]) -> None:
            turn.wait(30)

        names = [f"/alive/{number}" for number in range(file_looks.MOST_AT_ONCE)]
        first = [asyncio.create_task(looks.look(early, [name], str)) for name in names]
        await pass_time(0.3)
        last = asyncio.create_task(looks.look(late, ["/alive/late"], str))
        await pass_time(0.2)
        turn.set()
        await asyncio.gather(*first)
        await until(began.is_set)
        await pass_time(0.4)
        assert last.done()
        with pytest.raises(ResourceExhausted):
            await last
        assert not looks._hanging.total()
        assert looks._underway.total() == 1
        await pass_time(0.2)
        assert looks._hanging.total() == 1, "it has had as long itself"


@by_hand
async def test_a_look_at_one_path_waits_for_its_turn_and_no_longer(systems: FileSystems) -> None:
    """Longer than one look may take, if those before it get theirs; not at all where everything hangs."""
    paths = [f"/alive/{number}" for number in range(4 * file_looks.MOST_AT_ONCE)]
    may_end = {path: threading.Event() for path in paths}
    begun: list[str] = []
    ended: list[str] = []

    def slow(path: str) -> str:
        begun.append(path)
        assert may_end[path].wait(30)
        ended.append(path)
        return path

    def stuck(path: str) -> str:
        return systems.look([path])[0]

    async with looking(0.5) as looks:
        asked = asyncio.gather(*(looks.look_at(slow, path) for path in paths))
        for rounds in range(4):
            await until(lambda ended=rounds * file_looks.MOST_AT_ONCE: len(begun) == ended + file_looks.MOST_AT_ONCE)
            await pass_time(0.2)
            for path in begun[-file_looks.MOST_AT_ONCE :]:
                may_end[path].set()
        assert await asked == paths
        assert sorted(ended) == sorted(paths)
        dead = [asyncio.create_task(looks.look_at(stuck, f"/dead/{number}")) for number in range(20)]
        await asyncio.sleep(0)
        assert await looks.look_at(stuck, "/alive/a") == "/ALIVE/A"
        await systems.until_seen(file_looks.MOST_AT_ONCE)
        await pass_time(0.5)
        assert all(isinstance(each.exception(), ResourceExhausted) for each in dead)
        assert await asyncio.to_thread(str, 1) == "1"
        assert systems.dead_seen() == file_looks.MOST_AT_ONCE


@by_hand
async def test_the_whole_of_the_threads_is_bounded(systems: FileSystems, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_looks, "MOST_THREADS", 2)
    async with looking(0.1) as looks:
        stuck = asyncio.gather(*(refused(looks, systems, f"/dead/{number}") for number in range(5)))
        await systems.until_seen(file_looks.MOST_THREADS)
        await pass_time(0.1)
        assert set(await stuck) == {0.1}
        assert looks._threads <= 3
        assert await refused(looks, systems, "/dead/late") == 0
        systems.answers.set()
        await until(lambda: not looks._hanging.total())
        looks.seconds = 5
        assert await looks.look(systems.look, ["/dead/late"], str) == [["/DEAD/LATE"]]
        assert systems.seen.count("/dead/late") == 1


@pytest.mark.parametrize("dead", [16, 70])
@by_hand
async def test_however_many_mounts_hang_others_are_looked_at(
    systems: FileSystems, monkeypatch: pytest.MonkeyPatch, dead: int
) -> None:
    mounts = [f"/dead{number}" for number in range(dead)]
    monkeypatch.setattr(file_looks, "mount_points", lambda: frozenset({"/", "/alive", *mounts}))
    async with looking(1) as looks:
        names = [f"{mount}/{number}" for mount in mounts for number in range(2 * file_looks.MOST_AT_ONCE)]
        stuck = [asyncio.create_task(refused(looks, systems, name)) for name in names]
        await asyncio.sleep(0)
        for path in ("/alive/a", "/a"):
            assert await looks.look(systems.look, [path], str) == [[path.upper()]]
        assert not any(each.done() for each in stuck)
        await pass_time(1)
        assert set(await asyncio.gather(*stuck)) == {1}
        for path in ("/alive/a", "/a"):
            assert await looks.look(systems.look, [path], str) == [[path.upper()]]
        assert looks._threads <= 2 * (file_looks.MOST_THREADS + dead)
        assert max(looks._hanging.values()) <= file_looks.MOST_AT_ONCE


def test_links_count_below_the_mount_that_they_lead_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mount").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mount")
    mount = str(tmp_path / "mount")
    monkeypatch.setattr(file_looks, "mount_points", lambda: frozenset({"/", mount}))
    places, path = Places(), str(tmp_path / "link" / "a.parquet")
    assert places.of(path) == "/"
    places.learn([path])
    assert places.of(path) == mount
    assert places.of(str(tmp_path / "link")) == "/"
    places.learn([str(tmp_path / "link")])
    assert places.of(str(tmp_path / "link" / "b.parquet")) == mount


def test_the_system_says_what_is_mounted(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:5 / /mnt/a\\040b rw - nfs4 server:/a rw\n")
    assert mount_points(system=System(mounts=mounts)) == {"/", "/mnt/a b"}
    assert mount_points(system=System(mounts=tmp_path / "none")) == set()
