"""Authorities and the certificates they sign, made by the `openssl` command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pystachio.io_scheduler.network.tls import TlsFiles

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


def signed(folder: Path, authority: str, name: str, purpose: str = "") -> TlsFiles:
    """The files of `name`; the authority is made with its first certificate. `purpose` is all that it is good for."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made by the openssl command, which is not there")
    files = TlsFiles(folder / f"{name}.pem", folder / f"{name}.key", folder / f"{authority}.pem")
    authority_key = folder / f"{authority}.key"
    if not files.authority.exists():
        _openssl("req", "-x509", *_KEY, "-subj", f"/CN={authority}", "-keyout", authority_key, "-out", files.authority)
    request = folder / f"{name}.csr"
    _openssl("req", *_KEY[:-2], "-subj", f"/CN={name}", "-keyout", files.key, "-out", request)
    extensions = folder / f"{name}.ext"
    extensions.write_text(f"extendedKeyUsage = {purpose}\n" if purpose else "")
    # fmt: off
    _openssl(
        "x509", "-req", "-in", request, "-CA", files.authority, "-CAkey", authority_key, "-CAcreateserial",
        "-days", "2", "-extfile", extensions, "-out", files.certificate,
    )
    # fmt: on
    return files


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=30)
