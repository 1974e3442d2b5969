"""Nothing listens beyond loopback without credentials and TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.errors import ConfigError, ExposureRefused
from kvstore.files import LocalFiles
from kvstore.serve.access.exposure import check_exposure, is_loopback, tls_context
from tests.support.certificates import make_certificate

LOOPBACK = ["127.0.0.1", "127.8.9.10", "::1", "[::1]", "::ffff:127.0.0.1", "localhost"]
BEYOND = [
    "",
    "0.0.0.0",
    "::",
    "10.0.0.1",
    "localhost.example.org",
    "127.0.0.1.nip.io",
    "*",
    "127.1",
]


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_needs_neither_credentials_nor_tls(host: str) -> None:
    assert is_loopback(host)
    check_exposure("--http", host, has_credentials=False, has_tls=False)


@pytest.mark.parametrize("host", BEYOND)
def test_beyond_loopback_both_are_needed_and_the_error_says_which_is_missing(host: str) -> None:
    with pytest.raises(ExposureRefused, match=r"--http would listen .* credentials .* and TLS"):
        check_exposure("--http", host, has_credentials=False, has_tls=False)
    with pytest.raises(ExposureRefused, match=r"without TLS \(--tls-certificate"):
        check_exposure("--http", host, has_credentials=True, has_tls=False)
    with pytest.raises(ExposureRefused, match=r"without credentials \(--credentials"):
        check_exposure("--http", host, has_credentials=False, has_tls=True)
    check_exposure("--http", host, has_credentials=True, has_tls=True)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    certificate, key = map(Path, make_certificate(tmp_path))
    return certificate, key


def test_a_certificate_and_its_key_make_tls(pair: tuple[Path, Path]) -> None:
    assert tls_context(LocalFiles(), *pair).minimum_version.name == "TLSv1_2"


def test_a_key_that_is_open_missing_or_no_key_is_refused(pair: tuple[Path, Path]) -> None:
    certificate, key = pair
    with pytest.raises(ConfigError, match="can't be used together"):
        tls_context(LocalFiles(), key, key)
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="has mode 644"):
        tls_context(LocalFiles(), certificate, key)
    key.unlink()
    with pytest.raises(ConfigError, match="is not there"):
        tls_context(LocalFiles(), certificate, key)
