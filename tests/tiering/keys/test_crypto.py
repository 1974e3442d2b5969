from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import ArchiveDamaged, ConfigError, FormatError, KeyDestroyed, KeyMissing
from kvstore.files import LocalFiles
from tests.support import inside_tiering
from tests.tiering.archive.samples import decode, encode, record
from tiering.archive.coder import Coder
from tiering.errors import EncryptionMissing
from tiering.keys.crypto import NONCE_SIZE, TopicKey, decrypt, encrypt
from tiering.keys.key_file import KeyFile

SECRET = bytes(range(32))
OTHER = bytes(32)


@given(st.binary(max_size=200), st.binary(max_size=20))
def test_what_is_encrypted_comes_back(payload: bytes, associated: bytes) -> None:
    data = encrypt(payload, SECRET, associated)
    assert decrypt(data, SECRET, associated) == payload
    assert encrypt(payload, SECRET, associated) == data


def test_no_nonce_serves_two_texts_or_two_places() -> None:
    made = [
        encrypt(payload, SECRET, associated)[:NONCE_SIZE]
        for payload in (b"", b"a", b"ab")
        for associated in (b"", b"a", b"ab")
    ]
    assert len(set(made)) == len(made)


def test_another_key_place_or_bit_does_not_decrypt() -> None:
    data = encrypt(b"payload", SECRET, b"here")
    damaged = bytearray(data)
    damaged[-1] ^= 1
    for args in (
        (data, OTHER, b"here"),
        (data, SECRET, b"there"),
        (bytes(damaged), SECRET, b"here"),
        (data[:20], SECRET, b"here"),
    ):
        with pytest.raises(ArchiveDamaged):
            decrypt(*args)


def test_an_encrypted_block_comes_back_with_its_key_alone() -> None:
    records = [record(i) for i in range(20)]
    coder = Coder()
    encoded = encode([records], coder, queue=0, secret=SECRET)
    assert decode(encoded, coder, queue=0, secret=SECRET)[0].records() == records
    assert b"orders" not in encoded.groups[0].data
    for secret in (OTHER, None):
        with pytest.raises(ArchiveDamaged):
            decode(encoded, coder, queue=0, secret=secret)


def test_a_block_that_should_be_encrypted_and_is_not_is_damage() -> None:
    encoded = encode([[record(1)]], Coder(), queue=0)
    with pytest.raises(ArchiveDamaged, match="is not"):
        decode(encoded, Coder(), queue=0, secret=SECRET)


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside_tiering.has_encryption().replace(False, monkeypatch)
    with pytest.raises(EncryptionMissing, match=r"kvmq\[encryption\]"):
        encrypt(b"payload", SECRET, b"")


def test_a_key_does_not_show_in_text() -> None:
    assert SECRET.hex() not in repr(TopicKey("id", SECRET))
    assert repr(SECRET) not in repr(TopicKey("id", SECRET))


def test_a_key_is_made_once_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    keys = KeyFile(path)
    assert keys.key_for_writing("orders") is None
    key = keys.make("orders")
    assert keys.make("orders") == key
    again = KeyFile(path)
    assert again.key_for_writing("orders") == key
    assert again.key_for_reading("orders", key.key_id) == key
    assert again.topics() == ["orders"]
    assert again.make("other").secret != key.secret


def test_a_key_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.with_name("keys.new").write_text("left behind by a process that was killed")
    KeyFile(path).make("orders")
    assert path.stat().st_mode & 0o777 == 0o600
    assert [found.name for found in tmp_path.iterdir()] == ["keys"]


def test_a_destroyed_key_is_gone_and_a_new_one_is_another(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    keys = KeyFile(path)
    key, kept = keys.make("orders"), keys.make("other")
    keys.destroy("orders")
    for found in (keys, KeyFile(path)):
        with pytest.raises(KeyDestroyed) as error:
            found.key_for_writing("orders")
        assert error.value.topic == "orders"
        with pytest.raises(KeyDestroyed):
            found.key_for_reading("orders", key.key_id)
        assert found.key_for_reading("other", kept.key_id) == kept
    assert key.secret.hex() not in path.read_text()
    new = keys.make("orders")
    assert new.key_id != key.key_id
    with pytest.raises(KeyDestroyed):
        keys.key_for_reading("orders", key.key_id)


def test_a_key_that_a_file_never_had_is_missing_and_not_destroyed(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys")
    keys.make("orders")
    for topic in ("orders", "other"):
        with pytest.raises(KeyMissing) as error:
            keys.key_for_reading(topic, "0123456789abcdef")
        assert not isinstance(error.value, KeyDestroyed)


def test_a_key_that_never_was_cannot_be_destroyed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no key"):
        KeyFile(tmp_path / "keys").destroy("orders")


class DiesBeforeErasing(LocalFiles):
    """The process ends when the old file is to be overwritten."""

    def erase(self, path: Path) -> None:
        raise KeyboardInterrupt


def test_a_destroyed_key_is_overwritten_at_the_next_start_at_the_latest(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    keys = KeyFile(path, DiesBeforeErasing())
    key = keys.make("orders")
    with pytest.raises(KeyboardInterrupt):
        keys.destroy("orders")
    assert any(key.secret.hex() in found.read_text() for found in tmp_path.iterdir())
    KeyFile(path)
    assert [found.name for found in tmp_path.iterdir()] == ["keys"]
    assert key.secret.hex() not in path.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"format":3,"keys":[]}',
        '{"format":1,"keys":[{"topic":"a","key_id":"b","key":"c"}]}',
    ],
)
def test_what_is_no_key_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(FormatError):
        KeyFile(tmp_path / "keys")
