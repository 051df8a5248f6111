"""Which transport carries data between nodes: what is there, what was asked for, and what was chosen."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from pystachio.errors import InvalidRequest, Unsupported
from pystachio.io_scheduler.devices.ucx_library import UcxReport, ucx_report
from pystachio.io_scheduler.network.frames import Carrier

TransportName = Literal["auto", "tcp", "ucx", "rdma"]
"""`rdma` is `ucx` that must reach other machines' memory: it fails where it cannot, instead of being slow."""


@dataclass(frozen=True, slots=True)
class TransportChoice:
    """What carries the data, and why, in words; `ucx` is None when nobody had to ask UCX."""

    carrier: Carrier
    reason: str
    ucx: UcxReport | None = None

    @property
    def advice(self) -> str:
        """What whoever runs the node should know: UCX's sockets are not ours to bind."""
        if self.carrier is Carrier.UCX and "UCX_NET_DEVICES" not in os.environ:
            return "UCX authenticates nobody and may listen on every interface: UCX_NET_DEVICES names those it uses"
        return ""


def choose_transport(
    name: TransportName = "auto", report: UcxReport | None = None, *, with_tls: bool = False
) -> TransportChoice:
    """`auto` is UCX where it has RDMA or reaches GPUs' memory, else TCP, which is faster than UCX's TCP.

    Asking UCX takes 0.4 s, unless there is a `report` already. `with_tls`, it is TCP. Raises Unsupported for what was
    demanded and is not there, InvalidRequest for what cannot be under TLS.
    """
    if name == "tcp":
        return TransportChoice(Carrier.TCP, "asked for", report)
    if name == "auto" and with_tls:
        return TransportChoice(Carrier.TCP, "UCX's data cannot be under TLS", report)
    if with_tls:
        raise _no_tls()
    report = report if report is not None else ucx_report()
    usable = report.version is not None and report.problem is None
    if name != "auto" and not usable:
        raise Unsupported(f"UCX as a transport: {report.problem}", hint="pip install ucxx-cu13")
    if name == "rdma" and not report.has_rdma:
        found = ", ".join(report.transports) or "none"
        raise Unsupported(
            f"RDMA, which UCX {report.version} does not have here (its transports: {found})",
            hint="a system UCX 1.19 or newer, and RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true",
        )
    if name != "auto":
        return TransportChoice(Carrier.UCX, "asked for", report)
    if usable and report.has_rdma:
        return TransportChoice(Carrier.UCX, "UCX has RDMA", report)
    if usable and report.has_gpu_memory:
        return TransportChoice(Carrier.UCX, "UCX reaches GPUs' memory", report)
    return TransportChoice(Carrier.TCP, "UCX has no RDMA here" if usable else f"UCX: {report.problem}", report)


def require_tls(choice: TransportChoice) -> None:
    """Raises InvalidRequest when it cannot be under TLS."""
    if choice.carrier is Carrier.UCX:
        raise _no_tls()


def _no_tls() -> InvalidRequest:
    return InvalidRequest(
        "UCX's data cannot be under TLS: transport asks for UCX, and tls_certificate for TLS",
        hint="under [cluster], set transport to auto or tcp, or leave tls_certificate, tls_key and tls_authority out",
    )
