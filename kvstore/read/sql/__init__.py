"""SQL filters: which messages to let through, by an expression over their properties.

The idea: `sql` reads an expression once and keeps the result, so that an expression written in a
loop costs one look-up. `grammar` is the language, which a library parses; `compiler` makes one
function of what it finds; `texts` is how a property's text is read; `filter_faults` is the error
for a wrong expression, of tags too. The language, and how it differs from RocketMQ's and JMS's
selectors, is docs/filters.md. Not in here: tag expressions, which are `read.filters`. Begin with
`grammar`. May import the rooms below `read`; it imports nothing of `read` itself.

Invariants: a `SqlFilter` that exists is right: a bad expression raised `FilterIllegal`, with the
place, when it was made; asking it never raises, whatever the properties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from kvstore.core.messages import StoredMessage
from kvstore.errors import (
    CallerError,
    shown,
)


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A filter made by `sql`: a value, equal to any other of the same `expression`.

    `matches(message)` says whether the expression is TRUE for a message: not FALSE, not unknown.
    """

    expression: str
    matches: Callable[[StoredMessage], bool] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise CallerError(
                f"an SQL filter is {shown(self.expression)}; it must be a text such "
                "as \"region = 'eu'\""
            )
        # Imported here: making the parser takes a tenth of a second, and few programs need it.
        from kvstore.read.sql.grammar import compile_filter  # noqa: PLC0415  # see above

        is_true = compile_filter(self.expression)

        def matches(message: StoredMessage) -> bool:
            return is_true(message.properties)

        object.__setattr__(self, "matches", matches)

    def __reduce__(self) -> tuple[Callable[[str], SqlFilter], tuple[str]]:
        # The function inside can't be copied or pickled; its text can, and is read anew.
        return sql, (self.expression,)


@lru_cache(maxsize=256)
def _made(expression: str) -> SqlFilter:
    return SqlFilter(expression)


def sql(expression: str) -> SqlFilter:
    """A filter by an SQL expression over a message's properties, as `pull` takes it.

    `FilterIllegal` says where a bad expression is wrong and what was expected there.

    >>> import kvstore
    >>> kvstore.sql("amount > 5 AND region = 'eu'")
    SqlFilter(expression="amount > 5 AND region = 'eu'")
    """
    # The class refuses a value that can't be a key of the cache.
    return _made(expression) if isinstance(expression, str) else SqlFilter(expression)


__all__ = ["SqlFilter", "sql"]
