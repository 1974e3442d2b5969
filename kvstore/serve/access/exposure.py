"""Exposure: the rule that nothing listens beyond loopback without credentials and TLS; and TLS.

The idea: each door calls `check_exposure` with its host before it binds. Host names other than
`localhost` count as beyond loopback, since their addresses can change.
"""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path
from typing import Final

from kvstore.errors import ConfigError, ExposureRefused, shown
from kvstore.files import Files
from kvstore.serve.access.credentials import check_private


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host of that name or address.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


TLS_OPTIONS: Final = "--tls-certificate FILE --tls-key FILE"


def check_exposure(
    door: str, host: str, *, has_credentials: bool, has_tls: bool, tls_by: str = TLS_OPTIONS
) -> None:
    """Raises `ExposureRefused` if a door would listen beyond loopback without credentials or
    without TLS; `door` is the option that asked for it, as `--http`.
    """
    if is_loopback(host):
        return
    missing = [
        remedy
        for is_there, remedy in (
            (has_credentials, "credentials (--credentials FILE)"),
            (has_tls, f"TLS ({tls_by})"),
        )
        if not is_there
    ]
    if missing:
        raise ExposureRefused(
            f"{door} would listen on {shown(host)}, which other machines can reach, without "
            f"{' and '.join(missing)}; give these, or listen on 127.0.0.1"
        )


def tls_context(files: Files, certificate: Path, key: Path) -> ssl.SSLContext:
    """The TLS settings of all doors, TLS 1.2 at least. `ConfigError` if a file is missing, does
    not fit, or the key is open to others.
    """
    check_private(files, key, "the key of TLS")
    if files.size(certificate) is None:
        raise ConfigError(f"the certificate of TLS {certificate} is not there")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as e:
        reason = getattr(e, "reason", None) or type(e).__name__
        raise ConfigError(
            f"the certificate {certificate} and the key {key} can't be used together ({reason}); "
            "both must be PEM, and the key not encrypted"
        ) from None
    return context


def _no_password() -> str:
    # Else OpenSSL asks for one on the terminal.
    raise ValueError
