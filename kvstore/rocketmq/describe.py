"""Describe: everything in a record, as plain values for programs, and as labelled lines for people.

The idea: one mapping, in the order of the record's fields, with the meaning of the numbers beside
them: flags by name, times in ms and in ISO 8601, the body as text where it is text. Its names are
those that programs rely on; the lines for people put related things side by side, and show a body
that is not text in hex. Pure; no I/O. The caller makes the lines safe for a terminal.

Invariants: any StoredMessage can be described; the result is made of dict, list, str, int, bool and
None only.
"""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kvstore.core.messages import StoredMessage
from kvstore.core.names import (
    BORN_HOST_V6,
    CODEC_LEGACY_ZLIB,
    CODEC_LZ4,
    CODEC_MASK,
    CODEC_ZLIB,
    CODEC_ZSTD,
    COMMIT,
    COMPRESSED,
    DELAY_LEVEL,
    INNER_BATCH,
    MULTI_TAG,
    NEED_UNWRAP,
    PREPARED,
    ROLLBACK,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    UNIQUE_ID,
)
from kvstore.errors import RecordDamaged
from kvstore.record.compression import decompress
from kvstore.record.hashes import tags_code
from kvstore.record.layout import MAGIC_V1, MAGIC_V2

_MAGIC: Final = {1: f"{MAGIC_V1:#x}", 2: f"{MAGIC_V2:#x}"}
_BITS: Final = {
    COMPRESSED: "compressed",
    MULTI_TAG: "multi-tag",
    BORN_HOST_V6: "born-host-v6",
    STORE_HOST_V6: "store-host-v6",
    NEED_UNWRAP: "need-unwrap",
    INNER_BATCH: "inner-batch",
}
_TRANSACTIONS: Final = {0: "none", PREPARED: "prepared", COMMIT: "commit", ROLLBACK: "rollback"}
_CODECS: Final = {
    CODEC_LEGACY_ZLIB: "zlib",
    CODEC_ZLIB: "zlib",
    CODEC_LZ4: "lz4",
    CODEC_ZSTD: "zstd",
}
_KNOWN_BITS: Final = sum(_BITS) | TRANSACTION_MASK | CODEC_MASK
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UTF8_MAX: Final = 4
"""Bytes of a character at most."""


def describe(message: StoredMessage, body_max: int | None = None) -> dict[str, Any]:
    """Everything about a message whose body is as it is stored.

    The body is given decompressed, its first `body_max` bytes (None: all). For a body that can't be
    decompressed, `body_problem` has the fault, and the body is given as stored.
    """
    flags = message.system_flags
    properties = message.properties
    return {
        "position": message.position,
        "size": message.size,
        "topic": message.topic,
        "queue": message.queue,
        "offset": message.offset,
        "magic": _MAGIC.get(message.version),
        "version": message.version,
        "body_crc": message.body_crc,
        "flags": message.flags,
        "system_flags": flags,
        "system_flag_names": system_flag_names(flags),
        "transaction": _TRANSACTIONS[flags & TRANSACTION_MASK],
        "born_at": message.born_at,
        "born_at_iso": iso_time(message.born_at),
        "born_host": _host(message.born_host),
        "stored_at": message.stored_at,
        "stored_at_iso": iso_time(message.stored_at),
        "store_host": _host(message.store_host),
        "reconsume_times": message.reconsume_times,
        "prepared_position": message.prepared_position,
        "message_id": properties.get(UNIQUE_ID),
        "position_id": message.position_id,
        "tag": message.tag,
        "tags_code": tags_code(
            message.topic, message.tag, properties.get(DELAY_LEVEL), message.stored_at
        ),
        "keys": message.keys,
        "properties_size": len(message.raw_properties),
        "properties": dict(properties),
        **_body(message, body_max),
    }


def system_flag_names(flags: int) -> list[str]:
    """The bits of a record's system flags by name; unknown ones as a number."""
    names = [name for bit, name in _BITS.items() if flags & bit]
    if flags & TRANSACTION_MASK:
        names.append(_TRANSACTIONS[flags & TRANSACTION_MASK])
    if flags & (COMPRESSED | CODEC_MASK):
        names.append(f"codec-{codec_name(flags)}")
    if unknown := flags & ~_KNOWN_BITS & 0xFFFF_FFFF:
        names.append(f"unknown-{unknown:#x}")
    return names


def codec_name(flags: int) -> str:
    """The codec that a record's system flags name."""
    codec = flags & CODEC_MASK
    return _CODECS.get(codec, f"unknown-{codec >> 8}")


def iso_time(milliseconds: int) -> str | None:
    """An instant in ISO 8601, UTC, with its milliseconds; None beyond what a calendar holds."""
    try:
        instant = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def text_of(data: bytes, *, is_cut: bool = False) -> str | None:
    """`data` as UTF-8 text; None if it isn't. Where `data` was cut, a part of a character may be at
    its end.
    """
    for drop in range(_UTF8_MAX if is_cut else 1):
        try:
            return data[: len(data) - drop].decode()
        except UnicodeDecodeError:
            continue
    return None


def _body(message: StoredMessage, body_max: int | None) -> dict[str, Any]:
    stored, flags = message.body, message.system_flags
    body, codec, problem = stored, None, None
    if flags & COMPRESSED and stored:
        codec = codec_name(flags)
        try:
            body = decompress(stored, flags)
        except RecordDamaged as e:
            problem = str(e)
    is_cut = body_max is not None and len(body) > body_max
    shown = body[:body_max] if is_cut else body
    text = text_of(shown, is_cut=is_cut)
    described: dict[str, Any] = {
        "body_stored_size": len(stored),
        "body_codec": codec,
        "body_size": len(body) if problem is None else None,
    }
    if problem is not None:
        described["body_problem"] = problem
    return described | {
        "body_truncated": is_cut,
        "body_encoding": "base64" if text is None else "text",
        "body": base64.b64encode(shown).decode() if text is None else text,
    }


def _host(host: tuple[str, int]) -> str:
    address, port = host
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


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
