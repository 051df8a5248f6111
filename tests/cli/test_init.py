"""`init` and `token`."""

from __future__ import annotations

import stat
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pystachio.cli.main import app
from pystachio.config import ClusterSettings, load, require_serviceable
from pystachio.io_scheduler.network.tokens import TokenRole, key_of, parse_token, read


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_a_cluster_begins_with_a_secret_and_a_configuration(tmp_path: Path) -> None:
    done = run("init", str(tmp_path / "c"))
    assert done.exit_code == 0, done.stderr
    secret, config = tmp_path / "c" / "secret", tmp_path / "c" / "pystachio.toml"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700
    assert f"serve --config {config}" in done.stderr
    loaded = load(config, environment={})
    assert loaded.cluster == ClusterSettings(listen="127.0.0.1:7100", secret_file=secret)
    require_serviceable(loaded.cluster)
    text = config.read_text()
    for name, field in ClusterSettings.model_fields.items():
        assert name in text
        assert field.description is not None
        assert field.description in text
    assert secret.read_text().strip() not in text + done.stdout + done.stderr


def test_every_commented_setting_can_be_put_in_force(tmp_path: Path) -> None:
    assert run("init", str(tmp_path)).exit_code == 0
    lines = (tmp_path / "pystachio.toml").read_text().splitlines()
    keys = tuple(f"# {name} = " for name in ClusterSettings.model_fields)
    (tmp_path / "all.toml").write_text(
        "\n".join(line.removeprefix("# ") if line.startswith(keys) else line for line in lines)
    )
    load(tmp_path / "all.toml", environment={})


def test_nothing_is_replaced(tmp_path: Path) -> None:
    assert run("init", str(tmp_path)).exit_code == 0
    secret = (tmp_path / "secret").read_bytes()
    done = run("init", str(tmp_path))
    assert done.exit_code == 1
    assert "already" in done.stderr
    (tmp_path / "pystachio.toml").unlink()
    assert run("init", str(tmp_path)).exit_code == 1
    assert (tmp_path / "secret").read_bytes() == secret


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert run("init", str(tmp_path / "file" / "c")).exit_code == 1


@pytest.mark.parametrize(
    ("options", "role", "lives"),
    [
        ([], TokenRole.CLIENT, 7 * 86_400),
        (["--role", "observer", "--expires", "12h"], TokenRole.OBSERVER, 12 * 3600),
        (["--expires", "never", "--id", "ada"], TokenRole.CLIENT, None),
    ],
)
def test_tokens(tmp_path: Path, options: list[str], role: TokenRole, lives: int | None) -> None:
    run("init", str(tmp_path))
    done = run("token", "--config", str(tmp_path / "pystachio.toml"), *options)
    assert done.exit_code == 0, done.stderr
    made = parse_token(done.stdout)
    assert made.credential.role is role
    assert made.key == key_of(read(tmp_path / "secret"), made.credential)
    expires_at = made.credential.expires_at
    assert (expires_at is None) if lives is None else abs((expires_at or 0) - time.time() - lives) < 60
    assert done.stdout == run("token", "--secret-file", str(tmp_path / "secret"), *options).stdout or lives


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--expires", "soon"], 2),
        (["--expires", "0s"], 2),
        (["--role", "king"], 2),
        (["--expires", "99999999d"], 2),
        (["--id", "a b"], 2),
        (["--secret-file", "/no/such/secret"], 1),
    ],
)
def test_wrong_tokens(tmp_path: Path, options: list[str], code: int) -> None:
    run("init", str(tmp_path))
    done = run("token", "--config", str(tmp_path / "pystachio.toml"), *options)
    assert done.exit_code == code
    assert ("letters, digits" in done.stderr) is (options[0] == "--id")


def test_a_token_needs_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert run("token").exit_code == 2
