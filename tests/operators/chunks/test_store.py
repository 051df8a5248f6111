"""The folder of stored columns: what is found, what goes first, and how much there is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pystachio.errors import Unauthorized
from pystachio.operators.chunks.cache import FILE_SECONDS, USUAL_RATE, is_worth_storing
from pystachio.operators.chunks.header import VERSION
from pystachio.operators.chunks.place import ChunkPlace
from pystachio.operators.chunks.store import ChunkStore
from pystachio.operators.table import FileVersion, ParquetField, ParquetFile

SIZE = 4096
MINUTE = 60 * 10**9
START = 1_000_000 * MINUTE


def parquet(path: str = "/data/t.parquet", size: int = 77, mtime_ns: int = 5, footer: bytes = b"footer") -> ParquetFile:
    """As much of a Parquet file as a name needs."""
    fields = tuple(ParquetField(f"c{leaf}", pa.int64(), True, leaf) for leaf in range(100))
    metadata = cast(pq.FileMetaData, None)
    return ParquetFile(FileVersion(path, size, mtime_ns), metadata, footer, 0, "", fields, ())


FILE = parquet()


def place(column: int, file: ParquetFile = FILE, form: str = "int8", groups: tuple[int, ...] = (0,)) -> ChunkPlace:
    return ChunkPlace(file, groups, column, 10, form)


class Store(ChunkStore):
    """With a clock that a test sets."""

    def __init__(self, folder: Path, most_bytes: int = 10 * SIZE) -> None:
        self.now = START
        self.while_listing: Callable[[], None] | None = None
        super().__init__(folder, most_bytes, lambda: self.now)

    def put(self, *columns: int, before: int | None = None, **where: Any) -> bool:
        """Store columns one minute after the other."""
        for column in columns:
            self.now += MINUTE
            temporary = self.temporary(place(column, **where))
            if not self.prepare(temporary, place(column, **where), SIZE, displace_before_ns=before):
                return False
            Path(temporary).write_bytes(bytes(SIZE))
            self.publish(temporary, place(column, **where))
            os.utime(self.names.path(place(column, **where)), ns=(self.now, self.now))
        return True

    def _list_folder(self, folder: str, chunks: dict[str, tuple[int, int]]) -> None:
        """What another thread does meanwhile happens between two folders, or behind the last one."""
        super()._list_folder(folder, chunks)
        if self.while_listing is not None:
            self.while_listing()

    def held(self, columns: int = 100) -> set[int]:
        """What a store finds that has not written it."""
        other = ChunkStore(self._parent, 1 << 30)
        other.look(FILE)
        return {column for column in range(columns) if other.find(place(column)) is not None}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_what_is_stored_is_found_here_and_elsewhere(store: Store) -> None:
    store.look(FILE)
    assert store.find(place(3)) is None
    store.put(3)
    found = store.find(place(3))
    assert found is not None
    assert (found.nbytes, found.key.rows, found.key.type) == (SIZE, 10, pa.int64())
    assert store.held() == {3}


@pytest.mark.parametrize(
    "other",
    [
        place(4),
        place(3, form="codes"),
        place(3, groups=(0, 1)),
        place(3, groups=(1,)),
        place(3, parquet(path="/data/u.parquet")),
        place(3, parquet(size=78)),
        place(3, parquet(mtime_ns=6)),
        place(3, parquet(footer=b"Footer")),
    ],
)
def test_each_file_version_place_and_form_has_its_own(store: Store, other: ChunkPlace) -> None:
    store.put(3)
    store.look(other.file)
    assert store.find(other) is None
    assert store.names.key(other).identity != store.names.key(place(3)).identity


def test_chunks_of_other_processes_are_seen(tmp_path: Path) -> None:
    first, second = Store(tmp_path), Store(tmp_path)
    first.put(1)
    second.look(FILE)
    first.put(2)
    second.look(FILE)
    assert second.find(place(2)) is not None
    os.unlink(first.names.path(place(2)))
    second.look(FILE)
    assert second.find(place(2)) is None


def test_a_look_holds_for_a_moment(store: Store) -> None:
    assert not store.is_known(FILE)
    store.look(FILE)  # there is no folder: that is known too
    assert store.is_known(FILE)
    store.now += 2 * 10**9
    assert not store.is_known(FILE)
    assert store.put(1)
    assert not store.is_known(FILE), "what is known of the own chunks says nothing of others'"
    for _ in range(2):  # the second time nothing has changed
        store.now += 2 * 10**9
        store.look(FILE)
        assert store.is_known(FILE)
        assert not store.is_known(parquet(footer=b"another"))
    store.now -= MINUTE
    assert not store.is_known(FILE), "a clock that was set back"


def test_the_least_recently_used_goes_first(store: Store) -> None:
    store.put(*range(10))
    for column in (0, 2):
        found = store.find(place(column))
        assert found is not None
        store.used(found)
    store.put(50)
    assert store.held() == {0, 2, 4, 5, 6, 7, 8, 9, 50}
    assert store.statistics().nbytes == SIZE * len(store.held())
    assert store.statistics().evicted == 2


def test_use_within_a_minute_touches_no_file(store: Store) -> None:
    store.put(1)
    found = store.find(place(1))
    assert found is not None
    before = os.stat(found.path).st_mtime_ns
    store.used(found)
    assert os.stat(found.path).st_mtime_ns == before
    store.now += 2 * MINUTE
    store.used(found)
    assert os.stat(found.path).st_mtime_ns == store.now


def test_the_budget_counts_what_is_being_written(store: Store) -> None:
    waiting = [store.temporary(place(column)) for column in range(11)]
    assert [store.prepare(path, place(column), SIZE) for column, path in enumerate(waiting)] == [True] * 10 + [False]
    store.abandon(waiting[0])
    assert store.prepare(waiting[10], place(10), SIZE)


def test_what_others_wrote_counts_from_the_next_sweep_on(tmp_path: Path) -> None:
    first, second = Store(tmp_path), Store(tmp_path)
    first.put(0)
    second.put(*range(10, 18))
    first.now = second.now
    first.put(*range(20, 28))
    assert len(first.held()) <= 10
    assert first.statistics().nbytes == SIZE * len(first.held())


def swept_while(store: Store, change: Callable[[], None]) -> None:
    """Sweep, and let `change` happen when the folder has been listed."""
    store.while_listing = change
    store.put(90)
    store.while_listing = None


def test_what_is_published_during_a_sweep_counts(store: Store) -> None:
    store.put(*range(4))
    temporary = store.temporary(place(50))
    assert store.prepare(temporary, place(50), SIZE)
    Path(temporary).write_bytes(bytes(SIZE))
    changes = iter([lambda: store.publish(temporary, place(50))])
    swept_while(store, lambda: next(changes, lambda: None)())
    assert next(changes, None) is None
    assert store.held() == {0, 1, 2, 3, 50, 90}
    assert store.statistics().nbytes == SIZE * len(store.held())


def test_what_is_renamed_before_a_sweep_and_published_after_it_counts_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(*range(4))
    temporary = store.temporary(place(50))
    assert store.prepare(temporary, place(50), SIZE)
    Path(temporary).write_bytes(bytes(SIZE))
    rename = os.rename

    def renamed(source: str, target: str) -> None:
        rename(source, target)
        monkeypatch.undo()
        store.put(90)

    monkeypatch.setattr(os, "rename", renamed)
    store.publish(temporary, place(50))
    assert store.held() == {0, 1, 2, 3, 50, 90}
    assert store.statistics().nbytes == SIZE * len(store.held())


def test_what_is_discarded_during_a_sweep_does_not_count(store: Store) -> None:
    store.put(*range(4))
    found = store.find(place(1))
    assert found is not None
    changes = iter([lambda: store.discard(found)])
    swept_while(store, lambda: next(changes, lambda: None)())
    assert next(changes, None) is None
    assert store.statistics().nbytes == SIZE * len(store.held())


def test_without_room_the_second_offer_counts(store: Store) -> None:
    store.put(*range(10))
    assert not store.admits(place(3), SIZE)
    assert not store.admits(place(30), SIZE)
    assert not store.admits(place(31), SIZE)
    assert store.admits(place(30), SIZE)
    assert not store.admits(place(32), 11 * SIZE)


def test_what_was_used_since_is_not_displaced_where_that_is_asked(store: Store) -> None:
    store.put(*range(5))
    started = store.now
    assert store.put(*range(20, 25), before=started)
    assert store.put(*range(25, 29), before=started)
    assert not store.put(*range(60, 75), before=started)
    assert store.held() >= set(range(20, 29))


def test_what_crashed_writers_left_is_removed_when_it_is_old(store: Store) -> None:
    store.put(1)
    folder = Path(store.names.folder(FILE))
    leftovers = {name: folder / f"{name}.unfinished" for name in ("young", "old")}
    for path in leftovers.values():
        path.write_bytes(b"half")
    empty = folder.parent / "version of a file that is gone"
    empty.mkdir()
    for path in (leftovers["old"], empty):
        os.utime(path, (1, 1))
    os.utime(leftovers["young"], ns=(store.now, store.now))
    (folder / "notes.txt").write_text("not ours")
    Store(store._parent).put(2)
    assert not leftovers["old"].exists()
    assert not empty.exists()
    assert leftovers["young"].exists()
    assert (folder / "notes.txt").exists()


def test_a_corrupt_chunk_is_removed_and_counted(store: Store) -> None:
    store.put(1, 2)
    found = store.find(place(1))
    assert found is not None
    store.discard(found)
    assert store.held() == {2}
    statistics = store.statistics()
    assert (statistics.nbytes, statistics.unusable) == (SIZE, 1)


def test_a_folder_of_others_is_refused_and_a_wide_open_one_closed(tmp_path: Path) -> None:
    Store(tmp_path).put(1)
    root = tmp_path / f"chunks-{VERSION}"
    root.chmod(0o777)
    Store(tmp_path).look(FILE)
    assert root.stat().st_mode & 0o777 == 0o700
    root.rename(tmp_path / "elsewhere")
    root.symlink_to(tmp_path / "elsewhere")
    store = Store(tmp_path)
    with pytest.raises(Unauthorized):
        store.look(FILE)
    with pytest.raises(Unauthorized):
        store.put(2)
    assert store.find(place(1)) is None


def test_what_older_releases_stored_is_removed(tmp_path: Path) -> None:
    """And nothing else, however alike its name."""
    others = ("chunks-0", "chunks-x", f"chunks-{VERSION + 1}", "other-1", f"chunks-{VERSION - 1}/mine")
    for name in (f"chunks-{VERSION - 1}/version", *others):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1-a.chunk").write_bytes(b"content")
    (tmp_path / f"chunks-{VERSION - 1}/mine/data").write_bytes(b"mine")
    Store(tmp_path).put(1)
    for name in others[:-1]:
        assert (tmp_path / name / "1-a.chunk").exists()
    assert [path.name for path in (tmp_path / others[-1]).iterdir()] == ["data"]
    assert not (tmp_path / f"chunks-{VERSION - 1}/version").exists()
    (tmp_path / f"chunks-{VERSION - 1}/mine/data").unlink()
    Store(tmp_path).put(2)
    assert not (tmp_path / f"chunks-{VERSION - 1}").exists()


def test_what_is_worth_storing() -> None:
    """Time to read it back against time to read and decode the original."""
    megabyte = 1_000_000
    assert is_worth_storing(megabyte, megabyte, 2 * FILE_SECONDS)
    assert not is_worth_storing(megabyte, megabyte, FILE_SECONDS / 2)
    assert not is_worth_storing(30 * megabyte, megabyte, 29 * megabyte / USUAL_RATE)
    assert is_worth_storing(megabyte, 3 * megabyte, 0.0)
