"""The example in docs/log-format.md is a record, and is what the document says it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.reference.encode import encode_record
from tests.support.decoding import decode

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "log-format.md"
POSITION: Final = 4096


def example(text: str) -> bytes:
    found = re.search(r"```hex\n(.*?)```", text, re.DOTALL)
    assert found is not None
    lines = found[1].splitlines()
    assert [int(line[:4], 16) for line in lines] == list(range(0, 16 * len(lines), 16))
    return bytes.fromhex("".join(line[4:] for line in lines))


def test_the_example_is_the_record_it_is_said_to_be() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    raw = example(text)
    m = decode(raw, 0, len(raw), position=POSITION)
    assert encode_record(m) == raw
    assert (m.topic, m.queue, m.offset, m.size, m.body) == ("orders", 3, 42, 125, b"hello")
    assert m.properties == {"TAGS": "paid", "KEYS": "order-7"}
    assert (m.born_host, m.store_host) == (("10.0.0.1", 40001), ("10.0.0.2", 10911))
    assert (m.born_at, m.stored_at) == (1767323045678, 1767323045680)
    assert f"`{m.position_id}`" in text


def test_the_fields_of_the_example_are_its_bytes_in_order() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    table = text.split("| bytes | field |")[1].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert "".join(re.findall(r"`([0-9a-f]+)`", "".join(cells))) == example(text).hex()
