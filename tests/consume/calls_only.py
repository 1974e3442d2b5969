"""A store of which a consumer sees its public calls alone, counted; each may fail first."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

CALLS: Final = frozenset(
    {"pop", "ack_batch", "nack_batch", "undo_pop", "change_invisible_batch", "group", "topic",
     "group_stats"}
)  # fmt: skip


class CallsOnly:
    """The calls of a store, see the module. `fails` has errors by the name of a call: each is
    raised once, in turn, before the call.
    """

    def __init__(self, store: object, fails: dict[str, list[BaseException]] | None = None) -> None:
        self.count: Counter[str] = Counter()
        self._store = store
        self._fails = {} if fails is None else fails

    def __getattr__(self, name: str) -> Any:
        assert name in CALLS, f"a consumer uses {name}"
        self.count[name] += 1
        errors = self._fails.get(name)
        if errors:
            raise errors.pop(0)
        return getattr(self._store, name)
