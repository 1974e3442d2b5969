"""The traced gatherer: a gatherer with a span around each call of messages that a door hands it.

The idea: all doors share the gatherer, so it is the one place where a server's spans are made. It
is there only if traces were asked for (`kvmq serve --traces`). A put continues the trace whose
context its messages carry; a call that hands messages out links to their contexts.

Invariant: the calls are made as by the gatherer without spans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanKind,
    Tracer,
    TracerProvider,
    set_span_in_context,
)

from kvstore.api.store import Store
from kvstore.core.popping.receipts import Popped
from kvstore.errors import ConfigError
from kvstore.message import Message, PutResult
from kvstore.pop.ack import AckResult
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.replies.open_calls import OpenCall
from kvstore.tracing import (
    can_carry,
    failed,
    links_to,
    now_ns,
    operation,
    received_span,
    tracer_of,
)

_SETTLE: Final = {"nack_batch": "nack", "give_up": "give_up"}
"""Calls that are not gathered, and settle messages."""


class TracedGatherer(Gatherer):
    """See the module. It is made in the loop."""

    def __init__(self, store: Store, tracer_provider: TracerProvider | None = None) -> None:
        """Raises `ConfigError` if OpenTelemetry was not set up in this process."""
        tracer = tracer_of(tracer_provider)
        if tracer is None:
            raise ConfigError(
                "traces were asked for, but OpenTelemetry is not set up in this process: run "
                "`opentelemetry-instrument kvmq serve …`, or leave --traces out"
            )
        super().__init__(store)
        self._tracer: Tracer = tracer

    def put(self, messages: Sequence[Message], size: int) -> OpenCall[list[PutResult]]:
        """See `Gatherer.put`."""
        span = self._sent("put", messages)
        return self._ending(span, super().put(messages, size))

    def put_read(
        self, read: Callable[[], Sequence[Message]], size: int
    ) -> OpenCall[list[PutResult]]:
        """See `Gatherer.put_read`."""
        spans: list[Span] = []

        def traced_read() -> Sequence[Message]:
            messages = read()
            spans.append(self._sent("put", messages))
            return messages

        def ended(call: OpenCall[list[PutResult]]) -> None:
            for span in spans:
                _ended(span, call)

        call = super().put_read(traced_read, size)
        call.add_done_callback(ended)
        return call

    def ack(self, receipts: Sequence[str]) -> OpenCall[list[AckResult]]:
        """See `Gatherer.ack`."""
        return self._ending(self._settling("ack", len(receipts)), super().ack(receipts))

    def change_invisible(
        self, receipt: str, invisible_for: float | None = None, *, gives_back: bool = False
    ) -> OpenCall[str]:
        """See `Gatherer.change_invisible`."""
        span = self._settling("change_invisible", None)
        made = super().change_invisible(receipt, invisible_for, gives_back=gives_back)
        return self._ending(span, made)

    def pop(
        self, group: str, topic: str | Sequence[str], *args: Any, **more: Any
    ) -> OpenCall[list[Popped]]:
        """See `Gatherer.pop`. A pop that finds nothing has no span."""
        began, made = now_ns(), super().pop(group, topic, *args, **more)
        made.add_done_callback(partial(self._received, "pop", began, group))
        return made

    def call(self, method: str, *given: Any, **named: Any) -> OpenCall[Any]:
        """See `Gatherer.call`; calls on messages have spans."""
        if method == "prepare_batch":
            span = self._sent("prepare", given[0])
            return self._ending(span, super().call(method, *given, **named))
        if method in _SETTLE:
            span = self._settling(_SETTLE[method], None)
            return self._ending(span, super().call(method, *given, **named))
        began, made = now_ns(), super().call(method, *given, **named)
        if method == "pull":
            made.add_done_callback(partial(self._received, "pull", began, ""))
        return made

    def _sent(self, name: str, messages: Sequence[Message]) -> Span:
        """The span of a call that sends messages: it continues their trace, if they have one."""
        known = [m for m in messages if can_carry(m)]
        links = links_to(known)
        text, attributes = operation(name, "send", [m.topic for m in known], count=len(messages))
        parent = None
        if len(links) == 1:
            parent = set_span_in_context(NonRecordingSpan(links.pop().context))
        return self._tracer.start_span(text, parent, SpanKind.SERVER, attributes, links)

    def _settling(self, name: str, count: int | None) -> Span:
        text, attributes = operation(name, "settle", count=count)
        return self._tracer.start_span(text, None, SpanKind.SERVER, attributes)

    def _ending(self, span: Span, call: OpenCall[Any]) -> OpenCall[Any]:
        call.add_done_callback(partial(_ended, span))
        return call

    def _received(self, name: str, began: int, group: str, call: OpenCall[Any]) -> None:
        if call.cancelled():
            return
        error = call.exception()
        found = None if error is not None else call.result()
        received_span(self._tracer, name, group, SpanKind.SERVER, began, found, error)


def _ended(span: Span, call: OpenCall[Any]) -> None:
    error = None if call.cancelled() else call.exception()
    if error is not None:
        failed(span, error)
    span.end()
