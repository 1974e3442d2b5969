"""Task messages: a message of kombu as a message of the store, and back.

The idea: the body is kombu's message as JSON. Its priority, the time before which the task must not
run and the time after which it must not are the message's queue, due time and expiry; so a worker
gets no task before its time, and holds none in memory until then.

Invariants: values only; `payload_of` reads each body that `message_of` made.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, Final

from kvstore import Message, Popped

PRIORITIES: Final = 10
"""Priorities are 0 to 9, the higher the sooner; a topic has a queue for each."""
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]")

Payload = dict[str, Any]
"""A message of kombu: body, headers and properties."""


def topic_of(queue: str) -> str:
    """The topic of a queue of kombu; other characters than a topic's are written as %XX."""
    return _ILLEGAL.sub(lambda found: "".join(f"%{b:02X}" for b in found[0].encode()), queue)


def message_of(topic: str, payload: Payload, priority: int) -> Message:
    """The message that the store gets."""
    headers = payload.get("headers") or {}
    due, expires = _instant(headers.get("eta")), _instant(headers.get("expires"))
    return Message(
        topic,
        json.dumps(payload).encode(),
        queue=priority,
        deliver_at=due,
        expires_at=expires if due is None or expires is None else max(due, expires),
    )


def payload_of(popped: Popped) -> Payload:
    """The message of kombu in one that was popped; it says whether it was handed out before. Its
    time has come, so the worker is not asked to wait for that.
    """
    payload: Payload = json.loads(popped.message.body)
    if "eta" in payload["headers"]:
        payload["headers"]["eta"] = None
    payload["properties"]["delivery_info"]["redelivered"] = popped.attempt > 1
    return payload


def tag_of(payload: Payload) -> str:
    """The delivery tag of a message."""
    tag: str = payload["properties"]["delivery_tag"]
    return tag


def _instant(text: object) -> int | None:
    """A time of Celery's headers, in ms since the epoch; None if it is none."""
    if not isinstance(text, str):
        return None
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None
