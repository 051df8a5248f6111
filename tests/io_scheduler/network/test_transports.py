"""Which transport is chosen, and why; what is demanded and missing fails."""

from __future__ import annotations

import pytest

from pystachio.errors import Unsupported
from pystachio.io_scheduler.devices.ucx_library import UcxReport
from pystachio.io_scheduler.network.frames import Carrier
from pystachio.io_scheduler.network.transports import choose_transport

NONE = UcxReport(None, problem="ucxx is not installed")
BROKEN = UcxReport("1.20.1", problem="no memory")
PLAIN = UcxReport("1.20.1", ("cma", "self", "tcp"))
RDMA = UcxReport("1.20.1", ("rc_mlx5", "tcp"))
GPUS = UcxReport("1.20.1", ("cuda_copy", "cuda_ipc", "tcp"))


@pytest.mark.parametrize(
    ("report", "carrier", "why"),
    [
        (NONE, Carrier.TCP, "ucxx is not installed"),
        (BROKEN, Carrier.TCP, "no memory"),
        (PLAIN, Carrier.TCP, "no RDMA"),
        (RDMA, Carrier.UCX, "RDMA"),
        (GPUS, Carrier.UCX, "GPU"),
    ],
)
def test_auto_is_ucx_where_it_is_worth_it(report: UcxReport, carrier: Carrier, why: str) -> None:
    choice = choose_transport("auto", report)
    assert choice.carrier is carrier
    assert why in choice.reason


def test_what_is_asked_for_is_taken() -> None:
    assert choose_transport("tcp").carrier is Carrier.TCP
    assert choose_transport("tcp", RDMA).carrier is Carrier.TCP
    assert choose_transport("ucx", PLAIN).carrier is Carrier.UCX
    assert choose_transport("rdma", RDMA).carrier is Carrier.UCX


@pytest.mark.parametrize(
    ("name", "report"), [("ucx", NONE), ("ucx", BROKEN), ("rdma", NONE), ("rdma", PLAIN), ("rdma", GPUS)]
)
def test_what_is_demanded_and_missing_fails(name: str, report: UcxReport) -> None:
    with pytest.raises(Unsupported):
        choose_transport(name, report)  # type: ignore[arg-type]


def test_ucx_comes_with_a_word_on_where_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)
    assert "UCX_NET_DEVICES" in choose_transport("auto", RDMA).advice
    assert choose_transport("auto", PLAIN).advice == ""
    monkeypatch.setenv("UCX_NET_DEVICES", "mlx5_0:1")
    assert choose_transport("auto", RDMA).advice == ""


def test_this_machine_has_some_transport() -> None:
    choice = choose_transport()
    assert choice.reason
    assert choice.ucx is not None
