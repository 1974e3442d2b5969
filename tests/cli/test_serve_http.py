"""`kvmq serve --http` and `kvmq token`: the options of doors, and a server's start and end."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.serve.access.credentials import sha256_of
from tests.cli.conftest import Kvmq
from tests.support.private_files import private_file


def test_a_token_fits_its_line_for_the_file(kvmq: Kvmq) -> None:
    found = kvmq("token", "--json").json
    assert sha256_of(found["token"]) == found["token_sha256"]
    assert found["token"] not in kvmq("token").out


@pytest.mark.parametrize(
    ("options", "why"),
    [(["--http", "0.0.0.0:0"], "without credentials (--credentials FILE) and TLS"),
     (["--http", "localhost"], "is not like 127.0.0.1:9876"),
     (["--http", "::1:80"], "is not like 127.0.0.1:9876"),
     (["--http", "127.0.0.1:99999"], "is not like 127.0.0.1:9876"),
     (["--http", "127.0.0.1:0", "--credentials", "none.toml"], "is not there"),
     (["--tls-key", "key.pem"], "go together")],
)  # fmt: skip
def test_a_wrong_door_is_refused_before_the_store_is_made(
    kvmq: Kvmq, folder: Path, options: list[str], why: str
) -> None:
    new = folder.with_name("new")
    ran = kvmq("serve", new, "--create", *options)
    assert ran.code > 0
    assert why in ran.err
    assert not new.exists()


def test_a_server_says_its_doors_reads_credentials_again_and_ends(
    folder: Path, tmp_path: Path, process: Callable[..., subprocess.Popen[bytes]]
) -> None:
    credentials = tmp_path / "credentials.toml"

    def write(token: str) -> None:
        private_file(
            credentials,
            f'[[clients]]\nname = "a"\ntoken_sha256 = "{sha256_of(token)}"\nmetrics = true\n',
        )

    def metrics(token: str) -> int:
        headers = {"authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"{door['url']}/metrics", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as e:
            with e:
                return e.code

    write("kvmq_first")
    ran = process("serve", folder, "--create", "--json", "--http", "127.0.0.1:0",
                  "--credentials", credentials)  # fmt: skip
    assert ran.stdout is not None
    assert ran.stderr is not None
    doors = [json.loads(ran.stdout.readline()) for _ in range(2)]
    door = doors[1]
    assert [d["door"] for d in doors] == ["local protocol", "HTTP door"]
    assert [metrics("kvmq_first"), metrics("kvmq_second")] == [200, 401]
    write("kvmq_second")
    ran.send_signal(signal.SIGHUP)
    while b"were read again" not in ran.stderr.readline():
        assert ran.poll() is None
    assert [metrics("kvmq_first"), metrics("kvmq_second")] == [401, 200]
    ran.send_signal(signal.SIGTERM)
    log = ran.stderr.read()
    assert ran.wait(20) == 0
    assert b"kvmq_second" not in log
