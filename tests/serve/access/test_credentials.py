"""The file of credentials, and how a caller proves who it is."""

from __future__ import annotations

import hashlib
import hmac
import logging
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kvstore.errors import ConfigError, NotAllowed, NotAuthenticated
from kvstore.files import LocalFiles
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.credentials import LOCAL, new_token, sha256_of
from kvstore.wire.secret import Secret
from tests.support.clock import START_MS, VirtualClock

TOKEN = "kvmq_this-is-the-token-of-the-shop"
SECRET = "this-is-the-secret-of-billing"
FILE = f"""
[[clients]]
name = "shop"
token_sha256 = "{sha256_of(TOKEN)}"
produce = ["orders*"]
metrics = true

[[clients]]
name = "billing"
access_key = "key-1"
secret = "{SECRET}"
consume = ["orders"]
groups = ["billing"]
expires = 2023-11-15T00:00:00Z
"""
NOW = datetime.fromtimestamp(START_MS / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")


@pytest.fixture
def control(tmp_path: Path, clock: VirtualClock) -> Callable[[str], AccessControl]:
    """Makes the access control of a file with this text."""

    def make(text: str) -> AccessControl:
        write(tmp_path, text)
        return AccessControl(tmp_path / "credentials.toml", LocalFiles(), clock)

    return make


def write(folder: Path, text: str, mode: int = 0o600) -> None:
    path = folder / "credentials.toml"
    path.write_text(text)
    path.chmod(mode)


def signed(secret: str, date: str = NOW, key: str = "key-1") -> str:
    made = hmac.new(secret.encode(), date.encode(), hashlib.sha1).hexdigest().upper()
    return f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={made}"


Make = Callable[[str], AccessControl]


def test_a_token_and_a_signature_say_who_calls(control: Make) -> None:
    access = control(FILE)
    shop = access.of_token(TOKEN)
    billing = access.of_signature(signed(SECRET), NOW)
    assert (shop.name, billing.name) == ("shop", "billing")
    access.require(shop, "produce", topic="orders-eu")
    access.require_metrics(shop)
    access.require(billing, "consume", topic="orders", group="billing")
    with pytest.raises(NotAllowed, match="client billing has no right to produce with topic o"):
        access.require(billing, "produce", topic="orders")
    with pytest.raises(NotAllowed, match="no right to read metrics"):
        access.require_metrics(billing)
    assert access.has_credentials


def test_a_credential_with_region_and_service_is_read_by_its_key(control: Make) -> None:
    text = signed(SECRET).replace("key-1,", "key-1/region/RocketMQ,")
    assert control(FILE).of_signature(text, NOW).name == "billing"


@pytest.mark.parametrize(
    ("authorization", "date"),
    [
        (signed("another-secret-of-the-same-length"), NOW),
        (signed(SECRET, key="key-2"), NOW),
        (signed(SECRET), NOW[:-3] + "00Z"),
        (signed(SECRET, "20200101T000000Z"), "20200101T000000Z"),
        (signed(SECRET, "yesterday"), "yesterday"),
        ("", NOW),
        ("Bearer " + TOKEN, NOW),
        (signed(SECRET)[:-1], NOW),
        ("x" * 100_000, NOW),
        (signed(SECRET), "\udc80"),
    ],
)
def test_a_wrong_signature_is_refused(control: Make, authorization: str, date: str) -> None:
    with pytest.raises(NotAuthenticated):
        control(FILE).of_signature(authorization, date)


@pytest.mark.parametrize("token", ["", "kvmq_", sha256_of(TOKEN), TOKEN + "x", "x" * 100_000])
def test_a_wrong_token_is_refused(control: Make, token: str) -> None:
    with pytest.raises(NotAuthenticated):
        control(FILE).of_token(token)


def test_an_unknown_key_is_refused_also_with_a_signature_by_nothing(control: Make) -> None:
    with pytest.raises(NotAuthenticated):
        control(FILE).of_signature(signed("", key="nobody"), NOW)


def test_credentials_expire_also_while_a_client_is_connected(
    control: Make, clock: VirtualClock
) -> None:
    access = control(FILE)
    billing = access.of_signature(signed(SECRET), NOW)
    clock.advance(24 * 3600)
    with pytest.raises(NotAuthenticated, match="have expired"):
        access.require(billing, "consume", topic="orders")
    later = datetime.fromtimestamp(clock.now_ms() / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    with pytest.raises(NotAuthenticated, match="have expired"):
        access.of_signature(signed(SECRET, later), later)


def test_a_signature_of_a_client_that_writes_local_time_is_good(control: Make) -> None:
    west = datetime.fromtimestamp(START_MS / 1000 - 12 * 3600, UTC).strftime("%Y%m%dT%H%M%SZ")
    assert control(FILE).of_signature(signed(SECRET, west), west).name == "billing"


def test_a_reading_keeps_who_is_unchanged_and_turns_out_who_is_not(
    control: Make, tmp_path: Path
) -> None:
    access = control(FILE)
    shop, billing = access.of_token(TOKEN), access.of_signature(signed(SECRET), NOW)
    write(tmp_path, FILE.replace('groups = ["billing"]', 'groups = ["other"]'))
    access.reload()
    assert access.allows(shop, "produce", topic="orders")
    with pytest.raises(NotAuthenticated, match="changed: connect anew"):
        access.allows(billing, "consume", topic="orders", group="billing")
    write(tmp_path, "clients = 3")
    with pytest.raises(ConfigError):
        access.reload()
    assert access.allows(shop, "produce", topic="orders")


def test_without_a_file_every_caller_is_local_and_may_do_everything(clock: VirtualClock) -> None:
    access = AccessControl(None, LocalFiles(), clock)
    assert access.anonymous() is access.of_token("any") is access.of_signature("", "") is LOCAL
    access.require(LOCAL, "admin")
    access.require_metrics(LOCAL)


def test_with_a_file_nobody_is_let_in_without_credentials(control: Make) -> None:
    with pytest.raises(NotAuthenticated, match="asks for credentials"):
        control(FILE).anonymous()


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620, 0o660])
def test_a_file_that_others_can_read_is_refused(
    tmp_path: Path, clock: VirtualClock, mode: int
) -> None:
    write(tmp_path, FILE, mode)
    with pytest.raises(ConfigError, match=f"has mode {mode:o}.*chmod 600"):
        AccessControl(tmp_path / "credentials.toml", LocalFiles(), clock)


MALFORMED = {
    "not TOML": "[[clients]\nname = 1",
    "no clients": "[[others]]\nname = 'a'",
    "an unknown field": FILE.replace("metrics", "metric"),
    "no proof": "[[clients]]\nname = 'a'",
    "no name": f"[[clients]]\nname = ''\ntoken_sha256 = '{sha256_of('a')}'",
    "half a key": "[[clients]]\nname = 'a'\naccess_key = 'k'",
    "a short secret": "[[clients]]\nname = 'a'\naccess_key = 'k'\nsecret = 'SHORTSECRET'",
    "a token itself": f"[[clients]]\nname = 'a'\ntoken_sha256 = '{TOKEN}'",
    "a wrong type": f"[[clients]]\nname = 'a'\naccess_key = 'k'\nsecret = ['{SECRET}']",
    "a bad pattern": FILE.replace("orders*", "*orders"),
    "one name twice": FILE.replace('"billing"\naccess', '"shop"\naccess'),
    "one token twice": FILE + f"[[clients]]\nname = 'c'\ntoken_sha256 = '{sha256_of(TOKEN)}'",
    "one key twice": FILE + f"[[clients]]\nname = 'c'\naccess_key = 'key-1'\nsecret = '{SECRET}'",
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_file_is_refused_without_showing_its_secrets(control: Make, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        control(text)
    shown = f"{caught.value!r} {caught.value} {caught.value.__cause__!r}"
    assert TOKEN not in shown
    assert SECRET not in shown
    assert "SHORTSECRET" not in shown


def test_a_missing_a_binary_and_a_huge_file_are_refused(
    tmp_path: Path, clock: VirtualClock
) -> None:
    path = tmp_path / "credentials.toml"
    with pytest.raises(ConfigError, match="is not there"):
        AccessControl(path, LocalFiles(), clock)
    for data, why in ((b"\xff\xfe", "not UTF-8"), (b"#" * (5 << 20), "larger than")):
        path.write_bytes(data)
        path.chmod(0o600)
        with pytest.raises(ConfigError, match=why):
            AccessControl(path, LocalFiles(), clock)


def test_secrets_are_in_no_repr_no_error_and_no_log(
    control: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    access = control(FILE)
    shop, billing = access.of_token(TOKEN), access.of_signature(signed(SECRET), NOW)
    shown = [repr(shop), str(billing), f"{billing.secret}", repr(access), repr(vars(access))]
    right = signed(SECRET)
    for call in (
        lambda: access.of_token(TOKEN + "x"),
        lambda: access.of_signature(right.replace("key-1", "key-2"), NOW),
        lambda: access.of_signature(right + "0", NOW),
        lambda: access.require(billing, "admin"),
    ):
        with pytest.raises((NotAuthenticated, NotAllowed)) as caught:
            call()
        shown += [repr(caught.value), str(vars(caught.value)), repr(caught.value.__context__)]
    everything = "\n".join([*shown, caplog.text])
    for secret in (TOKEN, SECRET, sha256_of(TOKEN), right[-40:]):
        assert secret not in everything


def test_a_secret_does_not_leave_its_process() -> None:
    with pytest.raises(TypeError, match="stays in its process"):
        pickle.dumps(Secret(SECRET))


def test_tokens_are_long_and_never_the_same() -> None:
    made = {new_token() for _ in range(100)}
    assert len(made) == 100
    assert all(len(token) == 48 for token in made)
