from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pystachio.operators.kernels import native


def test_the_library_is_here_where_a_compiler_is() -> None:
    """Otherwise the tests of the decoder would be skipped without anybody noticing that it does not build."""
    if shutil.which("gcc") is not None:
        assert native.library() is not None, native.load().problem


def test_no_library_is_no_error(tmp_path: Path) -> None:
    loaded = native.load_from(tmp_path)
    assert loaded.library is None
    assert "C compiler" in loaded.problem


def test_something_else_under_its_name_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "_native.abi3.so").write_bytes(b"not a library")
    loaded = native.load_from(tmp_path)
    assert loaded.library is None
    assert "cannot be loaded" in loaded.problem


def test_a_library_of_another_interface_is_not_used(tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc to build a library with")
    source = tmp_path / "old.c"
    source.write_text("int pystachio_interface_version(void) { return 0; }")
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", tmp_path / "_native.abi3.so"], check=True)
    loaded = native.load_from(tmp_path)
    assert loaded.library is None
    assert "install again" in loaded.problem


def test_the_interface_here_is_that_of_the_header() -> None:
    header = (Path(native.__file__).parent / "decode.h").read_text()
    assert f"#define PS_INTERFACE_VERSION {native.INTERFACE_VERSION}\n" in header
