"""Property maps: maps, keys, tags and ids of rows -> the properties fields of records.

The idea: a field is text made of text, so Arrow joins it for all rows of a batch at once. Rows that
came from records (their `headers` are there) have the field in their map, or whole where a map
can't say it. Other rows get the entries that a store writes before the map's pairs: id, keys, tag.
A batch where only some rows are special is made row by row.

Invariants: two columns that contradict each other are an error, neither is passed over; a field
that a reader could not read back is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import MessageIllegal, shown
from kvstore.record.layout import PROPERTIES_MAX
from kvstore.record.names import KEYS, TAG_SEPARATOR, TAGS, UNIQUE_ID
from kvstore.record.properties import decode_properties, encode_properties
from tiering.errors import RowIllegal
from tiering.spark.arrow import joined_properties
from tiering.spark.sink.frame_columns import FrameRows, Headers

Ids = Callable[[int], list[str]]
"""Gives so many new ids."""
_BAD: Final = "[\\x00\\x01\\x02]|^$"
_BAD_KEY: Final = "[\\x00\\x01\\x02 ]|^$"
_OWN: Final = ((UNIQUE_ID, "message_id"), (KEYS, "keys"), (TAGS, "tag"))


def property_fields(rows: FrameRows, headers: Headers | None, ids: Ids) -> pa.Array:
    """The properties field of every row, as binary. Raises RowIllegal."""
    maps = rows.properties
    if headers is not None and headers.there.all():
        fields = _of_records(rows, headers, maps)
    elif headers is None and (maps is None or _is_plain(maps)):
        fields = _new(rows, maps, ids)
    else:
        fields = _one_by_one(rows, headers, maps, ids)
    sizes = pc.binary_length(fields)
    most = pc.max(sizes).as_py()
    if most is not None and most > PROPERTIES_MAX:
        row = int(pc.index(pc.greater(sizes, PROPERTIES_MAX), True).as_py())
        raise rows.illegal(
            row, "properties",
            f"too large: with keys, tag and id {most} bytes, and {PROPERTIES_MAX} fit; put less in",
        )  # fmt: skip
    return fields


def multi_tags(rows: FrameRows) -> Any:
    """The rows whose tag is several tags, as a store notes it."""
    tags = rows.text("tag")
    if tags is None:
        return np.zeros(rows.count, np.bool_)
    return np.asarray(pc.match_substring(tags, TAG_SEPARATOR).fill_null(False))


# --- rows that came from records ------------------------------------------------------------------


def _of_records(rows: FrameRows, headers: Headers, maps: pa.Array | None) -> pa.Array:
    whole = headers.fields["properties"]
    if maps is None:
        if whole.null_count:
            raise _lacks_properties(rows, int(pc.index(whole.is_null(), True).as_py()))
        return whole
    joined = _joined(maps)
    _check_said(rows, maps)
    if whole.null_count == len(whole):
        return joined
    for row in np.flatnonzero(np.asarray(whole.is_valid())).tolist():
        if list(decode_properties(whole[row].as_py()).items()) != _pairs(maps[row].as_py()):
            raise rows.illegal(
                row, "properties",
                "not what headers.properties says, which comes before it; change that as well, or "
                "make headers null",
            )  # fmt: skip
    return pc.if_else(whole.is_valid(), whole, joined)


def _joined(maps: pa.Array) -> pa.Array:
    """The fields that maps give, with every pair as it is."""
    if maps.null_count:
        maps = pa.array([_pairs(one) for one in maps.to_pylist()], maps.type)
    pairs = pc.binary_join_element_wise(maps.keys, "\x01", maps.items, "\x02", "")
    lists = pa.ListArray.from_arrays(maps.offsets, pairs)
    return pc.binary_join(lists, "").cast(pa.binary())


def _check_said(rows: FrameRows, maps: pa.Array) -> None:
    """Raises if tag, keys or id are given and differ from the properties."""
    for name, column in _OWN:
        given = rows.keys if column == "keys" else rows.text(column)
        if given is None:
            continue
        held = pc.map_lookup(maps, pa.scalar(name), "first")
        said = pc.binary_join(given, " ") if column == "keys" else given
        if column == "message_id":
            # Without an id in its properties a record's id is made of its host and position.
            differs = pc.and_(held.is_valid(), pc.not_equal(said, held))
        else:
            differs = pc.not_equal(said.fill_null(""), held.fill_null(""))
        for row in np.flatnonzero(np.asarray(differs.fill_null(False))).tolist():
            found, due = given[row].as_py(), held[row].as_py()
            same = column == "keys" and found == [k for k in (due or "").split(" ") if k]
            if found is not None and not same:
                raise _contradicts(rows, row, column, found, due)


# --- rows that are new ----------------------------------------------------------------------------


def _is_plain(maps: pa.Array) -> bool:
    """Whether no map has a property for which there is a column."""
    names = maps.keys
    return not pc.any(pc.is_in(names, value_set=pa.array([n for n, _ in _OWN]))).as_py()


def _new(rows: FrameRows, maps: pa.Array | None, ids: Ids) -> pa.Array:
    given = rows.text("message_id")
    made = pa.array(ids(rows.count if given is None else given.null_count), pa.string())
    if given is None:
        given = made
    else:
        _refuse(rows, "message_id", given, _BAD_KEY)
        if given.null_count:
            given = pc.replace_with_mask(given, given.is_null(), made)
    parts = [pc.binary_join_element_wise(UNIQUE_ID, given, "\x01")]
    keys, tags = rows.keys, rows.text("tag")
    if keys is not None:
        flat = keys.flatten()
        if flat.null_count or pc.any(pc.match_substring_regex(flat, _BAD_KEY)).as_py():
            _refuse_keys(rows, keys)
        joined = pc.binary_join(keys, " ").fill_null("")
        text = pc.binary_join_element_wise("\x02" + KEYS, joined, "\x01")
        parts.append(pc.if_else(pc.equal(joined, ""), "", text))
    if tags is not None:
        _refuse(rows, "tag", tags, _BAD)
        text = pc.binary_join_element_wise("\x02" + TAGS, tags.fill_null(""), "\x01")
        parts.append(pc.if_else(tags.is_null(), "", text))
    parts.append(pa.scalar("\x02"))
    field = pc.binary_join_element_wise(*parts, "").cast(pa.binary())
    if maps is None:
        return field
    texts = pa.chunked_array([maps.keys, maps.items]).combine_chunks()
    if texts.null_count or pc.any(pc.match_substring_regex(texts, _BAD)).as_py():
        _refuse_pairs(rows, maps)
    return pc.binary_join_element_wise(field, _joined(maps), b"")


def _refuse(rows: FrameRows, column: str, texts: pa.Array, pattern: str) -> None:
    wrong = pc.match_substring_regex(texts, pattern).fill_null(False)
    if pc.any(wrong).as_py():
        row = int(pc.index(wrong, True).as_py())
        raise rows.illegal(
            row, column,
            f"{shown(texts[row].as_py())}, which is empty or has a character that separates texts "
            "in a record; make it null, or change it",
        )  # fmt: skip


def _refuse_keys(rows: FrameRows, keys: pa.Array) -> None:
    for row, mine in enumerate(keys.to_pylist()):
        if any(k is None or not k or set(k) & set("\x00\x01\x02 ") for k in mine or ()):
            raise rows.illegal(
                row, "keys",
                f"{shown(mine)}; a key has no blanks and none of the characters 0, 1 and 2, and "
                "is not empty: change it",
            )  # fmt: skip


def _refuse_pairs(rows: FrameRows, maps: pa.Array) -> None:
    for row, one in enumerate(maps.to_pylist()):
        _encoded(rows, row, dict(_pairs(one)))


def _encoded(rows: FrameRows, row: int, pairs: dict[str, str]) -> bytes:
    try:
        found = encode_properties(pairs)
    except MessageIllegal as e:
        raise rows.illegal(row, "properties", f"none that a record can have: {e}") from e
    if b"\0" in found:
        raise rows.illegal(row, "properties", "with the character 0 in it; take that out")
    return found


# --- some of both ---------------------------------------------------------------------------------


def _one_by_one(
    rows: FrameRows, headers: Headers | None, maps: pa.Array | None, ids: Ids
) -> pa.Array:
    texts = {column: rows.text(column) for column in ("message_id", "tag")}
    keys = rows.keys
    out = []
    for row in range(rows.count):
        pairs = dict(_pairs(maps[row].as_py())) if maps is not None else {}
        if headers is not None and headers.there[row]:
            whole = headers.fields["properties"][row].as_py()
            if whole is None and maps is None:
                raise _lacks_properties(rows, row)
            out.append(joined_properties(pairs) if whole is None else whole)
            continue
        own = {c: t[row].as_py() if t is not None else None for c, t in texts.items()}
        mine = keys[row].as_py() if keys is not None else None
        own["keys"] = " ".join(mine) if mine else None
        first: dict[str, str] = {}
        for name, column in _OWN:
            said, held = own[column], pairs.pop(name, None)
            if said is not None and held is not None and said != held:
                raise _contradicts(rows, row, column, said, held)
            value = said if said is not None else held
            if value is None and column == "message_id":
                value = ids(1)[0]
            if value is not None:
                first[name] = value
        out.append(_encoded(rows, row, first | pairs))
    return pa.array(out, pa.binary())


def _contradicts(rows: FrameRows, row: int, column: str, said: object, held: object) -> RowIllegal:
    name = next(name for name, one in _OWN if one == column)
    return rows.illegal(
        row, column,
        f"{shown(said)}, and property {name} is {shown(held)}; make them the same, or leave "
        f"{column} out",
    )  # fmt: skip


def _lacks_properties(rows: FrameRows, row: int) -> RowIllegal:
    return rows.illegal(
        row, "headers",
        "there without the column properties, which is a part of it; give it, or leave headers out",
    )  # fmt: skip


def _pairs(one: Any) -> list[tuple[str, str]]:
    return list(one or ())
