"""All calls of a store in one class: `Store` has them, `api.namespace_view` passes them on."""

from __future__ import annotations

from kvstore.api.exchange_calls import ExchangeCalls
from kvstore.api.namespace_calls import NamespaceCalls
from kvstore.api.offset_calls import OffsetCalls
from kvstore.api.pop_calls import PopCalls
from kvstore.api.put_calls import PutCalls
from kvstore.api.read_calls import ReadCalls


class Calls(PutCalls, ReadCalls, PopCalls, NamespaceCalls, ExchangeCalls, OffsetCalls):
    """The calls of all subjects."""
