from __future__ import annotations

from pathlib import Path

import pytest

from pystachio.config import SECTIONS, Settings, load
from pystachio.errors import InvalidRequest, NotFound, Unauthorized


def wrote(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    """An environment in which no configuration file is found."""
    return {"XDG_CONFIG_HOME": str(tmp_path / "no-such-folder")}


def test_defaults_are_discovered(nowhere: dict[str, str]) -> None:
    loaded = load(environment=nowhere)
    assert loaded.settings.memory > 0
    assert loaded.settings.threads >= 1
    assert loaded.settings.spill_dir.is_absolute()
    assert set(loaded.origins.values()) == {"default"}


def test_every_setting_is_in_one_section_and_has_a_meaning() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(Settings.model_fields)
    assert all(field.description for field in Settings.model_fields.values())


def test_the_last_source_wins_and_origins_tell(tmp_path: Path) -> None:
    path = wrote(tmp_path / "p.toml", '[resources]\nmemory = "1GiB"\nthreads = 3\n[execution]\nbatch_rows = 1000\n')
    loaded = load(path, environment={"PYSTACHIO_MEMORY": "2GiB", "PYSTACHIO_THREADS": "4"}, threads=5, device=None)
    assert (loaded.settings.memory, loaded.settings.threads, loaded.settings.batch_rows) == (2 * 1024**3, 5, 1000)
    assert loaded.origins["threads"] == "argument"
    assert loaded.origins["memory"] == "environment"
    assert loaded.origins["batch_rows"] == f"file {path}"
    assert loaded.origins["device"] == "default"


def test_the_file_is_found_by_environment_and_in_the_home_folder(tmp_path: Path) -> None:
    folder = tmp_path / "pystachio"
    folder.mkdir()
    home = wrote(folder / "config.toml", "[resources]\nthreads = 7\n")
    named = wrote(tmp_path / "named.toml", "[resources]\nthreads = 8\n")
    assert load(environment={"XDG_CONFIG_HOME": str(tmp_path)}).origins["threads"] == f"file {home}"
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "PYSTACHIO_CONFIG": str(named)}
    assert load(environment=environment).settings.threads == 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096),
        ("4096B", 4096),
        ("2GiB", 2 << 30),
        ("2g", 2 << 30),
        ("500 MB", 500_000_000),
        ("1.5KiB", 1536),
        ("1TB", 10**12),
        (" 8 mib ", 8 << 20),
    ],
)
def test_sizes(text: str, expected: int, nowhere: dict[str, str]) -> None:
    assert load(environment=nowhere, memory=text).settings.memory == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": "2 bananas"}, "bad value for the setting memory"),
        ({"memory": 0}, "greater than 0"),
        ({"memory": True}, "not a size"),
        ({"threads": 0}, "bad value for the setting threads"),
        ({"threads": "many"}, "valid integer"),
        ({"device": "gpu"}, "write auto, cpu, cuda or cuda:N"),
        ({"direct_io": "perhaps"}, "bad value for the setting direct_io"),
        ({"memroy": 1}, "did you mean memory"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str, nowhere: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load(environment=nowhere, **arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[resources]\nmemroy = 1\n", "did you mean resources.memory"),
        ("[resource]\nmemory = 1\n", "did you mean [resources]"),
        ("memory = 1\n", "put it under [resources]"),
        ("[resources]\nthreads = [1]\n", "bad value for the setting threads (file"),
        ("[resources\n", "cannot be read"),
    ],
)
def test_bad_files(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load(wrote(tmp_path / "p.toml", text), environment={})
    assert message in str(caught.value)


def test_a_named_file_must_exist_and_be_text(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        load(tmp_path / "none.toml", environment={})
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidRequest):
        load(tmp_path / "binary.toml", environment={})
    with pytest.raises((InvalidRequest, Unauthorized)):
        load(tmp_path, environment={})


def test_misspelt_variable_is_refused_with_the_nearest_name(nowhere: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="did you mean PYSTACHIO_THREADS"):
        load(environment=nowhere | {"PYSTACHIO_THREDS": "2"})


def test_settings_are_frozen(nowhere: dict[str, str]) -> None:
    settings = load(environment=nowhere).settings
    with pytest.raises(ValueError, match="frozen"):
        settings.threads = 99  # type: ignore[misc]


def test_a_file_without_end_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="longer than"):
        load("/dev/zero", environment={})
