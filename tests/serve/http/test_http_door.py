"""The HTTP door: health, metrics, who may see the admin page, and who may change the store."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvstore import Message, Store, StoreConfig
from kvstore.errors import AddressInUse, ExposureRefused
from kvstore.files import LocalFiles
from kvstore.serve.access.credentials import sha256_of
from kvstore.serve.access.exposure import tls_context
from kvstore.serve.access.limits import AccessLimits
from kvstore.serve.http import http_door, page_sessions
from kvstore.serve.http.admin_changes import CHANGES
from tests.serve.http.serving import Answer, Serving, serving
from tests.support.certificates import make_certificate
from tests.support.clock import VirtualClock
from tests.support.private_files import private_file
from tests.support.stores import Opens
from tests.support.waiting import until

ADMIN, SHOP, SCRAPER = "kvmq_admin-token", "kvmq_shop-token", "kvmq_scraper-token"
READER, MAKER, ANALYST = "kvmq_reader-token", "kvmq_maker-token", "kvmq_analyst-token"
SECRETS = (ADMIN, SHOP, SCRAPER, READER, MAKER, ANALYST)
FILE = f"""
[[clients]]
name = "operator"
token_sha256 = "{sha256_of(ADMIN)}"
admin = ["*"]

[[clients]]
name = "shop"
token_sha256 = "{sha256_of(SHOP)}"
admin = ["orders*"]
produce = ["*"]

[[clients]]
name = "prometheus"
token_sha256 = "{sha256_of(SCRAPER)}"
metrics = true

[[clients]]
name = "reader"
token_sha256 = "{sha256_of(READER)}"
consume = ["orders*"]
groups = ["billing"]

[[clients]]
name = "maker"
token_sha256 = "{sha256_of(MAKER)}"
produce = ["*"]

[[clients]]
name = "analyst"
token_sha256 = "{sha256_of(ANALYST)}"
consume = ["orders"]
metrics = true
"""


@pytest.fixture
def store(opens: Opens, clock: VirtualClock) -> Store:
    """A store with two dead letters of a group, and something of each kind that waits."""
    store = opens(StoreConfig(segment_size=1 << 20, clock=clock))
    store.create_topic("orders", queues=2)
    store.create_topic("paid", kind="transaction")
    store.create_group("billing", max_attempts=1)
    store.put_batch([Message("orders", b"box %d" % n, keys=["o-1"]) for n in range(4)])
    for popped in store.pop("billing", "orders", limit=2):
        store.change_invisible(popped.receipt, 0)
    clock.advance(1)
    store.pop("billing", "orders", limit=1)
    store.put("orders", b"later", delay=600)
    store.prepare("paid", b"maybe", group="pay")
    store.schedule("nightly", "orders", b"count", cron="0 4 * * *")
    return store


@pytest.fixture
def served(store: Store, clock: VirtualClock) -> Iterator[Serving]:
    with serving(store, clock) as found:
        yield found


@pytest.fixture
def guarded(store: Store, clock: VirtualClock, tmp_path: Path) -> Iterator[Serving]:
    """A door with credentials."""
    with serving(store, clock, credentials=credentials(tmp_path)) as found:
        yield found


def credentials(folder: Path) -> Path:
    return private_file(folder / "credentials.toml", FILE)


def session_of(answer: Answer) -> str:
    return answer.headers["set-cookie"].partition(";")[0]


def token_of(answer: Answer) -> str:
    found = re.search(r'name="kvmq-token" content="([^"]+)"', answer.text)
    assert found is not None
    return found[1]


def change(served: Serving, name: str, given: object, **headers: str) -> Answer:
    return served.ask(f"/do/{name}", json.dumps(given), **headers)


# --- health and metrics ---


def test_health_and_readiness_say_up_and_ready(served: Serving) -> None:
    assert served.ask("/healthz").text == "up\n"
    assert served.ask("/readyz").text == "ready\n"


def test_a_closed_store_is_neither_up_nor_ready(served: Serving, store: Store) -> None:
    store.close()
    assert [served.ask(path).status for path in ("/healthz", "/readyz")] == [503, 503]
    assert served.ask("/").status == 503


def test_health_needs_no_credentials_and_says_no_more(guarded: Serving) -> None:
    assert guarded.ask("/healthz").text == "up\n"
    assert guarded.ask("/readyz").text == "ready\n"


def test_metrics_are_read_by_prometheus_and_count_their_own_calls(served: Serving) -> None:
    served.ask("/metrics")
    answer = served.ask("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples = [s for f in text_string_to_metric_families(answer.text) for s in f.samples]
    found = {s.name: s.value for s in samples}
    assert found["kvmq_delayed_messages"] == 2.0
    assert found["kvmq_server_connections"] == 1.0
    assert found["process_resident_memory_bytes"] > 0
    calls = [s for s in samples if s.name == "kvmq_server_calls_total"]
    assert {s.labels["call"]: s.value for s in calls} == {"metrics": 1}


def test_metrics_need_a_client_that_may_read_them(guarded: Serving) -> None:
    assert guarded.ask("/metrics").status == 401
    assert guarded.ask("/metrics").headers["www-authenticate"] == "Bearer"
    for token, status in ((SCRAPER, 200), (ADMIN, 200), (SHOP, 403), ("kvmq_wrong", 401)):
        assert guarded.ask("/metrics", authorization=f"Bearer {token}").status == status
    assert guarded.ask("/", authorization=f"Bearer {SCRAPER}").status == 403


# --- who may see the page ---


def test_a_browser_signs_in_with_a_token_in_a_forms_body(guarded: Serving) -> None:
    before = guarded.ask("/topics", accept="text/html")
    assert (before.status, before.headers["location"]) == (303, "/sign-in")
    answer = guarded.ask("/sign-in", f"token={ADMIN}")
    assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    page = guarded.ask("/topics", cookie=session_of(answer))
    assert page.status == 200
    assert "operator" in page.text
    out = guarded.ask("/sign-out", "", cookie=session_of(answer))
    assert out.headers["location"] == "/sign-in"
    assert guarded.ask("/topics", cookie=session_of(answer)).status == 401


@pytest.mark.parametrize("token", [MAKER, SCRAPER, "kvmq_wrong", "", "%ff"])
def test_a_token_that_may_see_nothing_does_not_sign_in(guarded: Serving, token: str) -> None:
    answer = guarded.ask("/sign-in", f"token={token}")
    assert answer.status == 403
    assert "set-cookie" not in answer.headers


def test_many_failed_sign_ins_have_to_wait(guarded: Serving, clock: VirtualClock) -> None:
    statuses = [guarded.ask("/sign-in", "token=guess").status for _ in range(12)]
    assert statuses == [403] * 10 + [429] * 2
    clock.advance(3)
    assert guarded.ask("/sign-in", f"token={ADMIN}").status == 303


def test_a_session_ends_after_its_time(guarded: Serving, clock: VirtualClock) -> None:
    session = session_of(guarded.ask("/sign-in", f"token={ADMIN}"))
    clock.advance(12 * 3600 - 1)
    assert guarded.ask("/", cookie=session).status == 200
    clock.advance(1)
    assert guarded.ask("/", cookie=session).status == 401


def test_of_too_many_sessions_the_oldest_ends(
    guarded: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_sessions, "SESSIONS_MAX", 2)
    sessions = [session_of(guarded.ask("/sign-in", f"token={ADMIN}")) for _ in range(3)]
    assert [guarded.ask("/", cookie=one).status for one in sessions] == [401, 200, 200]


def test_a_program_with_a_token_gets_no_session(guarded: Serving) -> None:
    answer = guarded.ask("/topics", authorization=f"Bearer {ADMIN}")
    assert answer.status == 200
    assert "set-cookie" not in answer.headers


def test_a_client_above_its_limit_is_told_to_wait(
    store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    limits = AccessLimits(client_requests=3)
    with serving(store, clock, credentials=credentials(tmp_path), limits=limits) as found:
        asked = [found.ask("/live", authorization=f"Bearer {ADMIN}") for _ in range(4)]
        assert [a.status for a in asked] == [200] * 3 + [429]
        assert int(asked[-1].headers["retry-after"]) >= 1
        assert found.ask("/metrics", authorization=f"Bearer {SCRAPER}").status == 200


# --- changes ---


def test_a_change_needs_the_pages_own_token(served: Serving, store: Store) -> None:
    page = served.ask("/timers")
    session, token = session_of(page), token_of(page)
    delayed = store.timers("orders").messages[0].message_id
    given = {"id": delayed}
    for headers in ({}, {"cookie": session}, {"x_kvmq_token": token},
                    {"cookie": session, "x_kvmq_token": "wrong"},
                    {"cookie": "kvmq_session=wrong", "x_kvmq_token": token}):  # fmt: skip
        answer = change(served, "cancel", given, **headers)
        assert answer.status == 403, headers
    assert store.timers("orders").count == 2
    answer = change(served, "cancel", given, cookie=session, x_kvmq_token=token)
    assert "will not be delivered" in json.loads(answer.text)["done"]
    assert store.timers("orders").count == 1


@pytest.mark.parametrize(
    "headers",
    [{"origin": "https://evil.example"}, {"origin": "null"}, {"sec_fetch_site": "cross-site"},
     {"sec_fetch_site": "same-site"}],
)  # fmt: skip
def test_a_page_of_another_site_changes_nothing(
    served: Serving, store: Store, headers: dict[str, str]
) -> None:
    page = served.ask("/")
    named = {"cookie": session_of(page), "x_kvmq_token": token_of(page), **headers}
    answer = change(served, "pause", {"name": "nightly"}, **named)
    assert answer.status == 403
    assert not store.schedule_info("nightly").is_paused


def test_every_change_does_what_its_button_says(guarded: Serving, store: Store) -> None:
    bearer = {"authorization": f"Bearer {ADMIN}"}

    def done(asked: str, /, **given: str) -> str:
        answer = change(guarded, asked, given, **bearer)
        assert answer.status == 200, answer.text
        told: str = json.loads(answer.text)["done"]
        return told

    prepared = store.transactions().messages[0].message_id
    assert store.group_stats("billing", "orders")[0].dead_letters == 2
    assert done("redrive", group="billing").startswith("2 dead letters")
    assert store.group_stats("billing", "orders")[0].dead_letters == 0
    assert done("commit", id=prepared).startswith("committed to paid")
    again = store.prepare("paid", b"no", group="pay").message_id
    assert done("rollback", id=again).endswith("was rolled back")
    assert store.transactions().count == 0
    assert done("pause", name="nightly") == "schedule nightly is paused"
    assert store.schedule_info("nightly").is_paused
    assert done("resume", name="nightly") == "schedule nightly goes on"
    assert done("delete-schedule", name="nightly") == "schedule nightly was deleted"
    assert store.schedules() == []


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [("redrive", '{"group": "none"}', 404), ("pause", '{"name": "none"}', 404),
     ("resume", '{"name": "none"}', 404), ("delete-schedule", '{"name": "none"}', 404),
     ("redrive", "{}", 400), ("redrive", "[]", 400),
     ("redrive", '{"group": 3}', 400), ("redrive", "not JSON", 400), ("unknown", "{}", 404),
     ("cancel", '{"id": "0"}', 404), ("commit", '{"id": "x"}', 404),
     ("redrive", '{"group": "' + "x" * 70_000 + '"}', 413)],
)  # fmt: skip
def test_a_wrong_change_is_refused_and_says_why(
    served: Serving, name: str, body: str, status: int
) -> None:
    page = served.ask("/")
    named = {"cookie": session_of(page), "x_kvmq_token": token_of(page)}
    answer = served.ask(f"/do/{name}", body, **named)
    assert (answer.status, len(json.loads(answer.text)["error"]) > 10) == (status, True)


def test_a_client_without_the_right_changes_nothing(guarded: Serving, store: Store) -> None:
    for token in (SHOP, SCRAPER, READER, MAKER, "kvmq_wrong"):
        answer = change(guarded, "pause", {"name": "nightly"}, authorization=f"Bearer {token}")
        assert answer.status in (401, 403)
    assert not store.schedule_info("nightly").is_paused


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_each_change_needs_the_right_the_session_and_the_token(
    guarded: Serving, store: Store, name: str
) -> None:
    """Of each the same rule; the browser's tests see that the page asks before it sends one."""
    given = {"group": "billing", "name": "nightly", "id": store.timers().messages[0].message_id}
    page = guarded.ask("/timers", cookie=session_of(guarded.ask("/sign-in", f"token={ADMIN}")))
    session, token = session_of(guarded.ask("/sign-in", f"token={ADMIN}")), token_of(page)
    reader = session_of(guarded.ask("/sign-in", f"token={READER}"))
    readers = token_of(guarded.ask("/topics", cookie=reader))
    for headers, status in (
        ({}, 401), ({"cookie": session}, 403), ({"x_kvmq_token": token}, 401),
        ({"cookie": session, "x_kvmq_token": token}, 403),  # of another session
        ({"cookie": reader, "x_kvmq_token": readers}, 403),
    ):  # fmt: skip
        assert change(guarded, name, given, **headers).status == status, headers
    assert store.timers().count == 2
    assert not store.schedule_info("nightly").is_paused
    assert store.group_stats("billing", "orders")[0].dead_letters == 2


def test_a_change_is_not_made_by_a_link(served: Serving) -> None:
    assert served.ask("/do/redrive?group=billing").status == 405


# --- what clients with fewer rights see ---


@pytest.fixture
def shared(guarded: Serving, store: Store) -> Serving:
    """With topics and groups of others, beside those of the reader."""
    store.create_topic("secret", queues=1)
    store.create_group("audit")
    store.put_batch([Message("secret", b"secret-body", keys=["k"])] * 2)
    store.put("orders", b"order-body")
    store.pop("audit", "secret")
    store.pop("audit", "orders")
    store.pop("billing", "secret")
    store.put("secret", b"secret-body", delay=600)
    store.schedule("secret-schedule", "secret", b"secret-body", every=60.0)
    return guarded


def as_client(served: Serving, path: str, token: str) -> Answer:
    return served.ask(path, authorization=f"Bearer {token}", accept="text/html")


@pytest.mark.parametrize("token", [READER, SHOP])
@pytest.mark.parametrize(
    "path",
    ["/topics", "/groups", "/messages", "/in-flight", "/dead-letters", "/timers", "/transactions",
     "/schedules"],
)  # fmt: skip
def test_a_list_has_no_word_of_what_its_client_may_not_see(
    shared: Serving, path: str, token: str
) -> None:
    answer = as_client(shared, path, token)
    assert answer.status == 200
    for word in ("secret", "audit", "paid", "data-change"):
        assert word not in answer.text
    assert "secret" in as_client(shared, "/topics", ADMIN).text


@pytest.mark.parametrize(
    "path",
    ["/", "/tiers", "/live", "/topic?topic=secret", "/topic?topic=nowhere", "/group?group=audit",
     "/group?group=nobody", "/messages?topic=secret&key=k", "/messages?topic=secret&offset=0",
     "/message?topic=secret&queue=0&offset=0", "/in-flight?group=audit", "/timers?topic=secret",
     "/in-flight?group=billing&topic=secret"],
)  # fmt: skip
def test_a_page_out_of_sight_is_refused_whether_its_subject_is_there_or_not(
    shared: Serving, path: str
) -> None:
    answer = as_client(shared, path, READER)
    if path == "/":
        assert (answer.status, answer.headers["location"]) == (303, "/topics")
    else:
        assert answer.status == 403
        assert "secret" not in answer.text


@pytest.mark.parametrize("path", ["/timers", "/transactions"])
def test_the_messages_out_of_sight_fill_no_page(shared: Serving, store: Store, path: str) -> None:
    store.put_batch([Message("secret", b"secret-body", delay=1)] * 150)
    store.prepare_batch([Message("secret", b"secret-body")] * 150, group="p", immunity=1)
    store.prepare("orders", b"later", group="p", immunity=100)
    page = as_client(shared, path, READER).text
    assert "later" in page
    assert "Later ones" not in page
    assert "<small>15" not in page
    whole = as_client(shared, path, ADMIN).text
    assert "Later ones" in whole
    assert "<small>15" in whole


def test_a_message_out_of_sight_is_not_found_by_its_id(shared: Serving, store: Store) -> None:
    (hidden,) = store.query("secret", "k", limit=1)
    shown = store.get("orders", 0, 0)
    there = as_client(shared, f"/messages?id={hidden.message_id}", READER)
    gone = as_client(shared, "/messages?id=7F00000100002A9F0000000000001000", READER)
    assert (there.status, gone.status) == (404, 404)
    assert there.text == gone.text
    assert shown.message_id not in there.text
    assert as_client(shared, f"/messages?id={shown.message_id}", READER).status == 200


def test_a_reader_sees_its_own(shared: Serving, store: Store) -> None:
    assert "orders" in as_client(shared, "/topics", READER).text
    assert "box 0" in as_client(shared, "/topic?topic=orders", READER).text
    groups = as_client(shared, "/groups", READER).text
    assert "billing" in groups
    assert "orders" in groups
    letters = as_client(shared, "/dead-letters", READER).text
    assert letters.count("box ") == 2
    assert "later" in as_client(shared, "/timers", READER).text
    assert "nightly" in as_client(shared, "/schedules", READER).text
    flying = as_client(shared, "/in-flight?group=billing", READER).text
    assert "box " in flying
    assert "secret" not in flying
    shop = as_client(shared, "/topics", SHOP)
    assert "orders" in shop.text


def test_figures_of_the_whole_take_the_right_to_read_metrics(shared: Serving) -> None:
    for path in ("/", "/tiers", "/live"):
        assert as_client(shared, path, ANALYST).status == 200
    assert "secret" not in as_client(shared, "/topics", ANALYST).text
    assert as_client(shared, "/topic?topic=secret", ANALYST).status == 403
    assert as_client(shared, "/", SCRAPER).status == 403


def test_a_reader_signs_in_and_is_led_to_what_it_sees(shared: Serving) -> None:
    session = session_of(shared.ask("/sign-in", f"token={READER}"))
    assert shared.ask("/", cookie=session).headers["location"] == "/topics"
    page = shared.ask("/topics", cookie=session).text
    assert ">Topics</a>" in page
    assert ">Tiers</a>" not in page
    assert ">Overview</a>" not in page


def test_messages_in_flight_are_listed_a_page_at_a_time(
    served: Serving, store: Store, clock: VirtualClock
) -> None:
    store.create_topic("many", queues=1)
    store.alter_group("billing", max_attempts=5)
    store.put_batch([Message("many", b"many-%03d" % n) for n in range(150)])
    (first,) = store.pop("billing", "many")
    store.nack(first.receipt, delay=0.0, reason="<b>the bank</b>")
    clock.advance(1)
    store.pop("billing", "many", limit=150, invisible_for=100)
    page = served.ask("/in-flight").text
    assert 'href="/in-flight?group=billing&amp;topic=many"' in page
    page = served.ask("/in-flight?group=billing&topic=many").text
    assert page.count("many-") == 100
    last = re.search(r"after=([0-9-]+)\"", page)
    assert last is not None
    rest = served.ask(f"/in-flight?group=billing&topic=many&after={last[1]}").text
    assert (rest.count("many-"), "Later ones" in rest) == (50, False)
    assert "&lt;b&gt;the bank&lt;/b&gt;" in page + rest


# --- pages ---


PAGES = ["/", "/topics", "/topic?topic=orders", "/groups", "/group?group=billing", "/messages",
         "/messages?topic=orders&key=o-1", "/messages?topic=orders&queue=1&offset=0",
         "/message?topic=orders&queue=0&offset=0", "/dead-letters", "/in-flight",
         "/in-flight?group=billing", "/in-flight?group=billing&topic=orders",
         "/timers?topic=orders", "/timers", "/transactions",
         "/schedules", "/tiers", "/sign-in"]  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_whole_and_forbids_what_it_does_not_need(served: Serving, path: str) -> None:
    answer = served.ask(path)
    assert answer.status == 200
    assert answer.text.rstrip().endswith("</html>")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(
        r"<script(?! type=\"module\" src=)|\son\w+=|\sstyle=|javascript:", answer.text
    )


def test_hostile_texts_are_shown_and_not_run(served: Serving, store: Store) -> None:
    evil = '"><script>alert(1)</script>\u202e{{1234*1000}}'
    result = store.put("orders", evil.encode(), tag="<b>", keys=["<i>"], properties={"<u>": evil})
    paths = (f"/message?topic=orders&queue={result.queue}&offset={result.offset}",
             "/topic?topic=orders", f"/topics?find={quote(evil)}", f"/messages?id={quote(evil)}",
             f"/messages?topic={quote(evil)}&key={quote(evil)}")  # fmt: skip
    for path in paths:
        text = served.ask(path, accept="text/html").text
        assert "alert" in text
        for part in ("<script>", "<b>", "<i>", "<u>", "\u202e", "1234000"):
            assert part not in text.replace("<b id", ""), (path, part)


def test_a_binary_body_is_shown_as_hex_and_a_large_one_in_part(
    served: Serving, store: Store
) -> None:
    binary = store.put("orders", bytes(range(256)) * 40, queue=0)
    large = store.put("orders", b"ab\n" * 100_000, queue=0)
    page = served.ask(f"/message?topic=orders&queue=0&offset={binary.offset}").text
    assert "00000ff0  f0 f1 f2" in page
    assert "The first 4.0 KiB are shown." in page
    page = served.ask(f"/message?topic=orders&queue=0&offset={large.offset}").text
    assert "The first 64.0 KiB are shown." in page
    assert len(page) < 100_000


@pytest.mark.parametrize(
    ("path", "status"),
    [("/topic", 400), ("/topic?topic=none", 404), ("/group?group=none", 404),
     ("/message?topic=orders&queue=0&offset=99", 404), ("/message?topic=orders&queue=9", 404),
     ("/message?topic=orders&queue=x", 400), ("/messages?id=x", 404), ("/nothing", 404),
     ("/timers?after=x-y", 400), ("/in-flight?group=none", 404),
     ("/in-flight?group=billing&topic=none", 404), ("/in-flight?group=billing&after=1-2", 400),
     ("/in-flight?group=billing&after=1-2-3-4-x", 400),
     ("/in-flight?group=billing&after=9999999999-2-3-4-5", 400),
     ("/messages?topic=orders&queue=-1&offset=0", 400),
     ("/message?topic=orders&queue=0&offset=99999999999999999999", 400),
     ("/static/../application.py", 404), ("/static/%2e%2e/application.py", 404)],
)  # fmt: skip
def test_a_wrong_address_says_what_is_wrong(served: Serving, path: str, status: int) -> None:
    answer = served.ask(path, accept="text/html")
    assert answer.status == status
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("topic", ["rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_pages_show_no_message_of_a_topic_in_which_messages_wait(
    served: Serving, store: Store, topic: str
) -> None:
    store.put("orders", b"not yet", delay=3600.0, keys=["later"])
    store.prepare("orders", b"not yet", group="pay", keys=["later"])
    page = served.ask(f"/topic?topic={topic}")
    assert page.status == 200
    assert "not yet" not in page.text
    assert f"/messages?topic={topic}" not in page.text, "a link that leads to a refusal"
    for path in (f"/messages?topic={topic}&queue=0&offset=0", f"/messages?topic={topic}&key=later",
                 f"/message?topic={topic}&queue=0&offset=0"):  # fmt: skip
        answer = served.ask(path, accept="text/html")
        assert answer.status == 400
        assert "messages wait in the topic" in answer.text
        assert "not yet" not in answer.text


def test_pages_of_very_many_topics_are_bounded(served: Serving, store: Store) -> None:
    for n in range(150):
        store.create_topic(f"many-{n:03}", queues=100)
    page = served.ask("/topics?find=many").text
    assert page.count("many-") == 2 * 100 + 1
    last = re.search(r"after=([^\"]+)\"", page)
    assert last is not None
    assert served.ask(f"/topics?find=many&after={last[1]}").text.count("many-") == 2 * 50


def test_live_figures_are_numbers(served: Serving) -> None:
    found = json.loads(served.ask("/live").text)
    assert found["delayed"] == 2
    assert found["dead"] == 2
    assert all(isinstance(value, int) for value in found.values())


# --- names, addresses, connections ---


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_foreign_name_for_this_machine_reaches_nothing(served: Serving, host: str) -> None:
    answer = served.ask("/", host=host)
    assert answer.status == 403
    assert "set-cookie" not in answer.headers
    port = urlsplit(served.url).port
    assert served.ask("/", host=f"localhost:{port}").status == 200


def test_beyond_loopback_it_opens_only_with_credentials_and_tls(
    store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    given = credentials(tmp_path)
    for found in (None, given):
        opening = serving(store, clock, host="0.0.0.0", credentials=found)
        with pytest.raises(ExposureRefused, match="--http would listen"), opening:
            pass


def test_it_speaks_tls_and_its_cookie_is_secure_then(
    store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    certificate, key = map(Path, make_certificate(tmp_path))
    tls = tls_context(LocalFiles(), certificate, key)
    with serving(store, clock, credentials=credentials(tmp_path), tls=tls) as found:
        found.tls = ssl.create_default_context(cafile=certificate)
        assert found.url.startswith("https://")
        answer = found.ask("/sign-in", f"token={ADMIN}")
        assert "; secure" in answer.headers["set-cookie"].lower()
        assert found.ask("/tiers", cookie=session_of(answer)).status == 200


def test_a_port_that_is_taken_is_said(store: Store, clock: VirtualClock) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(AddressInUse, match=f"{port} can't be opened"),
            serving(store, clock, port=port),
        ):
            pass


def test_broken_and_huge_requests_end_their_own_connection_alone(served: Serving) -> None:
    port = urlsplit(served.url).port
    for sent in (b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n\r\n" * 100,
                 b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
                 b"POST /do/redrive HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n"
                 b"\r\n" + b"z" * 70_000):  # fmt: skip
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            try:
                while connection.recv(4096):
                    pass
            except ConnectionResetError:
                pass
    assert served.ask("/healthz").text == "up\n"


def test_a_client_that_sends_nothing_holds_up_nobody(served: Serving) -> None:
    port = urlsplit(served.url).port
    with socket.create_connection(("127.0.0.1", port)) as idle:
        idle.sendall(b"GET /heal")
        assert served.ask("/healthz").status == 200
        until(lambda: served.counts.connections()["HTTP door"] >= 1)
        served.stop.set()
    until(lambda: served.counts.connections()["HTTP door"] == 0)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /heal",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\ntoken=",
    ],
)
def test_a_client_that_sends_no_whole_request_is_cut_off_in_time(
    served: Serving, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_door, "_CLIENT_WITHIN", 0.1)
    monkeypatch.setattr(http_door, "_LOOK", 0.05)
    with socket.create_connection(("127.0.0.1", urlsplit(served.url).port or 0)) as client:
        client.settimeout(10)
        client.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
        monkeypatch.undo()  # on a busy machine this client may be too slow as well
        assert served.ask("/healthz").status == 200


def test_a_client_that_reads_nothing_is_cut_off_in_time(
    served: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_connection(("127.0.0.1", urlsplit(served.url).port or 0)) as client:
        client.settimeout(5)
        client.sendall(b"GET /static/kvmq.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000)
        until(lambda: served.counts.connections()["HTTP door"] == 1)
        monkeypatch.setattr(http_door, "_CLIENT_WITHIN", 0.5)
        until(lambda: served.counts.connections()["HTTP door"] == 0)
        monkeypatch.undo()
        assert served.ask("/healthz").status == 200


def test_requests_side_by_side_are_all_answered(served: Serving) -> None:
    statuses: list[int] = []

    def ask() -> None:
        statuses.extend(served.ask(path).status for path in ("/", "/metrics", "/live", "/topics"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 32


def test_secrets_are_in_no_log_answer_metric_or_url(
    guarded: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    signed = guarded.ask("/sign-in", f"token={ADMIN}")
    session = session_of(signed)
    page = guarded.ask("/", cookie=session)
    named = {"cookie": session, "x_kvmq_token": token_of(page)}
    answers = [
        guarded.ask("/sign-in", f"token={SHOP}"),
        guarded.ask("/sign-in", f"token={ADMIN}x"),
        guarded.ask("/metrics", authorization=f"Bearer {SCRAPER}"),
        guarded.ask("/metrics", authorization=f"Bearer {SHOP}"),
        change(guarded, "redrive", {"group": "none"}, **named),
        change(guarded, "pause", {"name": "nightly"}, **named),
    ]
    told = "\n".join(f"{a.headers} {a.text}" for a in answers) + caplog.text
    told += f"{signed.headers['location']} {page.text.replace(token_of(page), '')}"
    for secret in (*SECRETS, *map(sha256_of, SECRETS), token_of(page), session):
        assert secret not in told
    assert "operator, by the admin page: schedule nightly is paused" in caplog.text
