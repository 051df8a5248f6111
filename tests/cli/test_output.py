from __future__ import annotations

import os
from pathlib import Path

import pytest

from pystachio.cli.output import check_output, open_output, readable_bytes
from pystachio.errors import InvalidRequest, NotFound, ResourceExhausted


def test_file_appears_complete(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    with open_output(path) as sink:
        sink.write(b"half")
        assert not path.exists()
        sink.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert os.listdir(tmp_path) == ["rows.csv"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_after_a_failure(tmp_path: Path, failure: type[BaseException]) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"before")

    def write_and_fail() -> None:
        with open_output(path) as sink:
            sink.write(b"half")
            raise failure

    with pytest.raises(failure):
        write_and_fail()
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["rows.csv"]


def test_a_link_keeps_pointing_to_the_written_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with open_output(tmp_path / "link") as sink:
        sink.write(b"rows")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"rows"


def test_missing_folder_is_a_typed_error(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "rows.csv", tmp_path / "no" / "such" / "rows.csv"):
        with pytest.raises(NotFound, match=f"no such folder: {path.parent}"), open_output(path):
            pass
        with pytest.raises(NotFound, match=f"no such folder: {path.parent}"):
            check_output(path)


def test_a_check_leaves_nothing_and_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("before")
    for path in (tmp_path / "there", tmp_path / ("x" * 255), Path("/dev/null"), None):
        check_output(path)
    assert os.listdir(tmp_path) == ["there"]
    assert (tmp_path / "there").read_text() == "before"


@pytest.mark.parametrize("name", ["", "x" * 256, "file/x", "\udcff\ud800"])
def test_what_cannot_be_written_is_found_out_before(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / name,):
        with pytest.raises(InvalidRequest):
            check_output(path)
        with pytest.raises(InvalidRequest), open_output(path):
            pass


def test_the_longest_names(tmp_path: Path) -> None:
    with open_output(tmp_path / ("ä" * 127)) as sink:
        sink.write(b"rows")
    assert (tmp_path / ("ä" * 127)).read_bytes() == b"rows"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_is_a_typed_error() -> None:
    with pytest.raises(ResourceExhausted, match="No space left"), open_output(Path("/dev/full")) as sink:
        sink.write(b"rows")


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**31, "2.0 GiB"), (2**52, "4096.0 TiB")]
)
def test_readable_bytes(number: int, text: str) -> None:
    assert readable_bytes(number) == text
