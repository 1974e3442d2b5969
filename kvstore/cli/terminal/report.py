"""Reports: showing statistics, recovery, rebuild and import, whatever their fields.

The idea: reports are typed Structs that grow with the store. They are shown by their fields, nested
ones as dotted names and lists of Structs as tables of their own, so no field is forgotten here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from kvstore.cli.terminal.output import Output, size_text


def show_report(out: Output, report: object) -> None:
    """Print a report: as JSON, or as a table of names and values, and one for each list in it."""
    if out.json:
        out.document(report)
        return
    fields = dict(_flat("", msgspec.to_builtins(report)))
    tables = {name: rows for name, rows in fields.items() if _is_table(rows)}
    plain = [(name, _value(name, v)) for name, v in fields.items() if name not in tables]
    out.table(("what", "value"), plain)
    for name, rows in tables.items():
        columns = list(rows[0])
        out.table(columns, [[row.get(column) for column in columns] for row in rows], title=name)


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, content in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), content)
    else:
        yield prefix, value


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def _value(name: str, value: Any) -> str:
    if value is None or value in ("", [], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        is_size = "bytes" in name and value >= 1024
        return f"{value:,} ({size_text(value)})" if is_size else f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, list):
        return ", ".join(str(v) for v in value)
    return str(value)
