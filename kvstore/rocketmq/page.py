"""Page: a described record as labelled lines for people.

The idea: `describe` gives names that programs rely on; people want related things side by side, and
a body that is not text in hex. The functions are pure; the caller colours the lines and makes them
safe for a terminal.
"""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Iterator
from typing import Any, Final

_HEX_LINE: Final = 32
"""Bytes on a line of hex."""


def record_rows(d: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A described record's fields: label and value. Neither is safe for a terminal yet."""
    yield "topic", d["topic"]
    yield "queue, offset", f"{d['queue']}, {d['offset']}"
    yield "magic", f"{d['magic']} (version {d['version']})"
    yield "flags", f"{d['flags']} ({d['flags'] & 0xFFFF_FFFF:#x})"
    names = " ".join(d["system_flag_names"]) or "none set"
    yield "system flags", f"{d['system_flags'] & 0xFFFF_FFFF:#x}: {names}"
    yield "transaction", d["transaction"]
    for what, host in (("born", "born_host"), ("stored", "store_host")):
        iso = d[f"{what}_at_iso"] or "no date"
        yield what, f"{d[f'{what}_at']} ({iso}) at {d[host]}"
    yield "reconsume times", str(d["reconsume_times"])
    yield "prepared position", str(d["prepared_position"])
    yield "message id", d["message_id"] or "-"
    yield "position id", d["position_id"]
    yield "tag", f"{d['tag'] or '-'} (code {d['tags_code']})"
    yield "keys", " ".join(d["keys"]) or "-"
    yield "properties", f"{len(d['properties'])} in {d['properties_size']:,} bytes"
    for name, value in d["properties"].items():
        yield f"  {name}", value
    size = f"{d['body_stored_size']:,} bytes, CRC {d['body_crc']:#010x}"
    if d["body_codec"] is not None:
        plain = "damaged" if d["body_size"] is None else f"{d['body_size']:,} bytes decompressed"
        size += f", {d['body_codec']}, {plain}"
    yield "body", size


def body_lines(d: dict[str, Any]) -> Iterator[str]:
    """A described record's body: lines of text if it is text, else of hex."""
    text = d["body"]
    if d["body_encoding"] == "base64":
        data = base64.b64decode(text)
    else:
        data = b"" if _is_text(text) else text.encode()
    if data:
        for at in range(0, len(data), _HEX_LINE):
            yield data[at : at + _HEX_LINE].hex(" ", 4)
    elif text:
        yield from text.replace("\t", "    ").split("\n")


def _is_text(text: str) -> bool:
    """Whether it can be shown as lines: no control characters but those of lines."""
    return text.isprintable() or not any(
        c not in "\n\r\t" and unicodedata.category(c) == "Cc" for c in text
    )
