"""Client settings: a client says how it would work, and is told how it shall.

The idea: the answer is the client's own settings, with the store's values in the fields that the
server decides: how large a body may be, how often and after how long a message is tried again,
whether a group is ordered, how long a poll waits.

Invariants: an answer has every field without which a client fails: its limit on bodies is above 0,
and so is the number of attempts. The steps of a backoff are whole seconds, rounded up: RocketMQ's
Python client reads the seconds of a step, and nothing below them.
"""

from __future__ import annotations

import math
from typing import Final

from kvstore.meta.groups import GroupInfo
from kvstore.serve.grpc.protocol.incoming import DoorLimits
from kvstore.serve.grpc.protocol.wire import Wire, set_seconds

SEND_ATTEMPTS: Final = 3
_SEND_FIRST: Final = 0.01
_SEND_LAST: Final = 1.0
_RECEIVE_BATCH: Final = 32
_BACKOFF: Final = (
    1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 420.0, 480.0, 540.0, 600.0,
    1200.0, 1800.0, 3600.0, 7200.0,
)  # fmt: skip
"""Seconds until a push consumer gets a failed message again, where its group has no backoff of its
own: RocketMQ's.
"""


def fill_producer(settings: Wire, limits: DoorLimits) -> None:
    """Fills what a producer is told."""
    settings.publishing.max_body_size = limits.body
    settings.publishing.validate_message_type = True
    policy = settings.backoff_policy
    policy.max_attempts = SEND_ATTEMPTS
    set_seconds(policy.exponential_backoff.initial, _SEND_FIRST)
    set_seconds(policy.exponential_backoff.max, _SEND_LAST)
    policy.exponential_backoff.multiplier = 2.0


def fill_consumer(settings: Wire, group: GroupInfo, limits: DoorLimits) -> None:
    """Fills what a consumer of a group is told."""
    subscription = settings.subscription
    subscription.fifo = group.ordered
    subscription.receive_batch_size = _RECEIVE_BATCH
    asked = subscription.long_polling_timeout
    if not subscription.HasField("long_polling_timeout") or not 0 < asked.seconds <= limits.poll:
        set_seconds(subscription.long_polling_timeout, limits.poll)
    policy = settings.backoff_policy
    policy.max_attempts = group.max_attempts
    policy.ClearField("strategy")
    for seconds in group.backoff or _BACKOFF:
        set_seconds(policy.customized_backoff.next.add(), math.ceil(seconds))
