"""Property maps: maps, keys, tags and ids of rows -> the properties fields of records.

The idea: a field is text made of text, so Arrow joins it for all rows of a batch at once. Rows that
came from records (their `headers` are there) have the field in their map, or whole where a map
can't say it. Other rows get the entries that a store writes before the map's pairs: id, keys, tag.

Invariants: two columns that contradict each other are an error, neither is passed over; a field
that a reader could not read back is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.core.names import KEYS, TAG_SEPARATOR, TAGS, UNIQUE_ID
from kvstore.core.records import decode_properties
from kvstore.errors import MessageIllegal, shown
from kvstore.record.layout import PROPERTIES_MAX
from kvstore.record.properties import encode_properties
from tiering.errors import RowIllegal
from tiering.spark.sink.frame_columns import FrameRows, Headers

Ids = Callable[[int], list[str]]
"""Gives so many new ids."""
_BAD: Final = "[\\x00\\x01\\x02]|^$"
_BAD_KEY: Final = "[\\x00\\x01\\x02 ]|^$"
_OWN: Final = ((UNIQUE_ID, "message_id"), (KEYS, "keys"), (TAGS, "tag"))


def property_fields(rows: FrameRows, headers: Headers | None, ids: Ids) -> pa.Array:
    """The properties field of every row, as binary. Raises RowIllegal."""
    if headers is None:
        fields = _new(rows, ids)
    elif headers.there.all():
        fields = _of_records(rows, headers)
    else:
        given = rows.where(headers.there)
        each = property_fields(given, given.headers(), ids), _new(rows.where(~headers.there), ids)
        # Rows with headers are in front; this is where each row of the batch is among them.
        order = np.argsort(np.argsort(~headers.there, kind="stable"))
        fields = pa.concat_arrays(each).take(pa.array(order))
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
    tags = rows.column("tag")
    if tags is None:
        return np.zeros(rows.count, np.bool_)
    return np.asarray(pc.match_substring(tags, TAG_SEPARATOR).fill_null(False))


# --- rows that came from records ------------------------------------------------------------------


def _of_records(rows: FrameRows, headers: Headers) -> pa.Array:
    maps, whole = rows.column("properties"), headers.fields["properties"]
    if maps is None:
        if whole.null_count:
            raise rows.illegal(
                int(pc.index(whole.is_null(), True).as_py()), "headers",
                "there without the column properties, which is a part of it; give it, or leave "
                "headers out",
            )  # fmt: skip
        return whole
    joined = _joined(maps)
    _check_said(rows, maps)
    if whole.null_count == len(whole):
        return joined
    for row in np.flatnonzero(np.asarray(whole.is_valid())).tolist():
        if list(decode_properties(whole[row].as_py()).items()) != maps[row].as_py():
            raise rows.illegal(
                row, "properties",
                "not what headers.properties says, which comes before it; change that as well, or "
                "make headers null",
            )  # fmt: skip
    return pc.if_else(whole.is_valid(), whole, joined)


def _joined(maps: pa.Array) -> pa.Array:
    """The fields that maps give, with every pair as it is."""
    pairs = pc.binary_join_element_wise(maps.keys, "\x01", maps.items, "\x02", "")
    lists = pa.ListArray.from_arrays(maps.offsets, pairs)
    return pc.binary_join(lists, "").cast(pa.binary())


def _check_said(rows: FrameRows, maps: pa.Array) -> None:
    """Raises if tag, keys or id are given and differ from the properties."""
    for name, column in _OWN:
        given = rows.column(column)
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


def _new(rows: FrameRows, ids: Ids) -> pa.Array:
    maps, keys = rows.column("properties"), rows.column("keys")
    own: dict[str, pa.Array] = {}
    if maps is not None:
        texts = pa.chunked_array([maps.keys, maps.items]).combine_chunks()
        if texts.null_count or pc.any(pc.match_substring_regex(texts, _BAD)).as_py():
            _refuse_pairs(rows, maps)
        own, maps = _without_own(maps)
    given, tags = rows.column("message_id"), rows.column("tag")
    if given is not None:
        _refuse(rows, "message_id", given, _BAD_KEY)
    if tags is not None:
        _refuse(rows, "tag", tags, _BAD)
    if keys is not None:
        flat = keys.flatten()
        if flat.null_count or pc.any(pc.match_substring_regex(flat, _BAD_KEY)).as_py():
            _refuse_keys(rows, keys)
        joined = pc.binary_join(keys, " ")
        keys = pc.if_else(pc.equal(joined, ""), None, joined)
    said = {"message_id": given, "keys": keys, "tag": tags}
    parts: list[pa.Array] = []
    for name, column in _OWN:
        found = _agreed(rows, column, said[column], own.get(name))
        if column == "message_id":
            made = pa.array(ids(found.null_count), pa.string())
            found = pc.replace_with_mask(found, found.is_null(), made)
        pair = pc.binary_join_element_wise(f"{name}\x01", found, "\x02", "")
        parts.append(pc.if_else(found.is_null(), "", pair))
    field = pc.binary_join_element_wise(*parts, "").cast(pa.binary())
    return field if maps is None else pc.binary_join_element_wise(field, _joined(maps), b"")


def _without_own(maps: pa.Array) -> tuple[dict[str, pa.Array], pa.Array]:
    """The values of properties for which there is a column, by name; and the maps without them."""
    names = [name for name, _ in _OWN]
    is_own = pc.is_in(maps.keys, value_set=pa.array(names))
    if not pc.any(is_own).as_py():
        return {}, maps
    rest = pc.invert(is_own)
    ends = np.append(0, np.cumsum(np.asarray(rest)))[np.asarray(maps.offsets)]
    own = {name: pc.map_lookup(maps, pa.scalar(name), "first") for name in names}
    offsets = pa.array(ends, pa.int32())
    return own, pa.MapArray.from_arrays(offsets, maps.keys.filter(rest), maps.items.filter(rest))


def _agreed(rows: FrameRows, column: str, said: pa.Array | None, held: pa.Array | None) -> pa.Array:
    """The values of a column, or of the property that says the same."""
    nothing = pa.nulls(rows.count, pa.string())
    said, held = (nothing if one is None else one for one in (said, held))
    differs = pc.not_equal(said, held).fill_null(False)
    if pc.any(differs).as_py():
        row = int(pc.index(differs, True).as_py())
        raise _contradicts(rows, row, column, said[row].as_py(), held[row].as_py())
    return pc.coalesce(said, held)


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
    for row, pairs in enumerate(maps.to_pylist()):
        try:
            encoded = encode_properties(dict(pairs))
        except MessageIllegal as e:
            raise rows.illegal(row, "properties", f"none that a record can have: {e}") from e
        if b"\0" in encoded:
            raise rows.illegal(row, "properties", "with the character 0 in it; take that out")


def _contradicts(rows: FrameRows, row: int, column: str, said: object, held: object) -> RowIllegal:
    name = next(name for name, one in _OWN if one == column)
    return rows.illegal(
        row, column,
        f"{shown(said)}, and property {name} is {shown(held)}; make them the same, or leave "
        f"{column} out",
    )  # fmt: skip
