"""What the demo is made of: kinds of lines, sources that read the same twice, fair draws."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import kvstore
from kvstore import MessageTooLarge, StoreConfig
from kvstore.cli.demo.kinds import LineKinds
from kvstore.cli.demo.load import load
from kvstore.cli.demo.sources import Limited, Lines, StandardLibrary, topic_name
from kvstore.cli.demo.steps import Step
from kvstore.cli.draws import Draws, Sample
from kvstore.cli.sizes import rocketmq_queue_files

PYTHON = '''\
"""Doc.

def not_a_def
"""
import os

@decorated
class A:  # """ not a string
    x = 'a \\' b """ c'
    def f(self):
        """One line."""
        if x: pass
        y = """begin
        return
        end \\""" still""" + 1
        return y
async def g(): ...
raise ValueError
'''
KINDS = """string string string string import blank decorator class code def string control code
string string return def raise"""


def test_every_line_of_python_has_its_kind() -> None:
    kinds = LineKinds()
    assert [kinds.kind(line) for line in PYTHON.splitlines()] == KINDS.split()


def test_the_standard_library_reads_the_same_twice_line_for_line(tmp_path: Path) -> None:
    package = tmp_path / "package one"
    (package / "site-packages").mkdir(parents=True)
    (package / "site-packages" / "not.py").write_text("no")
    (package / "a file.py").write_bytes(b"x = 1\n\n  y\xff = 2")
    (tmp_path / "os.py").write_text("import x\n")
    source = StandardLibrary(tmp_path)
    found = list(source.messages())
    assert found == list(source.messages())
    assert [m.body for m in found] == [b"import x", b"x = 1", b"", "  y\ufffd = 2".encode()]
    assert [m.topic for m in found] == ["os"] + ["package_one"] * 3
    assert [m.keys[0] for m in found] == ["os.py"] + ["package_one/a_file.py"] * 3
    assert found[3].properties == {"line": "3", "indent": "2"}
    assert len(list(Limited(source, 2).messages())) == 2


def test_the_library_of_this_python_is_hundreds_of_thousands_of_lines_of_many_topics() -> None:
    source = StandardLibrary()
    topics = Counter(m.topic for m in Limited(source, 50_000).messages())
    assert sum(topics.values()) == 50_000
    assert len(topics) > 5


def test_json_lines_say_what_they_are_and_other_lines_are_text(tmp_path: Path) -> None:
    path = tmp_path / "in put.jsonl"
    path.write_text(
        '{"topic": "a b", "key": "k 1", "tag": "x|y z", "body": "b", "properties": {"p": 1}}\n'
        '{"keys": ["k", 2], "body": {"n": 1},'
        ' "properties": {"KEYS": "n", "e": "", "c": "\\u0001"}}\n'
        '{"anything": true}\n'
        "plain\n"
        "{broken\n"
    )
    found = list(Lines([path]).messages())
    assert [m.body for m in found] == [
        b"b", b'{"n":1}', b'{"anything": true}', b"plain", b"{broken",
    ]  # fmt: skip
    assert [m.topic for m in found] == ["a_b"] + ["in_put"] * 4
    assert [m.tag for m in found] == ["x_y_z", "json", "json", "text", "text"]
    assert [list(m.keys) for m in found[:3]] == [["k_1"], ["k", "2"], ["in_put.jsonl"]]
    assert found[0].properties == {"line": "1", "p": "1"}
    assert found[1].properties == {"line": "2", "c": " "}
    assert [m.queue for m in found] == [0, 0, 1, 2, 3]


@pytest.mark.parametrize("text", ["", "ü" * 300, "SCHEDULE_TOPIC_XXXX", "a/b c"])
def test_any_text_gives_a_topic_that_is_allowed(text: str) -> None:
    name = topic_name(text)
    assert 0 < len(name) <= 127
    assert name.isascii()
    assert name != "SCHEDULE_TOPIC_XXXX"


def test_a_sample_is_fair_and_the_same_every_time() -> None:
    counts: Counter[int] = Counter()
    for seed in range(300):
        sample: Sample[int] = Sample(10, seed)
        for item in range(100):
            slot = sample.slot()
            if slot is not None:
                sample.put(slot, item)
        assert len(set(sample.items)) == 10
        counts.update(sample.items)
    assert len(counts) == 100
    assert max(counts.values()) < 70, "30 are expected of each; 70 would be seven sigma"
    assert [Draws(7).below(100) for _ in range(3)] == [Draws(7).below(100)] * 3


def test_a_step_counts_every_fault_and_keeps_a_few() -> None:
    step = Step("x")
    for number in range(9):
        assert step.expect(number % 2 == 0, f"{number} is odd" + "!" * 1000) is (number % 2 == 0)
    for _ in range(9):
        step.fault("another")
    assert step.faults == 13
    assert len(step.problems) == 5
    assert max(map(len, step.problems)) == 300


def test_queue_files_take_whole_pages_and_whole_files() -> None:
    assert rocketmq_queue_files([1, 204, 205]) == (4096 * 4, 3 * 6_000_000)
    assert rocketmq_queue_files([300_001]) == (1465 * 4096, 12_000_000)


def test_a_message_that_the_store_refuses_is_named_by_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"body": "a"}\nplain\n')
    large = "y" * 3000
    (tmp_path / "more.txt").write_text(f"x\n{large}\n")
    files = [tmp_path / "in.jsonl", tmp_path / "more.txt"]
    config = StoreConfig(segment_size=65536, max_body=2000)
    with kvstore.open(tmp_path / "a", config) as store, pytest.raises(MessageTooLarge) as raised:
        load(store, Lines(files), lambda what, done, total: None)
    assert str(raised.value).startswith(f"{files[1]}, line 2: ")
    assert Limited(Lines(files), 3).place(1) == f"{files[0]}, line 2"
    (tmp_path / "os.py").write_text("import x\n\n")
    assert StandardLibrary(tmp_path).place(1) == f"{tmp_path / 'os.py'}, line 2"
