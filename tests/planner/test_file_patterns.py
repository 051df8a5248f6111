"""Our walk of patterns against the standard library's."""

from __future__ import annotations

import errno
import glob
import os
from pathlib import Path
from random import Random

import pytest

from pystachio.errors import DataError, PystachioError, ResourceExhausted
from pystachio.planner.file_patterns import limited, matching, time_left
from pystachio.planner.local_files import local_files

NAMES = ("a", "b", "ab", "a1", ".h", "[x]", "c.parquet", "d.parquet", ".e.parquet")
PARTS = ("a", "b", "*", "**", "**", "?", "[ab]*", "[!a]*", "[[]x]", ".*", "*.parquet", "a*", "*b*", "a**", "c.parquet")


def grow(root: Path, chance: Random) -> None:
    """Folders, files and links, also broken ones, which never lead from a folder to itself."""
    folders = [root]
    root.mkdir()
    for _ in range(14):
        folder = chance.choice(folders) / chance.choice(NAMES)
        if not os.path.lexists(folder):
            folder.mkdir()
            folders.append(folder)
    for _ in range(14):
        path = chance.choice(folders) / chance.choice(NAMES)
        if not os.path.lexists(path):
            path.write_bytes(b"")
    for _ in range(5):
        first, second = sorted(chance.sample(range(len(folders)), 2))
        path = folders[first] / chance.choice(NAMES)
        if not os.path.lexists(path):
            path.symlink_to(chance.choice([folders[second], folders[second], root / "nowhere"]))


def drawn_pattern(root: Path, chance: Random) -> str:
    parts = [chance.choice(PARTS) for _ in range(chance.randint(1, 4))]
    if chance.random() < 0.1:
        parts.insert(chance.randint(1, len(parts)), "..")
    return "/".join([str(root), *parts])


@pytest.mark.parametrize("seed", range(40))
def test_the_same_as_the_standard_librarys(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    root = tmp_path / "root"
    grow(root, chance)
    found = 0
    for _ in range(60):
        pattern = drawn_pattern(root, chance)
        # It ends with a slash where `**` stands for nothing, whether that is a folder or not.
        known = {path.rstrip("/") for path in glob.glob(pattern, recursive=True) if os.path.lexists(path)}
        assert matching(pattern) == sorted(known), pattern
        found += len(known)
    assert found


def test_loops_of_links_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for folder in (tmp_path / "a", tmp_path / "a" / "b"):
        (folder / "x.parquet").write_bytes(b"")
        for number in range(6):
            (folder / f"up{number}").symlink_to(tmp_path / "a")
    (tmp_path / "self").symlink_to("self")
    files = [str(tmp_path / "a" / "b" / "x.parquet"), str(tmp_path / "a" / "x.parquet")]
    assert matching(f"{tmp_path}/a/**/*.parquet") == files
    assert matching(f"{tmp_path}/**/**/*.parquet") == files
    assert matching(f"{tmp_path}/**/x.parquet") == files


def test_folders_are_gone_through_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ways there are to match their names."""
    deep = tmp_path
    for _ in range(40):
        deep = deep / "x"
        deep.mkdir()
    (deep / "a.parquet").write_bytes(b"")
    seen: list[str] = []
    scandir = os.scandir

    def counted(path: str) -> object:
        seen.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    assert matching(f"{tmp_path}/**/**/**/**/**/a.parquet") == [str(deep / "a.parquet")]
    assert matching(f"{tmp_path}/**/x/**/*/**/x/**/[x]/**/*.parquet") == [str(deep / "a.parquet")]
    assert len(seen) == 2 * 41
    assert max(map(seen.count, seen)) == 2


def test_links_that_are_not_admitted_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / "sub" / "a").write_bytes(b"")
    (tmp_path / "out" / "a").write_bytes(b"")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    (tmp_path / "in" / "other").symlink_to(tmp_path / "in" / "sub")
    admitted = f"{tmp_path}/in"
    found = matching(f"{admitted}/**/a", lambda path: os.path.realpath(path).startswith(admitted))
    assert found == [f"{admitted}/other/a", f"{admitted}/sub/a"]


def test_looking_ends_with_its_time(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"a")
    assert time_left() is None
    for source in (f"{tmp_path}/*", str(tmp_path), f"{tmp_path}/a.parquet"):
        with limited(30):
            left = time_left()
            assert left is not None
            assert 0 < left <= 30
            assert [version.path for version in local_files([source])] == [f"{tmp_path}/a.parquet"]
        with limited(-1):
            assert time_left() == 0
            with pytest.raises(ResourceExhausted) as raised:
                local_files([source])
        assert raised.value.setting == "cluster_file_seconds"
    with limited(-1), pytest.raises(ResourceExhausted):
        matching(f"{tmp_path}/**/*")


def test_a_file_in_a_folder_that_matches_too_is_there_once(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"a")
    assert [version.path for version in local_files([f"{tmp_path}/**"])] == [f"{tmp_path}/a.parquet"]


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EMFILE, ResourceExhausted),
        (errno.ENOMEM, ResourceExhausted),
        (errno.EIO, DataError),
        (errno.EACCES, None),
    ],
)
@pytest.mark.parametrize(
    ("function", "failing", "pattern", "left"),
    [("scandir", "other", "*/*.parquet", ["one/a.parquet"]), ("stat", "", "**/a.parquet", [])],
)
def test_files_that_cannot_be_looked_for_now_are_not_left_out(
    function: str,
    failing: str,
    pattern: str,
    left: list[str],
    number: int,
    kind: type[PystachioError] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.parquet").write_bytes(b"a")
    folder = str(tmp_path / failing)
    real = getattr(os, function)

    def fail(path: str, **more: object) -> object:
        if path == folder:
            raise OSError(number, os.strerror(number))
        return real(path, **more)

    monkeypatch.setattr(os, function, fail)
    if kind is None:
        assert matching(f"{tmp_path}/{pattern}") == [f"{tmp_path}/{name}" for name in left]
    else:
        with pytest.raises(kind, match=folder):
            matching(f"{tmp_path}/{pattern}")


def test_a_folder_without_descriptors_to_list_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> object:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(ResourceExhausted, match=str(tmp_path)):
        local_files([str(tmp_path)])
