"""The table [cluster]: its sources, its forms, and what must not be started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pystachio.cli.main import app
from pystachio.config import ClusterSettings, EmulatedNetwork, load, require_serviceable
from pystachio.endpoint import Endpoint
from pystachio.errors import InvalidRequest


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "no-such-folder")}


def test_a_node_listens_to_its_own_machine_by_default(nowhere: dict[str, str]) -> None:
    loaded = load(environment=nowhere)
    assert loaded.cluster.endpoint == Endpoint("127.0.0.1", 0)
    assert loaded.cluster.endpoint.is_loopback
    assert loaded.cluster.health is None
    assert loaded.origins["cluster_listen"] == "default"


def test_every_setting_has_a_meaning() -> None:
    assert all(field.description for field in ClusterSettings.model_fields.values())


def test_the_last_source_wins(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('[cluster]\nname = "a"\nlisten = "127.0.0.1:1"\njoin = ["h:2", "h:3"]\ndrain_seconds = "2m"\n')
    environment = {"PYSTACHIO_CLUSTER_NAME": "b", "PYSTACHIO_CLUSTER_PEERS": "x=h:4, y=[::1]:5"}
    loaded = load(path, environment=environment, cluster_listen="127.0.0.1:9", cluster_join=None)
    cluster = loaded.cluster
    assert (cluster.name, cluster.listen, cluster.drain_seconds) == ("b", "127.0.0.1:9", 120.0)
    assert cluster.join_endpoints == (("h", 2), ("h", 3))
    assert cluster.static_peers == (("x", ("h", 4)), ("y", ("::1", 5)))
    origins = [loaded.origins[f"cluster_{key}"] for key in ("name", "listen", "join", "retries")]
    assert origins == ["environment", "argument", f"file {path}", "default"]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"listen": "everywhere"}, "cluster.listen"),
        ({"name": "a b"}, "cluster.name"),
        ({"peers": ["h:1"]}, "NAME=HOST:PORT"),
        ({"peers": ["a=h:1", "a=h:2"]}, "same name twice"),
        ({"membership": "gossip"}, "cluster.membership"),
        ({"transport": "pigeon"}, "cluster.transport"),
        ({"retries": -1}, "cluster.retries"),
        ({"retries": True}, "cluster.retries"),
        ({"tls_key": "/k"}, "TLS needs all of tls_certificate"),
        ({"drain_seconds": "soon"}, "cluster.drain_seconds"),
    ],
)
def test_bad_values_are_named(nowhere: dict[str, str], values: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        load(environment=nowhere, **{f"cluster_{key}": value for key, value in values.items()})


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('[cluster]\nlisen = "h:1"\n')
    with pytest.raises(InvalidRequest, match="unknown setting") as caught:
        load(path, environment={})
    assert "cluster.listen" in str(caught.value.hint)
    with pytest.raises(InvalidRequest, match="PYSTACHIO_CLUSTER_LISEN"):
        load(environment={"PYSTACHIO_CLUSTER_LISEN": "h:1"})


def test_a_token_in_the_environment_is_no_setting(nowhere: dict[str, str]) -> None:
    load(environment=nowhere | {"PYSTACHIO_TOKEN": "pst1.x"})


@pytest.mark.parametrize("listen", ["0.0.0.0:7100", "[::]:7100", "10.1.2.3:0", "node.example:7100"])
def test_an_open_node_is_refused(listen: str) -> None:
    with pytest.raises(InvalidRequest, match="others can reach") as caught:
        require_serviceable(ClusterSettings.model_validate({"listen": listen}))
    assert "pystachio-node init" in str(caught.value.hint)


def test_a_node_on_loopback_needs_a_secret_too(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="secret"):
        require_serviceable(ClusterSettings())
    require_serviceable(ClusterSettings(secret_file=tmp_path / "secret"))


@pytest.mark.parametrize("listen", ["0.0.0.0:7100", "[::]:7100"])
def test_a_node_on_all_interfaces_says_where_it_is(tmp_path: Path, listen: str) -> None:
    settings = {"listen": listen, "secret_file": tmp_path / "secret"}
    with pytest.raises(InvalidRequest, match="all interfaces"):
        require_serviceable(ClusterSettings.model_validate(settings))
    require_serviceable(ClusterSettings.model_validate(settings | {"advertise": "node1:7100"}))


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "-my host.example")
    assert ClusterSettings().name_at(7100) == "my-host.example-7100"
    assert ClusterSettings(name="n").name_at(7100) == "n"
    ClusterSettings(name=ClusterSettings().name_at(7100))


def test_what_is_shown_can_be_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PYSTACHIO_CLUSTER_DATA", f"{tmp_path}/a,{tmp_path}/b")
    shown = CliRunner().invoke(app, ["config", "show", "--origin"])
    assert "environment" in next(line for line in shown.stdout.splitlines() if line.startswith("data = "))
    path = tmp_path / "again.toml"
    path.write_text(shown.stdout)
    assert load(path, environment={}).cluster.data == (tmp_path / "a", tmp_path / "b")


def test_a_network_may_be_emulated_from_every_source(nowhere: dict[str, str]) -> None:
    expected = EmulatedNetwork(rate=200e6, latency=0.5)
    written = {"rate": "200MB/s", "latency": "500ms"}
    assert load(environment=nowhere, cluster_emulated=written).cluster.emulated == expected
    environment = {**nowhere, "PYSTACHIO_CLUSTER_EMULATED": json.dumps(written)}
    assert load(environment=environment).cluster.emulated == expected
    assert load(environment=nowhere).cluster.emulated is None


@pytest.mark.parametrize("bad", ["fast", "[1]", {"latency": 1}, {"rate": 0}, {"rate": 1e6, "depth": 2}])
def test_an_emulated_network_is_checked(nowhere: dict[str, str], bad: object) -> None:
    with pytest.raises(InvalidRequest, match=r"cluster\.emulated"):
        load(environment=nowhere, cluster_emulated=bad)
