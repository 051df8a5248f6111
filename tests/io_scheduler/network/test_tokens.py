"""Secrets are for their owner's eyes, tokens are what the secret makes of their credential, and nothing else is one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystachio.errors import InvalidRequest, Unauthorized
from pystachio.io_scheduler.network.tokens import (
    Credential,
    TokenRole,
    create,
    issue,
    key_of,
    parse_credential,
    parse_token,
    read,
    read_token,
)

SECRET = b"s" * 32


def test_a_secret_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    old_mask = os.umask(0)
    try:
        secret = create(path)
    finally:
        os.umask(old_mask)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read(path) == secret
    assert len(secret) == 32
    assert len(path.read_text().splitlines()) == 1
    assert path.read_text().startswith("pystachio-secret-1:")
    with pytest.raises(InvalidRequest, match="already"):
        create(path)
    assert read(path) == secret
    assert create(tmp_path / "another") != secret


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o601])
def test_a_secret_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    create(path)
    path.chmod(mode)
    with pytest.raises(Unauthorized, match=f"mode {mode:04o}") as caught:
        read(path)
    assert "chmod 600" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello\n",
        b"pystachio-secret-2:" + b"A" * 43 + b"=\n",
        b"pystachio-secret-1:" + b"A" * 42 + b"\n",
        b"pystachio-secret-1:" + b"A" * 43 + b"=\nmore\n",
        b"\x00" * 10_000,
    ],
)
def test_what_is_no_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(InvalidRequest, match="not a secret"):
        read(path)


def test_half_a_secret_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InvalidRequest, match="No space left"):
            create(tmp_path / "secret")
    assert create(tmp_path / "secret") == read(tmp_path / "secret")


def test_a_secret_that_is_not_there_or_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / "no" / "folder"):
        with pytest.raises(InvalidRequest, match="cannot be read"):
            read(path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(InvalidRequest, match="no file"):
        read(tmp_path / "pipe")
    with pytest.raises(InvalidRequest, match="no file"):
        read(tmp_path)
    with pytest.raises(InvalidRequest, match="cannot be written"):
        create(tmp_path / "no" / "folder")


def test_a_token_s_file_is_read_as_the_secret_s_is(tmp_path: Path) -> None:
    token = issue(SECRET, TokenRole.CLIENT, "alice")
    path = tmp_path / "token"
    path.write_text(f"{token}\n")
    path.chmod(0o640)
    with pytest.raises(Unauthorized, match="mode 0640"):
        read_token(path)
    path.chmod(0o600)
    assert read_token(path) == token
    path.write_bytes(b"\xff" * 10_000)
    with pytest.raises(Unauthorized, match="malformed"):
        read_token(path)
    with pytest.raises(InvalidRequest, match="no file"):
        read_token(tmp_path)


@pytest.mark.parametrize("role", list(TokenRole))
@pytest.mark.parametrize("expires_at", [None, 0, 1_900_000_000])
def test_a_token_is_one_line_that_is_read_again(role: TokenRole, expires_at: int | None) -> None:
    token = issue(SECRET, role, "alice-1", expires_at=expires_at)
    text = str(token)
    assert text.startswith(f"pst1.{role}.{'never' if expires_at is None else expires_at}.alice-1.")
    assert parse_token(text + "\n") == token
    assert key_of(SECRET, parse_credential(str(token.credential))) == token.key
    assert text.rsplit(".", 1)[1] not in repr(token)
    assert repr(token.key) not in repr(token)


def test_each_part_of_a_credential_makes_another_key() -> None:
    tokens = [
        issue(SECRET, TokenRole.CLIENT, "a"),
        issue(SECRET, TokenRole.OBSERVER, "a"),
        issue(SECRET, TokenRole.CLIENT, "b"),
        issue(SECRET, TokenRole.CLIENT, "a", expires_at=1),
        issue(b"t" * 32, TokenRole.CLIENT, "a"),
    ]
    assert len({token.key for token in tokens}) == len(tokens)


@pytest.mark.parametrize("id", ["", "a b", "a.b", "ä", "x" * 65, "a\n"])
def test_ids_that_a_token_cannot_hold(id: str) -> None:
    with pytest.raises(InvalidRequest, match="id"):
        issue(SECRET, TokenRole.CLIENT, id)


@pytest.mark.parametrize("expires_at", [-1, 10**12])
def test_times_that_a_token_cannot_hold(expires_at: int) -> None:
    with pytest.raises(InvalidRequest, match="time"):
        issue(SECRET, TokenRole.CLIENT, "a", expires_at=expires_at)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "pst1.client.never.alice",
        "pst1.client.never.alice.",
        "pst1.client.never.alice.AAAA",
        "pst2.client.never.alice." + "A" * 43,
        "pst1.node.never.alice." + "A" * 43,
        "pst1.client.soon.alice." + "A" * 43,
        "pst1.client.-1.alice." + "A" * 43,
        "pst1.client.\u0661.alice." + "A" * 43,
        "pst1.client.never.al ice." + "A" * 43,
        "pst1.client.never.alice." + "A" * 44,
        "pst1.client.never.alice." + "Ä" * 43,
        "pst1.client.never.alice." + "A" * 43 + "é",
        "pst1.client.never.alice." + "A" * 43 + "\udcff",
        "pst1.client.never.alice." + "A" * 20 + "!" + "A" * 23,
    ],
)
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(Unauthorized, match="malformed"):
        parse_token(text)


@given(st.text(max_size=100))
def test_any_text_is_a_token_or_unauthorized(text: str) -> None:
    for parse in (parse_token, parse_credential):
        with suppress(Unauthorized):
            parse(text)


def test_a_credential_expires() -> None:
    Credential(TokenRole.CLIENT, None, "a").check(1e18)
    credential = Credential(TokenRole.CLIENT, 1000, "a")
    credential.check(999.9)
    with pytest.raises(Unauthorized, match="expired") as caught:
        credential.check(1000)
    assert "new token" in str(caught.value)
