from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pystachio.cli.main import app
from pystachio.config import SECTIONS, Settings, load, parse_duration
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
        ({"io_policy": "lifo"}, "bad value for the setting io_policy"),
        ({"emulated": "[{"}, "write a list of tables as JSON"),
        ({"emulated": 7}, "bad value for the setting emulated"),
        ({"emulated": [{"path": "/a"}]}, "bad value for the setting emulated.0.rate"),
        ({"memory": "9" * 400}, "more bytes than there are"),
        ({"memory": "9" * 300}, "bad value for the setting memory"),
        ({"memory": 10**5000}, "bad value for the setting memory"),
        ({"threads": True}, "bad value for the setting threads"),
        (
            {"spill_dir": "~nosuchuser/x"},
            "bad value for the setting spill_dir (argument): '~nosuchuser/x': no such user",
        ),
        ({"spill_dir": "a\0b"}, "no NUL"),
        ({"emulated": [{"path": "~nosuchuser/x", "rate": 1}]}, "bad value for the setting emulated.0.path"),
        ({"emulated": [{"path": "a\0b", "rate": 1}]}, "bad value for the setting emulated.0.path"),
        ({"emulated": {"path": "/a", "rate": 1}}, "[[io.emulated]]"),
        ({"emulated": "[" * 100_000}, "write a list of tables as JSON"),
        ({"emulated": [{"path": "/a", "rate": "fast"}]}, "not a rate; write for example 200MB/s"),
        ({"emulated": [{"path": "/a", "rate": True}]}, "not a rate"),
        ({"emulated": [{"path": "/a", "rate": "9" * 400}]}, "more bytes than there are"),
        ({"emulated": [{"path": "/a", "rate": 10**5000}]}, "bad value for the setting emulated.0.rate"),
        ({"emulated": [{"path": "/a", "rate": 1e-300}]}, "greater than or equal to 1"),
        ({"emulated": [{"path": "/a", "rate": 0}]}, "greater than or equal to 1"),
        ({"emulated": [{"path": "/a", "rate": 1, "depth": True}]}, "bad value for the setting emulated.0.depth"),
        ({"emulated": [{"path": "/a", "rate": float("nan")}]}, "bad value"),
        ({"emulated": [{"path": "/a", "rate": 1, "latency": "5 minutes"}]}, "not a duration"),
        ({"emulated": [{"path": "/a", "rate": 1, "latency": -1}]}, "greater than or equal to 0"),
        ({"emulated": [{"path": "/a", "rate": 1, "dept": 3}]}, "known: path, rate, latency, depth"),
        ({"emulated": [{"path": "/a", "rate": 1}, {"path": "/a", "rate": 1}]}, "same path twice"),
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
        ("x = " + "[" * 100_000, "cannot be read"),
        ('[io.emulated]\npath = "/a"\nrate = 1\n', "[[io.emulated]]"),
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


@pytest.mark.parametrize("path", ["~nosuchuser/x", "a\0b", 5, b"x"])
def test_what_names_no_configuration_file(path: object) -> None:
    with pytest.raises(InvalidRequest, match="configuration file"):
        load(path, environment={})  # type: ignore[arg-type]


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


EMULATED = '[{"path": "/data/ssd0", "rate": "200MB/s", "latency": "100us", "depth": 8}, {"path": "/b", "rate": 5}]'


def test_emulated_disks_from_every_source(tmp_path: Path, nowhere: dict[str, str]) -> None:
    tables = '[[io.emulated]]\npath = "/data/ssd0"\nrate = "200MB/s"\nlatency = "100us"\ndepth = 8\n'
    tables += '[[io.emulated]]\npath = "/b"\nrate = 5\n'
    for loaded in (
        load(wrote(tmp_path / "p.toml", tables), environment={}),
        load(environment=nowhere | {"PYSTACHIO_EMULATED": EMULATED}),
        load(environment=nowhere, emulated=json.loads(EMULATED)),
    ):
        first, second = loaded.settings.emulated
        assert (first.path, first.rate, first.latency, first.depth) == (Path("/data/ssd0"), 2e8, pytest.approx(1e-4), 8)
        assert (second.path, second.rate, second.latency, second.depth) == (Path("/b"), 5.0, 0.0, 32)


def test_what_config_show_prints_is_a_configuration_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSTACHIO_EMULATED", EMULATED)
    done = CliRunner().invoke(app, ["config", "show"])
    assert done.exit_code == 0
    assert load(wrote(tmp_path / "p.toml", done.stdout), environment={}).settings == load().settings


@pytest.mark.parametrize(
    ("text", "seconds"), [("100us", 1e-4), ("2.5ms", 0.0025), (" 3 s ", 3), ("7", 7), ("5m", 300), ("1h", 3600)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)
