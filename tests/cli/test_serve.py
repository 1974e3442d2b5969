"""`kvmq serve`, and the verbs that find its socket by themselves."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kvstore
from kvstore import Message
from tests.cli.conftest import Kvmq
from tests.support.certificates import make_certificate
from tests.support.private_files import private_file
from tests.support.waiting import until


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Path]:
    """A folder with a server."""
    folder = tmp_path / "s"
    command = [sys.executable, "-m", "kvstore", "serve", str(folder), "--create", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    ready = json.loads(process.stdout.readline())
    assert ready == {
        "door": "local protocol",
        "url": f"kvmq+unix://{folder}/kvmq.sock",
        "pid": process.pid,
    }
    yield folder
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert b"SIGTERM: draining" in process.stderr.read()
    process.stdout.close()
    process.stderr.close()


def test_verbs_use_the_server_of_a_folder(served: Path, kvmq: Kvmq) -> None:
    for words in (
        ("topic", "create", "DIR", "t", "--queues", "1"),
        ("group", "create", "DIR", "g"),
        ("put", "DIR", "t", "--body", "hello"),
        ("topic", "list", "DIR"),
        ("pull", "DIR", "t", "--queue", "0"),
        ("stats", "DIR"),
        ("verify", "DIR"),
        ("top", "DIR", "--once", "--interval", "0.1"),
        ("work", "DIR", "g", "t", "--until-empty", "--", "true"),
    ):
        ran = kvmq(*(str(served) if word == "DIR" else word for word in words))
        assert ran.code == 0, (words, ran.err)
    with kvstore.connect(served) as store:
        assert store.group_stats("g", "t")[0].lag == 0


def test_a_server_gives_back_the_memory_of_large_replies(served: Path) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(served / "kvmq.sock"))
        pid, *_ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))

    def memory() -> int:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) << 10

    count, body = 24, bytes(1 << 20)
    with kvstore.connect(served) as client:
        client.create_topic("t", queues=1)
        for _ in range(count):
            client.put_batch([Message("t", body, queue=0)])
        before = memory()
        for _ in range(6):
            assert len(client.pull("t", 0, 0, count).messages) == count
    until(lambda: memory() < before + count * len(body) // 2)


def test_a_second_start_and_a_verb_that_needs_the_store_say_who_serves(
    served: Path, kvmq: Kvmq
) -> None:
    policy = served.parent / "policy.toml"
    policy.write_text('hot_for = 1\nwarm = "warm"\n')
    for words in (("serve", str(served)), ("spark", "tier", str(served), "--policy", str(policy))):
        ran = kvmq(*words, "--json")
        assert (ran.code, ran.error["error"]) == (1, "StoreServed"), ran.err
        assert "kvmq.sock" in ran.error["message"]
    second = kvmq("serve", str(served), "--json").error["message"]
    assert "a store has one server: connect to that server, or end it first" in second
    assert "only reads" not in second


def test_a_server_without_credentials_says_so_when_it_is_to_read_them_again(
    folder: Path, process: Callable[..., subprocess.Popen[bytes]]
) -> None:
    ran = process("serve", folder, "--create")
    assert ran.stdout is not None
    assert ran.stderr is not None
    ran.stdout.readline()
    ran.send_signal(signal.SIGHUP)
    assert b"no file of credentials to read again" in ran.stderr.readline()


def test_a_folder_without_a_store_and_an_open_address_are_refused(
    tmp_path: Path, kvmq: Kvmq
) -> None:
    ran = kvmq("serve", str(tmp_path / "none"), "--json")
    assert (ran.code, ran.error["error"]) == (1, "StoreNotFound")
    assert ran.error["message"].endswith("`kvmq serve --create` makes one")
    ran = kvmq("serve", str(tmp_path / "s"), "--create", "--listen", "kvmq://0.0.0.0:7", "--json")
    assert (ran.code, ran.error["error"]) == (1, "ExposureRefused")


def test_verbs_take_credentials_from_the_environment_and_no_argument(
    tmp_path: Path, kvmq: Kvmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, key = make_certificate(tmp_path)
    secret = "a secret with: signs"
    clients = private_file(
        tmp_path / "clients.toml",
        f'[[clients]]\nname = "o"\naccess_key = "o-1"\nsecret = "{secret}"\nadmin = ["*"]\n',
    )
    own = private_file(tmp_path / "own", f"o-1:{secret}\n")
    folder = tmp_path / "s"
    command = [
        sys.executable, "-m", "kvstore", "serve", str(folder), "--create", "--json",
        "--listen", "kvmq+tls://127.0.0.1:0", "--credentials", str(clients),
        "--tls-certificate", chain, "--tls-key", key,
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["url"].startswith("kvmq+tls://127.0.0.1:")
        monkeypatch.setenv("KVMQ_TLS_CA", chain)
        nobody = kvmq("topic", "list", folder, "--json")
        assert (nobody.code, nobody.error["error"]) == (1, "NotAuthenticated")
        monkeypatch.setenv("KVMQ_CREDENTIALS", f"o-1:{secret}")
        assert kvmq("topic", "create", folder, "t", "--queues", "1").code == 0
        monkeypatch.delenv("KVMQ_CREDENTIALS")
        monkeypatch.setenv("KVMQ_CREDENTIALS_FILE", str(own))
        assert kvmq("put", folder, "t", "--body", "x").code == 0
        assert kvmq("group", "create", folder, "g").code == 0
        worked = kvmq("work", folder, "g", "t", "--until-empty", "--", "sh", "-c", "env >&2")
        assert worked.code == 0, worked.err
        own.chmod(0o644)
        seen = kvmq("topic", "list", folder, "--json")
        assert (seen.code, seen.error["error"]) == (1, "ConfigError")
        process.send_signal(signal.SIGTERM)
        log = process.stderr.read().decode()
        assert process.wait(20) == 0
    assert secret not in log + nobody.err + worked.err + seen.err
