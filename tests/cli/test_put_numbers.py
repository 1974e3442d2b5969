"""`kvmq put`: numbers of lines and options that are none, or that no message can have."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

import kvstore
from tests.cli.conftest import Kvmq
from tests.support.served import open_served
from tests.support.stores import SMALL

LINES: Final = [
    *((name, text) for name in ("queue", "delay_level", "deliver_at", "expires_at")
      for text in ("-1", "-9223372036854775808", "9223372036854775807", "9223372036854775808",
                   "18446744073709551616", "1" + "0" * 400, "1.5", "1e400", "-1e400", "NaN",
                   "Infinity", "true", '"5"')),
    *(("delay", text) for text in ("-1", "-0.001", "1e400", "-1e400", "NaN", "-Infinity", "1e300",
                                   "1" + "0" * 400, "9223372036854775808", "true", '"5"')),
    ("deliver_at", "0"), ("deliver_at", "1700000000"), ("deliver_at", "10000000000000"),
    ("expires_at", "0"), ("expires_at", "1700000000"), ("delay_level", "19"), ("queue", "4"),
]  # fmt: skip


@pytest.mark.parametrize("is_served", [False, True])
def test_a_number_of_a_line_is_refused_with_the_lines_number(
    kvmq: Kvmq, tmp_path: Path, is_served: bool
) -> None:
    """The lines before it are stored, as the command says; it and those behind it are not."""
    path = tmp_path / "s"
    with kvstore.open(path, SMALL) as store:
        store.create_topic("t", queues=4)
    store = (open_served if is_served else kvstore.open)(path, SMALL)
    lines = tmp_path / "lines"
    for n, (name, text) in enumerate(LINES):
        lines.write_text(f'{{"body": "a"}}\n{{"body": "b", "{name}": {text}}}\n{{"body": "c"}}\n')
        if not is_served:
            store.close()
        ran = kvmq("put", path, "t", str(lines), "--jsonl", "--json")
        assert (ran.code, len(ran.lines)) == (1, 1), (name, text, ran.err)
        assert ran.error["error"] in ("MessageIllegal", "CallerError"), ran.err
        assert "line 2: " in ran.error["message"], ran.err
        if not is_served:
            store = kvstore.open(path, SMALL)
        assert sum(store.bounds("t", queue).next_offset for queue in range(4)) == n + 1
        assert store.timers().count == 0
    store.close()


@pytest.mark.parametrize(
    "words",
    [(option, value)
     for option in ("--delay", "--ttl", "--deliver-at", "--expires-at", "--queue", "--delay-level")
     for value in ("-1", "nan", "inf", "-inf", "1e400", "1" + "0" * 400, "9223372036854775808")],
)  # fmt: skip
def test_a_number_of_an_option_is_refused(
    kvmq: Kvmq, tmp_path: Path, words: tuple[str, str]
) -> None:
    with kvstore.open(tmp_path / "s", SMALL) as store:
        store.create_topic("t", queues=4)
    ran = kvmq("put", tmp_path / "s", "t", "--body", "x", *words)
    assert ran.code in (1, 2)
    assert "Traceback" not in ran.err
    with kvstore.open(tmp_path / "s", SMALL) as store:
        assert store.stats().end_position == 0
