"""Traces: spans of OpenTelemetry around the calls of a store, and contexts that messages carry.

    from kvstore.tracing import traced

    store = traced(kvstore.open("data"))  # or kvstore.connect, or those of kvstore.aio

The idea: a store is wrapped. The wrapper has a span around each call that sends, receives or
settles messages, and around each handler of a consumer, named after OpenTelemetry's conventions for
messaging; all other calls are the store's own. A message carries the context of the span that sent
it as its properties `traceparent` and `tracestate` (W3C Trace Context), to which the spans that
receive and process it link. A server's spans are made of the same parts (`serve.traced_gatherer`).
(docs/tracing.md)

Invariants: nothing else in kvmq knows of this module, so a store that is not traced has no cost;
results and errors are those of the store; a context that a message has is not changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final, Self, TypeVar, cast

from kvstore.clock import SystemClock
from kvstore.consume.async_consumer import ConsumesAwaited
from kvstore.core.popping.receipts import Popped
from kvstore.message import Message, PullResult, PutResult, StoredMessage
from kvstore.record.put.explain import as_batch

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        "kvstore.tracing takes OpenTelemetry, which is not installed: pip install 'kvmq[otel]'",
        name=e.name,
    ) from e

SYSTEM: Final = "kvmq"
_NAME: Final = "kvstore"
"""The instrumentation's name, for OpenTelemetry."""
_CONTEXT: Final = TraceContextTextMapPropagator()
_PARENT: Final = "traceparent"
_PARENT_BYTES: Final = _PARENT.encode()
_LINKS_MAX: Final = 128
"""Links of a span, as OpenTelemetry's SDK limits them by itself."""
_clock: Final = SystemClock()

S = TypeVar("S")
Attributes = dict[str, str | int]


# --- contexts ---


def carrying(properties: Mapping[str, str]) -> Mapping[str, str]:
    """The properties with the current span's context; unchanged if they have one."""
    if _PARENT in properties:
        return properties
    carrier = dict(properties)
    _CONTEXT.inject(carrier)
    return carrier


def context_of(properties: Mapping[str, str]) -> trace.SpanContext | None:
    """The context that properties carry, if they carry a good one."""
    if not isinstance(properties.get(_PARENT), str):
        return None
    found = trace.get_current_span(_CONTEXT.extract(properties, Context())).get_span_context()
    return found if found.is_valid else None


def links_to(messages: Iterable[StoredMessage | Message]) -> list[Link]:
    """Links to the contexts of messages, one for each context."""
    found: dict[tuple[int, int], Link] = {}
    for message in messages:
        if isinstance(message, StoredMessage) and _PARENT_BYTES not in message.raw_properties:
            continue  # without reading them
        context = context_of(message.properties)
        if context is not None:
            found.setdefault((context.trace_id, context.span_id), Link(context))
        if len(found) >= _LINKS_MAX:
            break
    return list(found.values())


# --- spans ---


def operation(
    name: str, kind: str, topics: Iterable[str] = (), group: str = "", count: int | None = None
) -> tuple[str, Attributes]:
    """The name and the attributes of a span. Of several topics it names none; `count` is there if
    the call takes many messages.
    """
    found: Attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
    named = set(topics)
    if len(named) == 1:
        (topic,) = named
        found["messaging.destination.name"] = topic
        name = f"{name} {topic}"
    if group:
        found["messaging.consumer.group.name"] = group
    if count is not None:
        found["messaging.batch.message_count"] = count
    return name, found


def failed(span: Span, error: BaseException) -> None:
    """Notes the error with which an operation ended."""
    span.record_exception(error)
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(Status(StatusCode.ERROR, str(error)))


@contextmanager
def _span(
    tracer: Tracer,
    operation: tuple[str, Attributes],
    kind: SpanKind,
    links: Sequence[Link] = (),
    context: Context | None = None,
) -> Iterator[Span]:
    """A span, which is the current one meanwhile."""
    name, attributes = operation
    with tracer.start_as_current_span(
        name, context, kind, attributes, links, record_exception=False,
        set_status_on_exception=False,
    ) as span:  # fmt: skip
        try:
            yield span
        except BaseException as e:
            failed(span, e)
            raise


def now_ns() -> int:
    """The time at which a span begins that is made later."""
    return _clock.now_ns()


def received_span(
    tracer: Tracer,
    call: str,
    group: str,
    kind: SpanKind,
    began: int,
    found: Any,
    error: BaseException | None,
) -> None:
    """Makes the span of a pop or a pull that began at `began` and found messages, or failed. It is
    made at the end, since only then its links are known.
    """
    messages = _messages_in(found)
    if not messages and error is None:
        return
    topics = [m.topic for m in messages]
    name, attributes = operation(call, "receive", topics, group, len(messages))
    if len(messages) == 1:
        attributes |= of_message(messages[0])
    links = links_to(messages)
    span = tracer.start_span(name, None, kind, attributes, links, start_time=began)
    if error is not None:
        failed(span, error)
    span.end()


def of_message(message: StoredMessage) -> Attributes:
    """The attributes of one message."""
    return {
        "messaging.message.id": message.message_id,
        "messaging.destination.partition.id": str(message.queue),
        "messaging.message.body.size": len(message.body_view),
    }


def _told(span: Span, results: Sequence[PutResult]) -> None:
    """Notes the result of a put of one message."""
    if len(results) == 1:
        span.set_attribute("messaging.message.id", results[0].message_id)
        span.set_attribute("messaging.destination.partition.id", str(results[0].queue))


@contextmanager
def processing(
    popped: Popped, group: str = "", *, context: Context | None = None, tracer: Tracer | None = None
) -> Iterator[Span]:
    """A span for the work on a message, for programs that pop by themselves; a consumer's handlers
    have one each. It links to the span that sent the message.

    >>> for popped in store.pop("billing", "orders"):  # doctest: +SKIP
    ...     with processing(popped, "billing"):
    ...         charge(popped.message)
    """
    message = popped.message
    own = operation("process", "process", [message.topic], group)
    own[1].update(of_message(message) | {"messaging.kvmq.attempt": popped.attempt})
    made_by = trace.get_tracer(_NAME) if tracer is None else tracer
    with _span(made_by, own, SpanKind.CONSUMER, links_to([message]), context) as span:
        yield span


# --- the wrapper ---


def traced(store: S, tracer_provider: trace.TracerProvider | None = None) -> S:
    """The store with spans around its calls; a `Store`, a `ServedStore`, a namespace of one, or one
    of those of `kvstore.aio`. Without a provider it is OpenTelemetry's global one; as long as none
    was set up, the store itself is the result, since nobody would see its spans.

    >>> with traced(kvstore.open("data")) as store:  # doctest: +SKIP
    ...     store.put("orders", b"...")
    """
    if isinstance(store, TracedStore):
        return store
    tracer = tracer_of(tracer_provider)
    return store if tracer is None else cast(S, TracedStore(store, tracer))


def tracer_of(provider: trace.TracerProvider | None) -> Tracer | None:
    """The tracer of a provider, or of the global one; None if none was set up."""
    found = trace.get_tracer_provider() if provider is None else provider
    if isinstance(found, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return found.get_tracer(_NAME)


class TracedStore:
    """A store with spans around its calls; made by `traced`. The calls are the store's, so those of
    a store of asyncio are awaited.
    """

    def __init__(self, store: Any, tracer: Tracer) -> None:
        self._store = store
        self._tracer = tracer
        self._is_awaited = isinstance(store, ConsumesAwaited)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"a traced store has no attribute {name!r}")
        return getattr(self._store, name)

    def __repr__(self) -> str:
        return f"<traced {self._store!r}>"

    # --- sending ---

    def put(self, topic: str, body: bytes | bytearray | memoryview, **fields: Any) -> Any:
        """See `kvstore.Store.put`."""
        return self._send_one(self._store.put, "put", topic, body, fields)

    def prepare(self, topic: str, body: bytes | bytearray | memoryview, **fields: Any) -> Any:
        """See `kvstore.Store.prepare`."""
        return self._send_one(self._store.prepare, "prepare", topic, body, fields)

    def put_batch(self, messages: Sequence[Message]) -> Any:
        """See `kvstore.Store.put_batch`."""
        return self._send(self._store.put_batch, "put", messages, {})

    def prepare_batch(self, messages: Sequence[Message], **more: Any) -> Any:
        """See `kvstore.Store.prepare_batch`."""
        return self._send(self._store.prepare_batch, "prepare", messages, more)

    def _send_one(
        self, call: Callable[..., Any], name: str, topic: str, body: Any, fields: dict[str, Any]
    ) -> Any:
        given = fields.get("properties")
        properties = {} if given is None else given
        if not isinstance(properties, Mapping) or not isinstance(topic, str):
            return call(topic, body, **fields)  # it says what is wrong

        def send() -> Any:
            return call(topic, body, **(fields | {"properties": carrying(properties)}))

        context = context_of(properties)
        span = self._sending(name, [topic], [] if context is None else [Link(context)], None)
        return self._made(span, send, lambda span, result: _told(span, [result]))

    def _send(
        self, call: Callable[..., Any], name: str, given: Any, more: Mapping[str, Any]
    ) -> Any:
        messages = as_batch(given)
        known = [m for m in messages if can_carry(m)]

        def send() -> Any:
            return call([_carrier(m) for m in messages], **more)

        links = links_to(m for m in known if _PARENT in m.properties)
        topics = [m.topic for m in known]
        span = self._sending(name, topics, links, len(messages))
        return self._made(span, send, _told)

    def _sending(
        self, name: str, topics: Sequence[str], links: Sequence[Link], count: int | None
    ) -> AbstractContextManager[Span]:
        own = operation(name, "send", topics, count=count)
        return _span(self._tracer, own, SpanKind.PRODUCER, links)

    def transaction(self, *, group: str) -> TracedTransaction:
        """See `kvstore.Store.transaction`. Each message has a span, where it is added."""
        return TracedTransaction(self._store.transaction(group=group), self._tracer)

    # --- receiving ---

    def pop(self, group: str, topic: str | Sequence[str], *args: Any, **more: Any) -> Any:
        """See `kvstore.Store.pop`. A pop that finds nothing has no span."""
        call = self._store.pop
        return self._received("pop", group, lambda: call(group, topic, *args, **more))

    def pull(self, topic: str, *args: Any, **more: Any) -> Any:
        """See `kvstore.Store.pull`. A pull that finds nothing has no span."""
        call = self._store.pull
        return self._received("pull", "", lambda: call(topic, *args, **more))

    def _received(self, name: str, group: str, call: Callable[[], Any]) -> Any:
        told = partial(received_span, self._tracer, name, group, SpanKind.CLIENT, now_ns())
        if self._is_awaited:
            return _awaited_and_told(call(), told)
        try:
            found = call()
        except Exception as e:
            told(None, e)
            raise
        told(found, None)
        return found

    def consume(
        self, group: str, topics: str | Sequence[str], handler: Callable[[Popped], Any], **more: Any
    ) -> Any:
        """See `kvstore.Store.consume`. Each run of the handler has a span, in a trace of its own,
        which links to the span that sent the message.
        """
        own = self._awaited_handler if self._is_awaited else self._handler
        # The consumer refuses a handler that can't be called.
        given = own(group, handler) if callable(handler) else handler
        return self._store.consume(group, topics, given, **more)

    def _handler(self, group: str, handler: Callable[[Popped], Any]) -> Callable[[Popped], Any]:
        def handle(popped: Popped) -> Any:
            with processing(popped, group, context=Context(), tracer=self._tracer):
                return handler(popped)

        return handle

    def _awaited_handler(
        self, group: str, handler: Callable[[Popped], Any]
    ) -> Callable[[Popped], Any]:
        async def handle(popped: Popped) -> None:
            with processing(popped, group, context=Context(), tracer=self._tracer):
                await handler(popped)

        return handle

    # --- settling ---

    def ack(self, receipt: str) -> Any:
        """See `kvstore.Store.ack`."""
        return self._settled("ack", None, lambda: self._store.ack(receipt))

    def ack_batch(self, receipts: Sequence[str]) -> Any:
        """See `kvstore.Store.ack_batch`."""
        return self._settled("ack", receipts, lambda: self._store.ack_batch(receipts))

    def nack(self, receipt: str, *args: Any, **more: Any) -> Any:
        """See `kvstore.Store.nack`."""
        return self._settled("nack", None, lambda: self._store.nack(receipt, *args, **more))

    def nack_batch(self, nacks: Sequence[Any]) -> Any:
        """See `kvstore.Store.nack_batch`."""
        return self._settled("nack", nacks, lambda: self._store.nack_batch(nacks))

    def _settled(self, name: str, many: Any, call: Callable[[], Any]) -> Any:
        count = len(many) if isinstance(many, Sequence) else None
        own = operation(name, "settle", count=count)
        span = _span(self._tracer, own, SpanKind.CLIENT)
        return self._made(span, call, lambda span, result: None)

    # --- how a call is made ---

    def _made(
        self,
        around: AbstractContextManager[Span],
        call: Callable[[], Any],
        told: Callable[[Span, Any], None],
    ) -> Any:
        if self._is_awaited:
            return _awaited(around, call, told)
        with around as span:
            result = call()
            told(span, result)
            return result

    def namespace(self, name: str) -> TracedStore:
        """See `kvstore.Store.namespace`."""
        return TracedStore(self._store.namespace(name), self._tracer)

    def __enter__(self) -> Self:
        self._store.__enter__()
        return self

    def __exit__(self, *how: Any) -> None:
        self._store.__exit__(*how)

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *how: Any) -> None:
        await self._store.__aexit__(*how)


class TracedTransaction:
    """A transaction whose messages have a span each, where they are added."""

    def __init__(self, transaction: Any, tracer: Tracer) -> None:
        self._transaction = transaction
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"a traced transaction has no attribute {name!r}")
        return getattr(self._transaction, name)

    def put(self, topic: str, body: bytes | bytearray | memoryview, **fields: Any) -> None:
        """See `kvstore.Transaction.put`."""
        self.put_batch([Message(topic, body, **fields)])

    def put_batch(self, messages: Sequence[Message]) -> None:
        """See `kvstore.Transaction.put_batch`."""
        self._transaction.put_batch([self._created(m) for m in as_batch(messages)])

    def _created(self, message: Any) -> Any:
        if not can_carry(message) or _PARENT in message.properties:
            return message
        with _span(self._tracer, operation("create", "create", [message.topic]), SpanKind.PRODUCER):
            return _carrier(message)

    def __enter__(self) -> Self:
        self._transaction.__enter__()
        return self

    def __exit__(self, *how: Any) -> None:
        self._transaction.__exit__(*how)

    async def __aenter__(self) -> Self:
        await self._transaction.__aenter__()
        return self

    async def __aexit__(self, *how: Any) -> None:
        await self._transaction.__aexit__(*how)


def can_carry(message: Any) -> bool:
    """Whether a message can carry a context; one that the store will refuse may not."""
    is_message = isinstance(message, Message) and isinstance(message.topic, str)
    return is_message and isinstance(message.properties, Mapping)


def _carrier(message: Any) -> Any:
    """A message with the current context, if it can carry one."""
    if not can_carry(message):
        return message
    properties = carrying(message.properties)
    is_same = properties is message.properties
    return message if is_same else message.__replace__(properties=properties)


def _messages_in(found: Any) -> list[StoredMessage]:
    """The messages of a pop's or a pull's result."""
    if isinstance(found, PullResult):
        return list(found.messages)
    return [one.message for one in found] if isinstance(found, list) else []


async def _awaited(
    around: AbstractContextManager[Span],
    call: Callable[[], Awaitable[Any]],
    told: Callable[[Span, Any], None],
) -> Any:
    with around as span:
        result = await call()
        told(span, result)
        return result


async def _awaited_and_told(
    call: Awaitable[Any], told: Callable[[Any, BaseException | None], None]
) -> Any:
    try:
        found = await call
    except Exception as e:
        told(None, e)
        raise
    told(found, None)
    return found
