"""The protobuf of RocketMQ's SendMessage: requests read, answers written; see send_calls.pyx."""

from collections.abc import Sequence
from typing import final

from kvstore.core.put_values import Message, PutResult

Buffer = bytes | bytearray | memoryview
SendEntry = tuple[int, str, str, str, int, str]
"""An entry of an answer: the code and text of its status, the message's id, the transaction's, the
offset, and the recall handle. A text that is empty, and an offset of 0, are not there."""

@final
class Resource:
    """The name of a topic, and its namespace, each "" if it is not there."""

    name: str
    resource_namespace: str

@final
class SentMessage:
    """A message of a request."""

    message: Message
    """The message to put, of which nothing is checked. It has its body as it came, tag, keys,
    properties, group, id, and the times of its birth (None before 1970) and delivery; no topic."""
    resource: Resource
    """Its topic. Neighbours with the same one share it."""
    message_type: int
    """As the message says; 0: it says nothing. So are the numbers below."""
    carried: int
    """The sum of `CARRIES_GROUP` and so on, for each field of a type that is there."""
    body_encoding: int
    digest: tuple[int, str] | None
    """The kind of the body's digest, and its text."""
    trace_context: str
    priority: int
    recovery_ms: int | None
    """How long a transaction is left alone before it is asked about."""

CARRIES_GROUP: int
CARRIES_DELIVERY: int
CARRIES_PRIORITY: int
CARRIES_LITE_TOPIC: int

def read_send_request(data: Buffer) -> list[SentMessage]:
    """The messages of a request. Raises ValueError for bytes that protobuf's own reader refuses."""

def pack_send_response(code: int, text: str, entries: Sequence[PutResult | SendEntry]) -> bytes:
    """The answer with a status, and an entry for each message; a `PutResult` is one that says OK,
    with its id and offset. Raises TypeError for what is neither.
    """
