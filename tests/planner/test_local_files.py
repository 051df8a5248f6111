"""What a source stands for at one moment, though somebody writes files meanwhile."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pystachio.errors import DataError, NotFound, PystachioError, Unauthorized
from pystachio.planner import local_files as module
from pystachio.planner.local_files import local_files, look_for


def written(folder: Path, *names: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(name.encode())
    return [str(folder / name) for name in names]


def paths(source: str) -> list[str]:
    return [version.path for version in local_files([source])]


def once_listed(then: Callable[[], object], monkeypatch: pytest.MonkeyPatch, times: int = 1) -> None:
    """The first looks at a file that was found in a folder or by a pattern come after something else."""
    real = module._version_of_listed
    left = iter(range(times))

    def look(path: str) -> object:
        for _ in left:
            then()
            break
        return real(path)

    monkeypatch.setattr(module, "_version_of_listed", look)


@pytest.mark.parametrize("source", ["", "/*.parquet", "/**"])
def test_what_replaces_files_while_they_are_looked_for_is_found(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when two files are made one: without the old ones and without the new one, rows would be missing."""
    old = written(tmp_path / "t", "1.parquet", "2.parquet", "3.parquet")

    def compact() -> None:
        written(tmp_path / "t", "0.parquet")
        os.remove(old[1])
        os.remove(old[2])

    once_listed(compact, monkeypatch)
    assert paths(f"{tmp_path}/t{source}") == [f"{tmp_path}/t/0.parquet", old[0]]


def test_files_that_are_replaced_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "t"
    written(folder, "0.parquet")
    number = 0

    def replace() -> None:
        nonlocal number
        os.remove(folder / f"{number}.parquet")
        number += 1
        written(folder, f"{number}.parquet")

    once_listed(replace, monkeypatch, times=1000)
    for source in (str(folder), f"{folder}/*.parquet"):
        with pytest.raises(DataError, match="replaced again and again"):
            local_files([source])
        with pytest.raises(DataError, match="replaced again and again"):
            look_for([source])


def test_what_is_missing_is_told_apart_from_what_is_there(tmp_path: Path) -> None:
    (there,) = written(tmp_path / "t", "1.parquet")
    sources = [f"{tmp_path}/t/2.parquet", f"{tmp_path}/t", f"{tmp_path}/*/3*", f"{tmp_path}/t/1.parquet"]
    found = look_for(sources)
    assert [version.path for version in found.files] == [there, there]
    assert list(found.missing) == [sources[0], sources[2]]
    with pytest.raises(NotFound, match=r"2\.parquet"):
        local_files(sources)


def test_folders_without_files_that_match_beside_others(tmp_path: Path) -> None:
    (there,) = written(tmp_path / "full", "1.parquet")
    written(tmp_path / "empty", "notes.txt")
    assert paths(f"{tmp_path}/*") == [there]
    with pytest.raises(NotFound, match="no Parquet files in the folder"):
        paths(f"{tmp_path}/e*")


@pytest.mark.parametrize("target", ["nowhere", "2.parquet"], ids=["nowhere", "itself"])
def test_a_link_that_leads_nowhere(target: str, tmp_path: Path) -> None:
    """What it led to may be rows that are missing."""
    written(tmp_path / "t", "1.parquet")
    (tmp_path / "t" / "2.parquet").symlink_to(target)
    for source in (f"{tmp_path}/t", f"{tmp_path}/t/*"):
        with pytest.raises(DataError, match=r"leads nowhere: .*2\.parquet"):
            look_for([source])
    (tmp_path / "t" / "2.parquet").rename(tmp_path / "t" / "2.txt")
    assert paths(f"{tmp_path}/t") == [f"{tmp_path}/t/1.parquet"]


@pytest.mark.parametrize("source", ["", "/*.parquet"])
def test_a_folder_that_changed_while_it_was_listed_is_listed_again(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems list neither a file that is replaced meanwhile nor what replaces it."""
    there = written(tmp_path / "t", "1.parquet", "2.parquet", "3.parquet")
    real, looks = os.scandir, 0

    class Listed:
        def __init__(self, folder: str) -> None:
            self._entries = [entry for entry in real(folder) if looks != 1 or entry.name != "2.parquet"]

        def __enter__(self) -> list[os.DirEntry[str]]:
            return self._entries

        def __exit__(self, *error: object) -> None:
            """Nothing is open."""

    def scandir(folder: str) -> Listed:
        nonlocal looks
        looks += 1
        listed = Listed(folder)
        if looks == 1:
            os.utime(folder, ns=(1, 1))
        return listed

    monkeypatch.setattr(os, "scandir", scandir)
    assert paths(f"{tmp_path}/t{source}") == there
    assert looks == 2


def test_a_folder_that_always_changes_is_a_table_as_long_as_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (there,) = written(tmp_path / "t", "1.parquet")
    times = iter(range(1, 1000))
    once_listed(lambda: os.utime(tmp_path / "t", ns=(1, next(times))), monkeypatch, times=1000)
    assert paths(f"{tmp_path}/t") == [there]


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EIO, DataError), (errno.ESTALE, DataError), (errno.EACCES, Unauthorized)]
)
def test_a_path_that_cannot_be_looked_at_is_not_missing(
    number: int, kind: type[PystachioError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (there,) = written(tmp_path / "t", "1.parquet")

    def fail(path: str, **more: object) -> object:
        if path == there:
            raise OSError(number, os.strerror(number)) if number != errno.EACCES else PermissionError(number, "no")
        return real(path, **more)

    real = os.stat
    monkeypatch.setattr(os, "stat", fail)
    monkeypatch.setattr(os, "lstat", fail)
    with pytest.raises(kind):
        look_for([there])
