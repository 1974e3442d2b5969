"""The spans of a server: one for each call on messages, by whichever door it came."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode

import kvstore
from kvstore import Message, Nack, ServedStore, Store
from kvstore.serve.server import Gathers
from kvstore.serve.traced_gatherer import TracedGatherer
from kvstore.tracing import traced
from tests.support.grpc_doors import OpenDoor
from tests.support.rocketmq_client import RocketmqClient
from tests.support.served import serving
from tests.support.spans import Spans, id_of, is_root, linked, said
from tests.support.waiting import until

pytestmark = [pytest.mark.topic("orders", 2), pytest.mark.group("billing")]


@pytest.fixture
def spans() -> Spans:
    """The server's."""
    return Spans()


@pytest.fixture
def gathers(spans: Spans) -> Gathers:
    return partial(TracedGatherer, tracer_provider=spans.provider)


@pytest.fixture
def client(store: Store, gathers: Gathers) -> Iterator[ServedStore]:
    with (
        serving(store, gathers=gathers) as server,
        kvstore.connect(server.url) as client,
    ):
        yield client


def test_a_put_goes_on_with_the_trace_of_its_message(client: ServedStore, spans: Spans) -> None:
    ours = Spans()
    traced(client, ours.provider).put("orders", b"shoes")
    sent, served = ours.only("put orders"), spans.only("put orders")
    assert served.kind is SpanKind.SERVER
    assert served.parent is not None
    assert served.parent.span_id == id_of(sent)
    assert served.context.trace_id == sent.context.trace_id
    assert said(served) == {
        "operation.name": "put",
        "operation.type": "send",
        "destination.name": "orders",
        "batch.message_count": 1,
    }


def test_a_pop_and_a_pull_link_to_the_puts_of_what_they_hand_out(
    client: ServedStore, spans: Spans
) -> None:
    ours = Spans()
    store = traced(client, ours.provider)
    for n in range(2):
        store.put("orders", b"%d" % n, queue=0)
    client.put("orders", b"without a trace", queue=0)
    client.pull("orders", 0, 0)
    popped = client.pop("billing", "orders", limit=3)
    assert client.pop("billing", "orders") == []
    puts = {id_of(span) for span in ours.named("put orders")}
    until(lambda: spans.named("pop orders"))
    assert spans.named("pop") == []
    for name in ("pull orders", "pop orders"):
        received = spans.only(name)
        assert (received.kind, is_root(received)) == (SpanKind.SERVER, True)
        assert linked(received) == puts
        assert said(received)["batch.message_count"] == len(popped) == 3
    assert said(spans.only("pop orders"))["consumer.group.name"] == "billing"


def test_acks_and_nacks_have_spans(client: ServedStore, spans: Spans) -> None:
    client.put_batch([Message("orders", b"")] * 3)
    one, two, three = client.pop("billing", "orders", limit=3)
    client.ack_batch([one.receipt])
    client.nack_batch([Nack(two.receipt)])
    client.change_invisible(three.receipt, 60.0)
    names = ("ack", "nack", "change_invisible")
    until(lambda: all(spans.named(name) for name in names))
    assert [said(spans.only(name))["operation.type"] for name in names] == ["settle"] * 3


def test_prepared_messages_go_on_with_their_trace(client: ServedStore, spans: Spans) -> None:
    ours = Spans()
    with traced(client, ours.provider).transaction(group="pay") as t:
        t.put("orders", b"1")
    prepared = spans.only("prepare orders")
    assert prepared.parent is not None
    assert prepared.parent.span_id == id_of(ours.only("create orders"))


def test_a_call_that_fails_says_so_in_its_span(client: ServedStore, spans: Spans) -> None:
    with pytest.raises(kvstore.TopicNotFound):
        client.put("nowhere", b"")
    with pytest.raises(kvstore.GroupNotFound):
        client.pop("nobody", "orders")
    until(lambda: len(spans.all()) == 2)
    for span in spans.all():
        assert span.status.status_code is StatusCode.ERROR
    assert [said(span)["error.type"] for span in spans.all()] == ["TopicNotFound", "GroupNotFound"]


MADE: Any = Message
"""Takes whatever it is given."""
WRONG: list[Any] = [
    7,
    [7],
    ["x"],
    [MADE(7, b"")],
    [MADE(["orders"], b"")],
    [MADE("orders", b"", properties=7)],
    [MADE("orders", b"", properties={"traceparent": 7})],
]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_messages_are_refused_as_without_traces(
    store: Store, client: ServedStore, wrong: Any
) -> None:
    refusals = []
    for one in (store, client):
        with pytest.raises((ValueError, TypeError)) as refused:
            one.put_batch(wrong)
        refusals.append((type(refused.value), str(refused.value)))
    assert refusals[0] == refusals[1]


def test_other_calls_have_no_spans(client: ServedStore, spans: Spans) -> None:
    client.stats()
    client.topics()
    assert spans.all() == ()


def test_clients_of_rocketmq_carry_contexts_in_the_same_properties(
    store: Store, spans: Spans, gathers: Gathers, tmp_path: Path
) -> None:
    """As OpenTelemetry's agent for Java puts them there; and they get those of kvmq."""
    ours = Spans()
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with (
        OpenDoor(store, gathers=gathers) as door,
        RocketmqClient(door.endpoint, tmp_path) as client,
    ):
        client.do("producer", topics=["orders"])
        client.do("send", topic="orders", body="1", properties={"traceparent": given})
        sent = spans.only("put orders")
        assert sent.parent is not None
        assert f"{sent.parent.span_id:016x}" == "b7ad6b7169203331"
        (popped,) = traced(store, ours.provider).pop("billing", "orders")
        assert linked(ours.only("pop orders")) == {sent.parent.span_id}
        store.ack(popped.receipt)

        traced(store, ours.provider).put("orders", b"2")
        client.do("simple", group="other", topics={"orders": ["tag", "*"]})
        found = list[str]()

        def received() -> bool:
            messages = client.do("receive", count=32, invisible=30)
            found.extend(one["properties"].get("traceparent", "") for one in messages)
            return len(found) >= 2

        until(received, 30)
        until(lambda: spans.named("pop orders"))
    put = ours.only("put orders")
    assert any(one.split("-")[2] == f"{id_of(put):016x}" for one in found if one)
    all_links = set[int]().union(*(linked(span) for span in spans.named("pop orders")))
    assert all_links == {0xB7AD6B7169203331, id_of(put)}


SCRIPT = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
import kvstore.cli

if sys.argv[1] == "set-up":
    provider = TracerProvider()
    out = ConsoleSpanExporter(formatter=lambda span: span.to_json(indent=None) + chr(10))
    provider.add_span_processor(SimpleSpanProcessor(out))
    trace.set_tracer_provider(provider)
sys.argv[1:] = ["serve", "data", "--create", "--traces"]
kvstore.cli.main()
"""


def test_the_verb_serve_has_spans_where_opentelemetry_is_set_up(tmp_path: Path) -> None:
    def started(word: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT, word], cwd=tmp_path, env=dict(os.environ), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    refused = started("left-out")
    _, said_why = refused.communicate(timeout=60)
    assert refused.returncode != 0
    assert "OpenTelemetry is not set up" in said_why

    serving_it = started("set-up")
    try:
        until(lambda: (tmp_path / "data/kvmq.sock").exists(), 60)
        with kvstore.connect(tmp_path / "data") as client:
            client.create_topic("orders")
            client.put("orders", b"")
    finally:
        serving_it.send_signal(signal.SIGTERM)
        out, err = serving_it.communicate(timeout=60)
    assert serving_it.returncode == 0, err
    spans = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert [span["name"] for span in spans] == ["put orders"]
