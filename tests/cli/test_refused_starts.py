"""Nodes that do not start: what they say, whether they may be started again, and that no cluster hears of them."""

from __future__ import annotations

import json
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pystachio.cli.main import app
from pystachio.io_scheduler.network.tls import TlsFiles
from tests.cli.served_process import MAIN, serving
from tests.io_scheduler.network.authorities import signed


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def config(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    assert run("init", str(folder)).exit_code == 0
    path = folder / "pystachio.toml"
    path.write_text(path.read_text().replace("127.0.0.1:7100", "127.0.0.1:0"))
    return path


@pytest.mark.parametrize(
    ("options", "code", "problem"),
    [
        (["--listen", "0.0.0.0:0"], 2, "needs the cluster's secret"),
        ([], 2, "needs the cluster's secret"),
        (["--listen", "everywhere"], 2, "cluster.listen"),
        (["--name", "a b"], 2, "cluster.name"),
        (["--config", "/no/such/file.toml"], 2, "no such configuration file"),
        (["--config", "CONFIG", "--memory", "3"], 2, "at least 16MiB"),
        (["--config", "CONFIG", "--join", "127.0.0.1:0"], 2, "it cannot be 0"),
        (["--config", "CONFIG", "--data", "/no/such/folder"], 2, "no such folder"),
        (["--config", "CONFIG", "--data", "EMPTY"], 2, "no Parquet files"),
        (["--config", "CONFIG", "--data", "GARBAGE"], 1, "not a Parquet file"),
        (["--config", "CONFIG", "--listen", "8.8.8.8:7100"], 1, "does not have the address"),
    ],
)
def test_what_does_not_start(options: list[str], code: int, problem: str, config: Path, tmp_path: Path) -> None:
    """A node that would not start another time either ends with 2: systemd's unit does not start it again."""
    for folder in ("empty", "garbage"):
        (tmp_path / folder).mkdir()
    (tmp_path / "garbage" / "g.parquet").write_text("no table at all")
    given = {"CONFIG": str(config), "EMPTY": str(tmp_path / "empty"), "GARBAGE": str(tmp_path / "garbage")}
    options = [given.get(option, option) for option in options]
    done = subprocess.run([*MAIN, "serve", *options], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert problem in " ".join(done.stderr.replace("│", "").split()), done.stderr
    assert "Traceback" not in done.stderr
    assert "a view is in force" not in done.stderr


def test_a_host_that_nobody_knows(config: Path) -> None:
    command = [*MAIN, "serve", f"--config={config}", "--listen=nohost.invalid:7100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in (1, 2)  # as there is somebody who knows names, or not
    assert "no host of this name" in done.stderr


def test_who_differs_in_tls_is_told_of_it(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()
    ours, theirs = (signed(tmp_path / folder, "authority", "node") for folder in ("ours", "theirs"))

    def use(files: TlsFiles) -> None:
        monkeypatch.setenv("PYSTACHIO_CLUSTER_TLS_CERTIFICATE", str(files.certificate))
        monkeypatch.setenv("PYSTACHIO_CLUSTER_TLS_KEY", str(files.key))
        monkeypatch.setenv("PYSTACHIO_CLUSTER_TLS_AUTHORITY", str(files.authority))

    use(ours)
    with serving(config, "--name=encrypted") as (_, address):
        asked = ["status", "--node", address, "--config", str(config)]
        assert run(*asked).exit_code == 0
        for files, code, problem in (
            (theirs, 1, f"cannot be joined at {address}: a node's certificate is not of our authority"),
            (replace(theirs, authority=ours.authority), 2, "the TLS certificate is not of the authority"),
        ):
            use(files)
            command = [*MAIN, "serve", f"--config={config}", "--name=other", f"--join={address}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert (done.returncode, done.stdout, problem in done.stderr) == (code, "", True), done.stderr
        for name in ("CERTIFICATE", "KEY", "AUTHORITY"):
            monkeypatch.delenv(f"PYSTACHIO_CLUSTER_TLS_{name}")
        plain = run(*asked)
        assert (plain.exit_code, "perhaps it uses TLS" in plain.stderr) == (3, True), plain.stderr


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"SECRET_FILE": "/no/such/secret"}, "secret cannot be read"),
        ({"SECRET_FILE": "CONFIG"}, "not a secret"),
        ({"MEMBERSHIP": "ray"}, "started by its supervisor"),
        ({"TRANSPORT": "rdma"}, "not supported"),
        ({"TRANSPORT": "ucx", "TLS": "CONFIG"}, "UCX's data cannot be under TLS"),
        ({"TLS": "/no/such/file"}, "tls_key"),
        ({"TLS": "CONFIG"}, "tls_authority"),
    ],
)
def test_settings_with_which_no_node_starts(
    settings: dict[str, str], problem: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tmp_path / "private.toml"
    private.write_bytes(config.read_bytes())
    private.chmod(0o600)
    for name, value in settings.items():
        for each in ("TLS_CERTIFICATE", "TLS_KEY", "TLS_AUTHORITY") if name == "TLS" else (name,):
            monkeypatch.setenv(f"PYSTACHIO_CLUSTER_{each}", str(private) if value == "CONFIG" else value)
    done = subprocess.run([*MAIN, "serve", f"--config={config}"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, problem in done.stderr) == (2, "", True), done.stderr


def test_a_node_that_cannot_serve_disturbs_no_cluster(config: Path, tmp_path: Path) -> None:
    (tmp_path / "numbers.parquet").write_text("no table at all")
    with serving(config, "--name=first") as (_, address), socket.create_server(("127.0.0.1", 0)) as taken:
        looking = ["status", "--node", address, "--config", str(config), "--json"]
        before = json.loads(run(*looking).stdout)["epoch"]
        joining = [*MAIN, "serve", f"--config={config}", "--name=broken", f"--join={address}"]
        port = taken.getsockname()[1]
        for option, problem in (
            (f"--data={tmp_path}", "not a Parquet file"),
            (f"--health=127.0.0.1:{port}", f"health cannot be asked for at 127.0.0.1:{port}"),
        ):
            done = subprocess.run([*joining, option], capture_output=True, text=True, timeout=60)
            assert (done.returncode, done.stdout, problem in done.stderr) == (1, "", True), done.stderr
            assert json.loads(run(*looking).stdout)["epoch"] == before


def test_a_secret_that_others_can_read_and_a_port_that_is_taken(config: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes((config.parent / "secret").read_bytes())
    secret.chmod(0o644)
    (tmp_path / "open.toml").write_text(f'[cluster]\nsecret_file = "{secret}"\n')
    command = [*MAIN, "serve", "--config", str(tmp_path / "open.toml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "chmod 600" in done.stderr) == (2, True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        secret.chmod(0o600)
        listen = f"--listen=127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run([*command, listen], capture_output=True, text=True, timeout=60)
        assert (done.returncode, "cannot listen" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("options", "code", "problem"),
    [
        (["--data", "/no/such/folder"], 2, "not found: no such folder: /no/such/folder"),
        (["--memory", "1KiB"], 2, "at least 16MiB"),
        (["--threads", "0"], 2, "the setting threads"),
    ],
)
def test_a_cluster_that_cannot_start_says_what_serve_says(
    options: list[str], code: int, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [*MAIN, "cluster", "--nodes=2", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, problem in done.stderr) == (code, "", True), done.stderr
    assert "internal error" not in done.stderr
    assert "main serve" not in done.stderr
    assert not list(tmp_path.glob("pystachio-cluster-*"))
