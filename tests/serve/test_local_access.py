"""The local protocol over TCP: credentials, TLS, and the right that each call needs."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow
import pytest

import kvstore
import kvstore.aio
import tiering
from kvstore import GroupConfig, Message, PutResult, Store, StoredMessage, TopicConfig
from kvstore.errors import (
    CallerError,
    ConnectionLost,
    ExposureRefused,
    LimitExceeded,
    MessageNotFound,
    MessageTooLarge,
    NotAllowed,
    NotAuthenticated,
    StoreError,
)
from kvstore.files import LocalFiles
from kvstore.pop.nack import Nack
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.credentials import sha256_of
from kvstore.serve.access.exposure import tls_context
from kvstore.timing.checks import Answer
from kvstore.wire.addresses import Address, read_url
from kvstore.wire.call_table import REPEATS
from kvstore.wire.frames import HELLO, NAME, VERSION, framed
from tests.support import inside
from tests.support.certificates import make_certificate
from tests.support.clock import VirtualClock
from tests.support.inside_access import all_shown
from tests.support.private_files import private_file
from tests.support.served import ServerThread, serving
from tests.support.waiting import until

pytestmark = [pytest.mark.topic(queues=1), pytest.mark.group()]

TOKEN: Final = "kvmq_the-token-of-the-shop"
SECRET: Final = "the-secret-of-billing@:/?"
OWNER: Final = "kvmq_the-token-of-the-owner"
NOBODY: Final = "kvmq_the-token-of-nobody"
STRANGER: Final = "kvmq_the-token-of-a-stranger"
SECRETS: Final = (TOKEN, SECRET, OWNER, NOBODY, STRANGER)
FILE: Final = f"""
[[clients]]
name = "shop"
token_sha256 = "{sha256_of(TOKEN)}"
produce = ["t", "own*"]

[[clients]]
name = "billing"
access_key = "billing-1"
secret = "{SECRET}"
consume = ["t", "own*"]
groups = ["g"]

[[clients]]
name = "owner"
token_sha256 = "{sha256_of(OWNER)}"
admin = ["*"]

[[clients]]
name = "stranger"
token_sha256 = "{sha256_of(STRANGER)}"
produce = ["mine"]
consume = ["mine"]
groups = ["mine"]

[[clients]]
name = "nobody"
token_sha256 = "{sha256_of(NOBODY)}"
"""
BILLING: Final = ("billing-1", SECRET)
LOOPBACK: Final = Address(None, "127.0.0.1", 0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return private_file(tmp_path / "credentials.toml", FILE)


@pytest.fixture
def access(file: Path, store: Store) -> AccessControl:
    return AccessControl(file, LocalFiles(), store.config.clock)


@pytest.fixture
def plain(store: Store, access: AccessControl) -> Iterator[ServerThread]:
    """A server that asks for credentials, at a port of this machine."""
    with serving(store, LOOPBACK, access) as server:
        yield server


@pytest.fixture
def pem(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate, and a server's context that has it."""
    chain, key = map(Path, make_certificate(tmp_path))
    return chain, tls_context(LocalFiles(), chain, key)


@pytest.fixture
def secured(
    store: Store, access: AccessControl, pem: tuple[Path, ssl.SSLContext]
) -> Iterator[ServerThread]:
    """As `plain`, with TLS."""
    with serving(store, LOOPBACK._replace(is_tls=True), access, pem[1]) as server:
        yield server


# --- who comes in ---


def test_clients_put_and_take_by_tls_with_a_token_and_with_a_secret(
    secured: ServerThread, pem: tuple[Path, ssl.SSLContext]
) -> None:
    assert secured.url.startswith("kvmq+tls://127.0.0.1:")
    with (
        kvstore.connect(secured.url, credentials=TOKEN, tls=pem[0]) as shop,
        kvstore.connect(secured.url, credentials=BILLING, tls=pem[0]) as billing,
    ):
        bodies = [os.urandom(50_000) for _ in range(40)]
        shop.put_batch([Message("t", body) for body in bodies])
        found = billing.pop("g", "t", limit=40, wait=10)
        assert [popped.message.body for popped in found] == bodies
        assert set(billing.ack_batch([popped.receipt for popped in found])) == {True}
        with pytest.raises(NotAllowed, match="client shop has no right to consume with topic t"):
            shop.pop("g", "t")


def test_a_url_may_have_the_credentials_and_shows_them_nowhere(
    secured: ServerThread, pem: tuple[Path, ssl.SSLContext]
) -> None:
    where = secured.url.partition("//")[2]
    with kvstore.connect(f"kvmq+tls://{TOKEN}@{where}", tls=pem[0]) as shop:
        shop.put("t", b"x")
        assert repr(shop) == f"<kvstore.ServedStore {secured.url}>"
    quoted = "the-secret-of-billing%40%3A%2F%3F"
    trusted = ssl.create_default_context(cafile=pem[0])

    async def first() -> bytes:
        url = f"kvmq+tls://billing-1:{quoted}@{where}"
        async with kvstore.aio.connect(url, tls=trusted) as billing:
            assert repr(billing) == f"<kvstore.aio.ServedStore {secured.url}>"
            return (await billing.get("t", 0, 0)).body

    assert asyncio.run(first()) == b"x"


def test_many_threads_share_a_connection_of_tls(
    store: Store, secured: ServerThread, pem: tuple[Path, ssl.SSLContext]
) -> None:
    with kvstore.connect(secured.url, credentials=OWNER, tls=str(pem[0])) as client:

        def work(n: int) -> None:
            for _ in range(30):
                client.put_batch([Message("t", os.urandom(2000), queue=0)] * 20)
                assert client.pull("t", 0, 0, 64).messages

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert store.bounds("t", 0).next_offset == 2400


WRONG: Final[dict[str, Any]] = {
    "none": None,
    "a token of nobody": "kvmq_wrong-and-not-to-be-shown",
    "a secret of nobody": ("nobody", "wrong-and-not-to-be-shown"),
    "a wrong secret": ("billing-1", "wrong-and-not-to-be-shown"),
    "the token as a secret": ("billing-1", TOKEN),
    "the secret as a token": SECRET,
}


@pytest.mark.parametrize("what", WRONG)
def test_whoever_proves_nothing_is_told_so_at_once_and_nothing_else(
    plain: ServerThread, what: str
) -> None:
    with pytest.raises(NotAuthenticated) as refused:
        kvstore.connect(plain.url, credentials=WRONG[what])
    assert "not-to-be-shown" not in str(refused.value)

    async def connect() -> None:
        await kvstore.aio.connect(plain.url, credentials=WRONG[what])

    with pytest.raises(NotAuthenticated):
        asyncio.run(connect())


def test_the_socket_in_the_folder_is_its_owners_and_asks_for_nothing(
    store: Store, access: AccessControl
) -> None:
    with serving(store, access=access) as server, kvstore.connect(server.url) as client:
        client.create_topic("mine")
        assert client.stats().topics == 2


def test_beyond_loopback_nothing_listens_without_credentials_and_tls(
    store: Store, access: AccessControl, pem: tuple[Path, ssl.SSLContext]
) -> None:
    far = Address(None, "0.0.0.0", 0)
    with pytest.raises(ExposureRefused, match=r"without credentials .*kvmq\+tls://0.0.0.0"):
        ServerThread(store, far)
    with pytest.raises(ExposureRefused, match="without TLS"):
        ServerThread(store, far, access, pem[1])
    with pytest.raises(ExposureRefused, match=r"without credentials \(--credentials FILE\);"):
        ServerThread(store, far._replace(is_tls=True), None, pem[1])
    with pytest.raises(CallerError, match="--tls-certificate FILE"):
        ServerThread(store, LOOPBACK._replace(is_tls=True), access)
    with (
        serving(store, far._replace(is_tls=True), access, pem[1]) as server,
        kvstore.connect(
            server.url.replace("0.0.0.0", "localhost"), credentials=OWNER, tls=pem[0]
        ) as client,
    ):
        assert len(client.topics()) == 1


def test_a_client_trusts_no_certificate_that_it_does_not_know(secured: ServerThread) -> None:
    with pytest.raises(ConnectionLost, match="certificates to trust"):
        kvstore.connect(secured.url, credentials=TOKEN)

    async def connect() -> None:
        await kvstore.aio.connect(secured.url, credentials=TOKEN)

    with pytest.raises(ConnectionLost, match="certificates to trust"):
        asyncio.run(connect())


def test_plain_text_and_tls_do_not_meet(
    plain: ServerThread, secured: ServerThread, pem: tuple[Path, ssl.SSLContext]
) -> None:
    for url in (
        plain.url.replace("kvmq://", "kvmq+tls://"),
        secured.url.replace("kvmq+tls://", "kvmq://"),
    ):
        tls = pem[0] if "tls" in url else None
        with pytest.raises(ConnectionLost):
            kvstore.connect(url, credentials=TOKEN, tls=tls)
    with kvstore.connect(secured.url, credentials=OWNER, tls=pem[0]) as client:
        assert len(client.topics()) == 1


def test_arguments_that_would_give_a_secret_away_are_refused(tmp_path: Path) -> None:
    secret = "not-to-be-shown-at-all"
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("kvmq://192.0.2.1:7", {"credentials": secret}),
        (f"kvmq://{secret}@example.org:7", {}),
        (f"kvmq+tls://{secret}@h", {}),
        (f"kvmq+tls://a:{secret}@h:99999", {}),
        (f"kvmq+tls://a:{secret}@[h:7", {}),
        (f"http://a:{secret}@h:7", {}),
        (f"kvmq+tls://h:7?token={secret}", {}),
        (f"kvmq+tls://h:7#{secret}", {}),
        (f"kvmq+tls://{secret}@h:7", {"credentials": secret}),
        ("kvmq://127.0.0.1:7", {"credentials": (secret, 5)}),
        ("kvmq://127.0.0.1:7", {"credentials": secret * 100}),
        ("kvmq://127.0.0.1:7", {"credentials": secret + "\n"}),
        ("kvmq://127.0.0.1:7", {"credentials": ""}),
        ("kvmq://127.0.0.1:7", {"tls": tmp_path}),
        ("kvmq+tls://127.0.0.1:7", {"tls": tmp_path / "none.pem"}),
    ]
    for url, given in wrong:
        with pytest.raises(CallerError) as refused:
            kvstore.connect(url, **given)
        assert secret not in str(refused.value), url
    address, proof = read_url(f"kvmq+tls://a:{secret}@h:7")
    assert secret not in f"{address} {proof!r} {proof}"


# --- credentials that change, and limits ---


def test_a_client_that_changed_proves_itself_anew_and_one_that_went_is_turned_out(
    store: Store, plain: ServerThread, access: AccessControl, file: Path
) -> None:
    with (
        kvstore.connect(plain.url, credentials=TOKEN) as shop,
        kvstore.connect(plain.url, credentials=BILLING) as billing,
        kvstore.connect(plain.url, credentials=OWNER) as owner,
    ):
        waiting = list[object]()

        def wait() -> None:
            try:
                waiting.append(billing.pop("g", "t", wait=60))
            except StoreError as e:
                waiting.append(e)

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: inside.waiting(store).topics)
        without = FILE.replace(f'secret = "{SECRET}"', 'secret = "another-secret-of-billing"')
        private_file(file, without.replace('"own*"', '"other"'))
        access.reload()
        thread.join(20)
        (found,) = waiting
        assert isinstance(found, NotAuthenticated)
        store.create_topic("other")
        shop.put("other", b"x")
        with pytest.raises(NotAllowed):
            shop.put("own-too", b"x")
        with pytest.raises(NotAuthenticated):
            billing.topics()
        assert len(owner.topics()) == 2


def test_credentials_that_expire_end_with_their_time(
    file: Path, store: Store, clock: VirtualClock
) -> None:
    private_file(
        file, FILE.replace('produce = ["t"', 'expires = 2023-11-15T00:00:00Z\nproduce = ["t"')
    )
    access = AccessControl(file, LocalFiles(), clock)
    with serving(store, LOOPBACK, access) as server:
        client = kvstore.connect(server.url, credentials=TOKEN)
        client.put("t", b"x")
        clock.advance(30 * 86_400)
        with pytest.raises(NotAuthenticated, match="expired"):
            client.put("t", b"x")
        client.close()


def test_a_client_above_its_limits_is_told_when_to_try_again_and_others_are_not(
    file: Path, store: Store, clock: VirtualClock
) -> None:
    limits = "\n[limits]\nclient_requests = 5\nclient_connections = 1\nrequest_bytes = 5000\n"
    private_file(file, FILE + limits)
    access = AccessControl(file, LocalFiles(), clock)
    with serving(store, LOOPBACK, access, clock=clock) as server:
        with (
            kvstore.connect(server.url, credentials=TOKEN) as shop,
            kvstore.connect(server.url, credentials=OWNER) as owner,
        ):
            with pytest.raises(LimitExceeded, match="1 connections, its limit"):
                kvstore.connect(server.url, credentials=TOKEN)
            with pytest.raises(MessageTooLarge, match=r"never fits: .* is 5000"):
                shop.put("t", bytes(6000))
            for _ in range(5):
                shop.put("t", b"x")
            with pytest.raises(LimitExceeded) as above:
                shop.put("t", b"x")
            assert 0 < above.value.retry_after <= 0.4
            owner.put("t", b"x")
            clock.advance(1)
            shop.put("t", b"x")
        assert store.bounds("t", 0).next_offset == 7
        with kvstore.connect(server.url, credentials=TOKEN, reconnect_for=5):
            pass


def test_a_session_belongs_to_the_client_that_began_it(plain: ServerThread) -> None:
    port = int(plain.url.rpartition(":")[2])
    key = bytes(16)

    def hello(token: str) -> bytes:
        with socket.create_connection(("127.0.0.1", port), 20) as raw:
            raw.sendall(framed(HELLO, NAME, VERSION, key, 0, token))
            return raw.recv(1000)

    assert hello(OWNER)[8:20] != b""
    first, foreign = hello(OWNER), hello(TOKEN)
    # The fourth element of a welcome says whether the session was known.
    at = first.index(b"\xa4kvmq") + 6
    assert first[at : at + 1] == b"\xc3"
    assert foreign[at : at + 1] == b"\xc2"


# --- the right of each call ---


def receipt_of(store: Store) -> str:
    store.put("t", b"x")
    (popped,) = store.pop("g", "t", invisible_for=600)
    return popped.receipt


ARGUMENTS: Final[dict[str, Callable[[Store], tuple[Any, ...]]]] = {
    "put_batch": lambda s: ([Message("t", b"x")],),
    "put_columns": lambda s: ("t", pyarrow.record_batch({"body": [b"x"]})),
    "topic": lambda s: ("t",),
    "group": lambda s: ("g",),
    "pop": lambda s: ("g", ["t", "own*"]),
    "commit_offsets": lambda s: ([("g", "t", 0, 0)],),
    **dict.fromkeys(
        ("ack_batch", "undo_pop", "change_invisible_batch"), lambda s: ([receipt_of(s)],)
    ),
    **dict.fromkeys(("change_invisible", "give_up"), lambda s: (receipt_of(s),)),
    "renew_batch": lambda s: ([receipt_of(s)], 5.0),
    "nack_batch": lambda s: ([Nack(receipt_of(s))],),
    "lag": lambda s: ("g",),
    "in_flight": lambda s: ("g", "t"),
    "group_stats": lambda s: ("g",),
    "group_topics": lambda s: ("g",),
    "redrive": lambda s: ("g",),
    **dict.fromkeys(("create_group", "alter_group", "delete_group"), lambda s: ("g",)),
    "create_topics": lambda s: ([TopicConfig(name="new")],),
    "create_groups": lambda s: ([GroupConfig(name="new")],),
    "delete_groups": lambda s: (["g"],),
    "delete_topics": lambda s: (["t"],),
    "create_namespace": lambda s: ("n",),
    "delete_namespace": lambda s: ("n",),
    **dict.fromkeys(("get", "offset_at"), lambda s: ("t", 0, 0)),
    **dict.fromkeys(("pull", "pull_columns"), lambda s: ("t", 0, 0)),
    "bounds": lambda s: ("t", 0),
    "query": lambda s: ("t", "key"),
    "commit_offset": lambda s: ("g", "t", 0, 0),
    **dict.fromkeys(("committed_offset", "offset_history"), lambda s: ("g", "t", 0)),
    "reset_offset": lambda s: ("g", "t"),
    **dict.fromkeys(("create_topic", "alter_topic", "delete_topic"), lambda s: ("t",)),
    "schedule": lambda s: ("name", "t", b""),
    **dict.fromkeys(
        ("schedule_info", "next_firings", "pause_schedule", "resume_schedule", "delete_schedule"),
        lambda s: ("name",),
    ),
    "read_at": lambda s: (0,),
    **dict.fromkeys(
        ("import_rocketmq_config", "export_rocketmq", "export_rocketmq_store"),
        lambda s: ("/nowhere",),
    ),
}  # fmt: skip
"""The arguments of calls that name something, for a client without rights."""
NAMED: Final[dict[str, dict[str, Any]]] = {
    "prepare_batch": {"group": "pay"},
    "change_delay": {"delay": 5.0},
    "change_delay_in": {"delay": 5.0},
}
LISTS: Final = frozenset(
    {"topics", "topics_of", "groups", "groups_of", "schedules", "schedules_in", "timers",
     "timers_in", "transactions", "transactions_in"}
)  # fmt: skip
OF_IDS: Final = frozenset(
    {"find", "find_in", "timer", "timer_in", "cancel", "cancel_in", "change_delay",
     "change_delay_in", "prepared", "prepared_in", "commit", "commit_batch", "commit_in",
     "rollback", "rollback_batch", "rollback_in"}
)  # fmt: skip


def wanted_of(store: Store, method: str) -> tuple[Any, ...]:
    """The arguments of a call that would do, or show, something."""
    if method in ARGUMENTS:
        return ARGUMENTS[method](store)
    if method == "prepare_batch":
        return ([Message("t", b"x")],)
    namespace = ("n",) if method.endswith(("_in", "_of")) else ()
    if method not in OF_IDS:
        return namespace
    topic = "n%t" if namespace else "t"
    if method.startswith("find"):
        found = store.put(topic, b"x").message_id
    elif method.startswith(("commit", "rollback", "prepared")):
        found = store.prepare(topic, b"x", group="pay").message_id
    else:
        found = store.put(topic, b"x", delay=600).message_id
    return (
        *namespace,
        [found] if method.endswith(("_batch", "commit_in", "rollback_in")) else found,
    )


def there(store: Store) -> tuple[Any, ...]:
    """All that a call could change."""
    stats = store.group_stats("g", "t")[0]
    return (
        store.topics(), store.groups(), store.namespaces(), store.schedules(), stats.in_flight,
        store.timers().count, store.transactions().count, store.bounds("t", 0),
        store.committed_offset("g", "t", 0),
    )  # fmt: skip


@pytest.mark.parametrize("method", sorted(REPEATS))
def test_each_call_of_the_table_needs_a_right(
    store: Store, plain: ServerThread, method: str
) -> None:
    store.create_namespace("n", topics=[TopicConfig(name="t", queues=1)])
    store.put("t", b"x", keys=["key"])
    given, named = wanted_of(store, method), NAMED.get(method, {})
    before = there(store)
    with kvstore.connect(plain.url, credentials=NOBODY) as nobody:
        if method in LISTS:
            found = getattr(nobody, method)(*given, **named)
            assert not getattr(found, "messages", getattr(found, "transactions", found))
        elif method == "on_check":
            with pytest.raises(NotAllowed):
                nobody.on_check("pay", lambda message: "commit")
        else:
            with pytest.raises(MessageNotFound if method in OF_IDS else NotAllowed):
                getattr(nobody, method)(*given, **named)
    assert there(store) == before


OF_NAMES: Final[dict[str, tuple[Any, ...]]] = {
    **dict.fromkeys(("timers", "schedules"), ("t",)),
    **dict.fromkeys(("timers_in", "schedules_in"), ("n", "n%t")),
    **dict.fromkeys(("topics_of", "groups_of"), ("n",)),
    "transactions": ("pay",),
    "transactions_in": ("n", "n%pay"),
    "create_topics": ([TopicConfig(name="t")],),
    "create_groups": ([GroupConfig(name="g")],),
    "on_check": ("pay", lambda message: "commit"),
}
"""The arguments of calls that may name what is there, beside those of `wanted_of`."""
ABSENT: Final = {
    "t": "absent-topic", "n%t": "n%absent-topic", "g": "absent-group", "n": "absent-namespace",
    "pay": "absent-producers", "n%pay": "n%absent-producers", "name": "absent-schedule",
}  # fmt: skip


def renamed(value: Any) -> Any:
    """Arguments with other names, which are nowhere."""
    if isinstance(value, list | tuple):
        return type(value)(map(renamed, value))
    if isinstance(value, Message):
        return Message(renamed(value.topic), value.body)
    if isinstance(value, TopicConfig | GroupConfig):
        return type(value)(name=renamed(value.name))
    if isinstance(value, str) and len(value) == 32:
        return "0" * 32  # a message's id
    return ABSENT.get(value, value) if isinstance(value, str) else value


def told(call: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> str:
    """All that a call says, with the names that are nowhere written as those that are there."""
    try:
        found = call(*given, **named)
    except StoreError as e:
        said = f"{type(e).__name__}: {e}"
    else:
        if hasattr(found, "close"):
            found.close()  # a checker
            found = type(found)
        said = f"{type(found).__name__}: {found}"
    for there, absent in ABSENT.items():
        said = said.replace(absent, there)
    ids = [one for one in (given, *given) for one in (one if isinstance(one, list) else [one])]
    for one in ids:
        if isinstance(one, str) and len(one) == 32:
            said = said.replace(one, "ID")
    return said


@pytest.mark.parametrize("method", sorted(REPEATS))
def test_a_stranger_is_told_the_same_of_what_is_there_and_of_what_is_not(
    store: Store, plain: ServerThread, method: str
) -> None:
    store.create_topic("mine", queues=1)
    store.create_namespace("n", topics=[TopicConfig(name="t", queues=1)])
    store.schedule("name", "t", b"hidden", every=3600)
    for topic in ("t", "n%t"):
        store.put_batch([Message(topic, b"hidden", keys=["key"], delay=600)] * 7)
        store.prepare(topic, b"hidden", group="pay")
    given = OF_NAMES[method] if method in OF_NAMES else wanted_of(store, method)
    named = NAMED.get(method, {})
    before = there(store)
    with kvstore.connect(plain.url, credentials=STRANGER) as stranger:
        call = getattr(stranger, method)
        found = told(call, given, named)
        assert told(call, renamed(given), named) == found
        for number in ("7", "8"):
            assert f"count={number}" not in found
        assert "hidden" not in found
    assert there(store) == before


OWNS: Final = frozenset(REPEATS) - {
    # Their arguments are of what is not there, or they take the store away from the test.
    "schedule", "schedule_info", "next_firings", "pause_schedule", "resume_schedule",
    "delete_schedule", "read_at", "import_rocketmq_config", "export_rocketmq", "reset_offset",
    "export_rocketmq_store", "on_check", "create_topic", "create_group", "delete_namespace",
    "create_namespace",
}  # fmt: skip


@pytest.mark.parametrize("method", sorted(OWNS))
def test_a_client_with_all_rights_may_make_each_call(
    store: Store, plain: ServerThread, method: str
) -> None:
    store.create_namespace("n", topics=[TopicConfig(name="t", queues=1)])
    store.put("t", b"x", keys=["key"])
    given, named = wanted_of(store, method), NAMED.get(method, {})
    with kvstore.connect(plain.url, credentials=OWNER) as owner:
        getattr(owner, method)(*given, **named)


def test_the_work_of_tiering_is_for_those_that_may_administer_the_store(
    plain: ServerThread, tmp_path: Path
) -> None:
    policy = tiering.Policy(hot_for=1, warm=str(tmp_path / "archive"))
    with kvstore.connect(plain.url, credentials=TOKEN) as shop, pytest.raises(NotAllowed):
        tiering.ServedWorker(shop, policy).run_once()


def test_rights_are_of_topics_and_groups(store: Store, plain: ServerThread) -> None:
    for name in ("own-1", "hidden"):
        store.create_topic(name, queues=1)
    store.create_group("other")
    hidden = store.put("hidden", b"x")
    with (
        kvstore.connect(plain.url, credentials=TOKEN) as shop,
        kvstore.connect(plain.url, credentials=BILLING) as billing,
    ):
        assert [t.name for t in shop.topics()] == ["own-1", "t"]
        assert shop.groups() == []
        assert [g.name for g in billing.groups()] == ["g"]
        own = shop.put("own-1", b"x")
        assert billing.find(own.message_id).body == b"x"
        with pytest.raises(MessageNotFound):
            billing.find(hidden.message_id)
        for topic in ("hidden", ["t", "hidden"], ["*"], "h*", "o*", "%DLQ%other"):
            with pytest.raises(NotAllowed):
                billing.pop("g", topic)
        with pytest.raises(NotAllowed, match="group other"):
            billing.pop("other", "t")
        with pytest.raises(NotAllowed):
            shop.put_batch([Message("t", b"x"), Message("hidden", b"x")])
        (popped,) = billing.pop("g", "own*")
        foreign = store.pop("other", "t", wait=0) or store.pop("other", "hidden")
        with pytest.raises(NotAllowed):
            billing.ack_batch([popped.receipt, foreign[0].receipt])
        billing.nack(popped.receipt, 0.0)
        waits = store.put("hidden", b"x", delay=600)
        with pytest.raises(MessageNotFound):
            shop.cancel(waits.message_id)
        # Not even to a topic from which it may consume: it may never come there.
        undecided = store.prepare("own-1", b"x", group="pay")
        with pytest.raises(MessageNotFound):
            billing.find(undecided.message_id)
        assert store.find(undecided.message_id).body == b"x"
        assert shop.timers().messages == []
        mine = shop.put("own-1", b"x", delay=600)
        assert shop.cancel(mine.message_id)
    assert store.bounds("t", 0).next_offset == 0


def test_a_prepared_message_is_ended_by_those_that_may_send_to_its_topic(
    store: Store, plain: ServerThread
) -> None:
    store.create_topic("hidden", queues=1)
    with kvstore.connect(plain.url, credentials=TOKEN) as shop:
        other = store.prepare_batch([Message("hidden", b"x", message_id="SAME")], group="pay")[0]
        with pytest.raises(MessageNotFound):
            shop.commit(other)
        own = shop.prepare_batch([Message("t", b"x", message_id="SAME")], group="pay")[0]
        # A result that was changed: the id is its own message's, and the place is another's.
        fields = {name: getattr(own, name) for name in PutResult.__match_args__}
        forged = PutResult(**{**fields, "position": other.position})
        with pytest.raises(MessageNotFound):
            shop.commit(forged)
        assert shop.commit(own).topic == "t"
        assert store.bounds("hidden", 0).next_offset == 0
        assert store.transactions().count == 1
        with shop.transaction(group="pay") as block:
            block.put("t", b"y")
    assert store.bounds("t", 0).next_offset == 2


def test_a_checker_is_asked_about_its_own_topics_and_holds_up_no_others(
    store: Store, plain: ServerThread, clock: VirtualClock
) -> None:
    asked = list[tuple[str, bytes]]()

    def asks(name: str) -> Callable[[StoredMessage], Answer]:
        def ask(message: StoredMessage) -> Answer:
            asked.append((name, message.body))
            return "commit"

        return ask

    store.create_topic("mine", queues=1)
    with (
        kvstore.connect(plain.url, credentials=STRANGER) as stranger,
        kvstore.connect(plain.url, credentials=TOKEN) as shop,
    ):
        stranger.on_check("pay", asks("stranger"))
        for n in range(3):
            shop.prepare("t", b"%d" % n, group="pay")
        stranger.prepare("mine", b"own", group="pay")
        for _ in range(2 * store.config.transaction_checks):
            clock.advance(store.config.transaction_check_interval + 10)
            inside.look_for_questions(store)
        until(lambda: len(asked) == 1)
        until(lambda: store.transactions().count == 3)  # the answer came
        waiting = store.transactions().messages
        assert [(one.message.body, one.checks) for one in waiting] == [
            (b"0", 0), (b"1", 0), (b"2", 0)
        ]  # fmt: skip
        shop.on_check("pay", asks("shop"))
        inside.look_for_questions(store)
        until(lambda: len(asked) == 4)
        until(lambda: store.transactions().count == 0)
    assert sorted(asked) == [("shop", b"0"), ("shop", b"1"), ("shop", b"2"), ("stranger", b"own")]
    assert store.bounds("t", 0).next_offset == 3


# --- secrets stay where they are ---


def test_no_secret_is_in_logs_errors_metrics_or_representations(
    plain: ServerThread, access: AccessControl, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = list[object]()
    port = int(plain.url.rpartition(":")[2])
    wrong = (
        framed(HELLO, NAME, VERSION, bytes(3), 0, TOKEN),
        framed(HELLO, NAME, VERSION, bytes(16), TOKEN, TOKEN),
        framed(HELLO, NAME, VERSION, bytes(16), 0, {"token": TOKEN}),
        framed(HELLO, NAME, VERSION, bytes(16), 0, [*BILLING, OWNER]),
        framed(HELLO, NAME, TOKEN, bytes(16), 0, TOKEN),
        framed(HELLO, TOKEN, VERSION, bytes(16), 0, TOKEN),
        framed(TOKEN, NAME, VERSION),
        framed({"hello": TOKEN}),
        framed(HELLO, NAME, VERSION + 1, bytes(16), 0, TOKEN),
    )
    with caplog.at_level(logging.DEBUG):
        for data in wrong:
            with socket.create_connection(("127.0.0.1", port), 20) as raw:
                raw.sendall(data)
                while got := raw.recv(10_000):
                    seen.append(got)
        for given in ("not " + TOKEN, ("billing-1", "not " + SECRET)):
            with pytest.raises(NotAuthenticated) as refused:
                kvstore.connect(plain.url, credentials=given)
            seen.append(refused.value.args)
        client = kvstore.connect(plain.url, credentials=BILLING)
        with pytest.raises(NotAllowed) as not_allowed:
            client.put("t", b"x")
        seen += [not_allowed.value.args, vars(not_allowed.value), all_shown(client, access)]
        client.close()
        private_file(file, FILE.replace("the-", "other-"))
        access.reload()
        seen += [all_shown(access)]
    text = f"{seen!r} {caplog.text}"
    assert "Secret(…)" in text
    assert "billing" in text
    for secret in SECRETS:
        assert secret not in text
        assert secret.replace("the-", "other-") not in text
