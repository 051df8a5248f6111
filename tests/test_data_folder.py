from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pystachio.data_folder import tables_of_folder
from pystachio.errors import DataError, NotFound, PystachioError, ResourceExhausted, Unauthorized


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("one.parquet", "many/part.parquet", "notes.txt", "empty/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_files_and_folders_of_files_are_tables(folder: Path) -> None:
    assert tables_of_folder(folder) == {"one": folder / "one.parquet", "many": folder / "many"}
    for missing in (folder / "empty", folder / "not there", folder / "notes.txt"):
        with pytest.raises(NotFound, match=str(missing)):
            tables_of_folder(missing)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EMFILE, ResourceExhausted), (errno.EIO, DataError), (errno.EACCES, Unauthorized)],
)
@pytest.mark.parametrize("inner", [True, False])
def test_a_folder_that_cannot_be_listed(
    inner: bool, number: int, kind: type[PystachioError], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.listdir

    def fail(path: Path) -> list[str]:
        if Path(path) == (folder / "many" if inner else folder):
            raise OSError(number, os.strerror(number), str(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", fail)
    if inner and kind is Unauthorized:  # somebody else's
        assert tables_of_folder(folder) == {"one": folder / "one.parquet"}
    else:
        with pytest.raises(kind):
            tables_of_folder(folder)
