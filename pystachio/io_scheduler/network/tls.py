"""Encryption of everything between nodes and clients, where the network below is not trusted to keep secrets.

Both ends show certificates of one authority, and nothing older than TLS 1.3 is spoken. Names in certificates are not
compared: who is at the other end is proved by the handshake above, which every connection has with and without TLS.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pystachio.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: this end's certificate and its private key, and the authority that signed everybody's."""

    certificate: Path
    key: Path
    authority: Path


@dataclass(frozen=True, slots=True)
class TlsContexts:
    """For connections that are accepted, and for those that are opened."""

    listening: ssl.SSLContext
    connecting: ssl.SSLContext


def load(files: TlsFiles) -> TlsContexts:
    """Raises InvalidRequest, with the file that cannot be used. Never asks for a passphrase."""
    return TlsContexts(_context(files, is_listening=True), _context(files, is_listening=False))


class TlsArrival(asyncio.Protocol):
    """Somebody has connected, and has to begin with TLS. `arrived` is given the socket, of which nothing is read yet:
    a server of the event loop's own would tell of nobody before that has ended.
    """

    def __init__(self, arrived: Callable[[socket.socket], None]) -> None:
        self._arrived = arrived

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no class of asyncio's.
        plain = cast(asyncio.Transport, transport)
        try:
            taken = socket.socket(fileno=os.dup(plain.get_extra_info("socket").fileno()))
        except OSError:  # too many files are open
            return
        finally:
            plain.abort()
        self._arrived(taken)


async def encrypt(taken: socket.socket, protocol: asyncio.Protocol, tls: TlsContexts, seconds: float) -> None:
    """The listener's side of TLS; then the protocol has its connection. Raises OSError when there is none."""
    loop = asyncio.get_running_loop()
    try:
        taken.setblocking(False)
        await loop.connect_accepted_socket(lambda: protocol, taken, ssl=tls.listening, ssl_handshake_timeout=seconds)
    except BaseException:
        taken.close()
        raise


def _context(files: TlsFiles, *, is_listening: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_listening else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if is_listening:
        # A session that is resumed would not be examined again.
        context.num_tickets = 0
    try:
        context.load_verify_locations(files.authority)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"not the certificate of an authority ({error}): {files.authority}") from error
    try:
        context.load_cert_chain(files.certificate, files.key, password=_refuse_passphrase)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"not a certificate with its private key, or with a passphrase ({error}): {files.certificate}, {files.key}"
        ) from error
    return context


def _refuse_passphrase() -> str:
    raise ValueError("the private key has a passphrase")
