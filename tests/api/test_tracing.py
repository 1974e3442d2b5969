"""Traces: spans around the calls of a store, and contexts that messages carry."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

import kvstore.aio
from kvstore import Message, Popped, Store, TopicNotFound
from kvstore.tracing import processing, traced
from tests.support.served import serving
from tests.support.spans import Spans, id_of, is_root, linked, said
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.topic("orders", 2), pytest.mark.group("billing")]


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture(params=["embedded", "served"])
def plain(store: Store, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A store that is not traced: in this process, or of a server."""
    if request.param == "embedded":
        yield store
        return
    with serving(store) as server, kvstore.connect(server.url) as client:
        yield client


# --- sending and receiving ---


def test_a_pop_links_to_the_put_that_sent_its_message(plain: Any, spans: Spans) -> None:
    store = traced(plain, spans.provider)
    put = store.put("orders", b"shoes", queue=1, properties={"region": "eu"})
    (popped,) = store.pop("billing", "orders")
    store.ack(popped.receipt)

    sent, received, acked = spans.all()
    assert (sent.name, sent.kind) == ("put orders", SpanKind.PRODUCER)
    assert said(sent) == {
        "operation.name": "put",
        "operation.type": "send",
        "destination.name": "orders",
        "destination.partition.id": "1",
        "message.id": put.message_id,
    }
    assert (received.name, received.kind) == ("pop orders", SpanKind.CLIENT)
    assert said(received) == {
        "operation.name": "pop",
        "operation.type": "receive",
        "destination.name": "orders",
        "destination.partition.id": "1",
        "consumer.group.name": "billing",
        "batch.message_count": 1,
        "message.id": put.message_id,
        "message.body.size": 5,
    }
    assert linked(received) == {id_of(sent)}
    assert (acked.name, said(acked)["operation.type"]) == ("ack", "settle")
    assert popped.message.properties["region"] == "eu"
    assert int(popped.message.properties["traceparent"].split("-")[2], 16) == id_of(sent)
    assert sent.start_time is not None
    assert received.start_time is not None
    assert sent.start_time <= received.start_time


def test_the_messages_of_a_batch_carry_the_context_of_its_put(plain: Any, spans: Spans) -> None:
    store = traced(plain, spans.provider)
    store.put_batch([Message("orders", b"%d" % n, queue=0) for n in range(3)])
    store.put("orders", b"3", queue=0)
    pulled = store.pull("orders", 0, 0)

    batch, single = spans.named("put orders")
    assert said(batch)["batch.message_count"] == 3
    received = spans.only("pull orders")
    assert linked(received) == {id_of(batch), id_of(single)}
    assert said(received)["batch.message_count"] == len(pulled.messages) == 4


def test_a_span_links_to_a_bounded_number_of_contexts(
    store: Store, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.tracing._LINKS_MAX", 3)
    for n in range(5):
        traced(store, spans.provider).put("orders", b"%d" % n, queue=0)
    assert len(traced(store, spans.provider).pull("orders", 0, 0).messages) == 5
    first = [id_of(span) for span in spans.named("put orders")][:3]
    assert linked(spans.only("pull orders")) == set(first)


def test_a_context_that_a_message_has_is_kept_and_linked_to(plain: Any, spans: Spans) -> None:
    store = traced(plain, spans.provider)
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    own = {"traceparent": given, "tracestate": "a=1"}
    store.put("orders", b"1", queue=0, properties=own)
    store.put_batch([Message("orders", b"2", queue=0, properties=own)])

    messages = plain.pull("orders", 0, 0).messages
    assert [m.user_properties for m in messages] == [own, own]
    assert [linked(span) for span in spans.all()] == [{0xB7AD6B7169203331}] * 2


@pytest.mark.parametrize("broken", ["00-xx", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\u20ac"])
def test_a_broken_context_is_no_link_and_no_error(plain: Any, spans: Spans, broken: str) -> None:
    store = traced(plain, spans.provider)
    store.put("orders", b"1", queue=0, properties={"traceparent": broken})
    assert store.pull("orders", 0, 0).messages[0].properties["traceparent"] == broken
    assert [linked(span) for span in spans.all()] == [set(), set()]


def test_calls_continue_the_trace_that_they_are_made_in(plain: Any, spans: Spans) -> None:
    store = traced(plain, spans.provider)
    with spans.provider.get_tracer("test").start_as_current_span("request"):
        store.put("orders", b"shoes")
        (popped,) = store.pop("billing", "orders")
        with processing(popped, "billing", tracer=spans.provider.get_tracer("test")):
            store.nack(popped.receipt, reason="closed")
    request = spans.only("request")
    for name in ("put orders", "pop orders", "process orders"):
        span = spans.only(name)
        assert span.parent is not None
        assert span.parent.span_id == id_of(request)
    nacked = spans.only("nack")
    assert nacked.parent is not None
    assert nacked.parent.span_id == id_of(spans.only("process orders"))


def test_an_error_is_the_stores_own_and_stands_in_the_span(plain: Any, spans: Spans) -> None:
    store = traced(plain, spans.provider)
    with pytest.raises(TopicNotFound):
        store.put("nowhere", b"")
    with pytest.raises(TopicNotFound):
        store.pull("nowhere", 0, 0)
    for span in spans.all():
        assert span.status.status_code is StatusCode.ERROR
        assert said(span)["error.type"] == "TopicNotFound"
    assert [span.name for span in spans.all()] == ["put nowhere", "pull"]


@pytest.mark.parametrize(
    "wrong", [{"properties": 7}, {"properties": {"traceparent": 7}}, {"queue": "x"}]
)
def test_wrong_input_is_refused_as_without_traces(
    plain: Any, spans: Spans, wrong: dict[str, Any]
) -> None:
    refusals = []
    for store in (plain, traced(plain, spans.provider)):
        with pytest.raises((ValueError, TypeError)) as one:
            store.put("orders", b"", **wrong)
        with pytest.raises((ValueError, TypeError)) as many:
            store.put_batch([Message("orders", b"", **wrong)])
        refusals.append([(type(e.value), str(e.value)) for e in (one, many)])
    assert refusals[0] == refusals[1]
    for given in (7, [7], [Message(7, b"")]):  # type: ignore[arg-type]  # wrong on purpose
        with pytest.raises(ValueError):  # noqa: PT011  # each is a kind of its own
            traced(plain, spans.provider).put_batch(given)


def test_a_pop_that_finds_nothing_has_no_span(plain: Any, spans: Spans) -> None:
    assert traced(plain, spans.provider).pop("billing", "orders") == []
    assert spans.all() == ()


def test_a_traced_store_has_the_other_calls_of_the_store(plain: Any, spans: Spans) -> None:
    store = traced(plain, spans.provider)
    assert store.topic("orders") == plain.topic("orders")
    assert store.path == plain.path
    assert traced(store) is store
    with pytest.raises(AttributeError):
        store.no_such_call()


# --- prepared messages, and namespaces ---


def test_each_message_of_a_transaction_has_the_span_of_where_it_was_added(
    plain: Any, spans: Spans
) -> None:
    store = traced(plain, spans.provider)
    with store.transaction(group="pay") as t:
        t.put("orders", b"1", queue=0)
        t.put_batch([Message("orders", b"2", queue=0)])
    assert len(t.results) == 2
    store.commit(store.prepare("orders", b"3", group="pay", queue=0))
    store.commit_batch(store.prepare_batch([Message("orders", b"4", queue=0)], group="pay"))
    store.pull("orders", 0, 0)
    created = {id_of(span) for span in spans.named("create orders")}
    prepared = {id_of(span) for span in spans.named("prepare orders")}
    assert (len(created), len(prepared)) == (2, 2)
    assert linked(spans.only("pull orders")) == created | prepared


def test_a_namespace_of_a_traced_store_is_traced(plain: Any, spans: Spans) -> None:
    plain.create_namespace(
        "tenant", [kvstore.TopicConfig(name="own")], [kvstore.GroupConfig(name="g")]
    )
    view = traced(plain, spans.provider).namespace("tenant")
    view.put("own", b"1")
    assert len(view.pop("g", "own")) == 1
    assert linked(spans.only("pop own")) == {id_of(spans.only("put own"))}


# --- consumers ---


def test_a_consumers_handlers_have_spans_that_link_to_the_put(plain: Any, spans: Spans) -> None:
    store = traced(plain, spans.provider)
    seen = list[int]()

    def handle(popped: Popped) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)
        if popped.message.body == b"bad":
            raise ValueError("no such order")

    store.put("orders", b"good")
    with store.consume("billing", "orders", handle, count=1) as consumer:
        consumer.wait(30)
    store.put("orders", b"bad")
    with store.consume("billing", "orders", handle, count=1) as consumer:
        consumer.wait(30)

    good, bad = spans.named("process orders")
    assert [id_of(good), id_of(bad)] == seen
    assert [linked(good), linked(bad)] == [{id_of(span)} for span in spans.named("put orders")]
    assert (good.kind, is_root(good)) == (SpanKind.CONSUMER, True)
    assert said(good)["operation.type"] == "process"
    assert said(good)["consumer.group.name"] == "billing"
    assert said(good)["kvmq.attempt"] == 1
    assert (good.status.status_code, bad.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert said(bad)["error.type"] == "ValueError"


def test_a_wrong_handler_is_refused_as_without_traces(plain: Any, spans: Spans) -> None:
    with pytest.raises(kvstore.CallerError) as without:
        plain.consume("billing", "orders", 7)
    with pytest.raises(kvstore.CallerError) as with_traces:
        traced(plain, spans.provider).consume("billing", "orders", 7)
    assert str(with_traces.value) == str(without.value)


# --- asyncio ---


@pytest.mark.parametrize("door", ["open", "connect"])
def test_a_store_of_asyncio_is_traced_as_any_other(tmp_path: Path, spans: Spans, door: str) -> None:
    async def work(plain: Any) -> None:
        await plain.create_topic("orders", exist_ok=True)
        await plain.create_group("billing", exist_ok=True)
        store = traced(plain, spans.provider)
        tracer = spans.provider.get_tracer("test")
        with tracer.start_as_current_span("request"):
            await asyncio.gather(*(store.put("orders", b"%d" % n) for n in range(3)))
            handled = list[bytes]()

            async def handle(popped: Popped) -> None:
                await asyncio.sleep(0)
                handled.append(popped.message.body)

            async with store.consume("billing", "orders", handle, count=2) as consumer:
                await consumer.wait()
            (popped,) = await store.pop("billing", "orders", wait=5.0)
            await store.ack(popped.receipt)
        with pytest.raises(TopicNotFound):
            await store.put_batch([Message("nowhere", b"")])
        async with store.transaction(group="pay") as t:
            t.put("orders", b"3")
        view = store.namespace("tenant")
        await view.create_topic("own")
        await view.put("own", b"4")

    async def run() -> None:
        if door == "open":
            async with kvstore.aio.open(tmp_path / "store") as plain:
                await work(plain)
            return
        with kvstore.open(tmp_path / "store") as served, serving(served) as server:
            async with kvstore.aio.connect(server.url) as plain:
                await work(plain)

    asyncio.run(run())
    puts = {id_of(span) for span in spans.named("put orders")}
    request = id_of(spans.only("request"))
    assert [span.parent and span.parent.span_id for span in spans.named("put orders")] == [
        request
    ] * 3
    processed = spans.named("process orders")
    assert [is_root(span) for span in processed] == [True, True]
    received = spans.only("pop orders")
    assert set[int]().union(linked(received), *map(linked, processed)) == puts
    assert received.parent is not None
    assert received.parent.span_id == request
    assert said(spans.only("put nowhere"))["error.type"] == "TopicNotFound"
    assert len(spans.named("create orders")) == len(spans.named("put own")) == 1


# --- off ---


def test_a_store_is_its_own_as_long_as_no_tracer_is_set_up(store: Store) -> None:
    assert traced(store) is store


def calls_of(put: Any) -> list[str]:
    """The names of the Python functions that a put calls."""
    found = list[str]()

    def called(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            found.append(frame.f_code.co_qualname)

    gc.disable()  # callbacks of the collector are functions too
    sys.setprofile(called)
    try:
        put()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found


def test_a_put_that_is_not_traced_makes_no_call_more(store: Store) -> None:
    """Neither by itself, nor beside another traced store over the same one."""
    for _ in range(8):
        store.put("orders", b"")  # what the first puts make is there
    before = calls_of(lambda: store.put("orders", b""))
    spans = Spans()
    traced(store, spans.provider).put("orders", b"")
    assert calls_of(lambda: store.put("orders", b"")) == before
    assert before[1] == "Calls.put"
    assert calls_of(lambda: traced(store).put("orders", b""))[-len(before) + 1 :] == before[1:]


def test_opentelemetry_is_imported_by_the_module_of_traces_alone() -> None:
    text = """
import json, sys
import kvstore, kvstore.aio, kvstore.cli, kvstore.serve.server
found = [name for name in sys.modules if name.startswith("opentelemetry")]
sys.modules["opentelemetry"] = None
try:
    import kvstore.tracing
except ModuleNotFoundError as e:
    print(json.dumps([found, str(e)]))
"""
    ran = subprocess.run(
        [sys.executable, "-c", text], check=True, capture_output=True, text=True, timeout=100
    )
    found, error = json.loads(ran.stdout)
    assert found == []
    assert "pip install 'kvmq[otel]'" in error


def test_threads_share_a_traced_store(store: Store, spans: Spans) -> None:
    shared = traced(store, spans.provider)
    threads = [
        threading.Thread(target=lambda: [shared.put("orders", b"") for _ in range(20)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(spans.named("put orders")) == 80
    assert all(is_root(span) for span in spans.all())
