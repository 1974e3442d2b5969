"""The documents say what the code does: their examples decode, their tables and links hold."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Final

import click
import msgspec
import numpy as np
import pytest

import kvstore
import tiering
from kvstore import (
    ArchiveAccess,
    GroupConfig,
    GroupInfo,
    Message,
    StoreConfig,
    TopicConfig,
    TopicInfo,
    errors,
)
from kvstore.cli import kvmq
from kvstore.core.packed_pairs import find_in_block, pack_blocks, sort_pairs, unpack_block
from kvstore.index.key_parts import (
    BITS_A_KEY,
    BLOCK,
    FILTER_HASHES,
    GENERATION,
    HEAD,
    PIECE_BLOCKS,
)
from kvstore.index.keys import (
    ARCHIVE_FIRST,
    FAMILIES,
    FORMAT_VERSION,
    NOWHERE,
    Checkpoint,
    Location,
    RunKey,
    block_key,
    checkpoint_value,
    filter_key,
    head_key,
    location_key,
    location_value,
    part_prefix,
    read_block_key,
    read_checkpoint,
    read_location,
    read_part_prefix,
    read_run_key,
    read_timer,
    read_timer_count,
    run_key,
    timer_count_key,
    timer_key,
)
from kvstore.index.runs import RUN_MAX, Columns, count_of, pack_many, unpack
from kvstore.record.hashes import key_hash, key_hash_range
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.queue_reading import run_positions
from tiering.catalog.catalog import ArchiveRow
from tiering.executor.pool import WorkerDied
from tiering.policy.policy import Policy
from tiering.spark.options import ReadOptions, SinkOptions

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
PAGES: Final = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])

SEGMENT: Final = 7
STORED_AT: Final = 1767323045680
KEYS: Final = [("refunds", "o-17", 70000), ("orders", "o-17", 4096), ("orders", "o-18", 4321)]
ENTRIES: Final = [
    (4096, 125, 97, 1767323045680),
    (4321, 125, 97, 1767323045682),
    (70000, 180, 97, 1767323046382),
]


# -- reading the documents


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def example(text: str, name: str) -> bytes:
    """The bytes of the block that begins with ```hex NAME; its offsets have to be right."""
    found = re.search(rf"^```hex {name}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found is not None, f"there is no example {name}"
    lines = found[1].splitlines()
    assert [int(line[:4], 16) for line in lines] == list(range(0, 16 * len(lines), 16))
    return bytes.fromhex("".join(line[4:] for line in lines))


def fields_of(text: str, name: str) -> tuple[bytes, list[str]]:
    """The table under an example: all its bytes, and the fields' texts."""
    under = text.partition(f"```hex {name}\n")[2].partition("| bytes | field |\n")[2]
    table = under.partition("\n\n")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines()[1:]]
    written = "".join("".join(re.findall(r"`([0-9a-f]+)`", row[0])) for row in rows)
    return bytes.fromhex(written), [row[1].strip() for row in rows]


def row(*cells: object) -> str:
    """A table's row as the documents write it."""
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


# -- docs/keys.md


@pytest.mark.parametrize(
    "name",
    [
        "run-key",
        "location",
        "archived",
        "nowhere",
        "block-key",
        "block",
        "timer",
        "timer-count",
        "checkpoint",
    ],
)
def test_the_fields_of_an_example_in_keys_are_its_bytes_in_order(name: str) -> None:
    text = page("keys.md")
    assert fields_of(text, name)[0] == example(text, name)


def test_the_key_of_a_run_is_what_keys_says() -> None:
    text = page("keys.md")
    key = RunKey(segment=SEGMENT, topic=12, queue=3, first=1000)
    assert read_run_key(example(text, "run-key")) == key
    assert run_key(*key) == example(text, "run-key")
    said = fields_of(text, "run-key")[1]
    assert said == ["segment 7", "topic id 12", "queue 3", "first offset 1000"]


def test_a_location_is_what_keys_says() -> None:
    text = page("keys.md")
    raw = example(text, "location")
    assert read_location(raw[:16], raw[16:]) == (12, 3, Location(1000, SEGMENT, STORED_AT))
    assert location_key(12, 3, 1000) + location_value(SEGMENT, STORED_AT) == raw
    assert fields_of(text, "location")[1][2:] == [
        "first offset 1000",
        "value: segment 7",
        f"first store time {STORED_AT}",
    ]


def test_the_location_of_archived_messages_is_what_keys_says() -> None:
    text = page("keys.md")
    raw = example(text, "archived")
    topic, queue, location = read_location(raw[:16], raw[16:])
    assert (topic, queue, location) == (12, 3, Location(1000, ARCHIVE_FIRST + 5, STORED_AT))
    assert (location.is_archived, location.archive) == (True, 5)
    assert not Location(0, NOWHERE, 0).is_archived
    assert not Location(0, ARCHIVE_FIRST - 1, 0).is_archived
    assert fields_of(text, "archived")[1][2:4] == ["first offset 1000", "value: archive 5"]


def test_the_catalog_has_the_fields_that_keys_lists() -> None:
    text = page("keys.md").partition("## `archives`")[2].partition("\n## ")[0]
    for name in ArchiveRow.__struct_fields__:
        assert f"`{name}`" in text


def test_the_location_of_an_emptied_queue_is_what_keys_says() -> None:
    text = page("keys.md")
    raw = example(text, "nowhere")
    assert read_location(raw[:16], raw[16:]) == (12, 3, Location(1003, NOWHERE, 0))
    assert fields_of(text, "nowhere")[1][2:] == ["next offset 1003", "value: NOWHERE", "no time"]
    assert f"Its {len(raw)} bytes are the only thing" in page(
        "decisions/0004-an-empty-queue-keeps-its-end-as-a-location.md"
    )


def test_an_offset_and_its_history_are_what_keys_says(tmp_path: Path) -> None:
    """Written by a store: group 3 commits in topic 12, 382 ms into a second."""
    text = page("keys.md")
    config = StoreConfig(segment_size=64 << 10, clock=VirtualClock(1767323046382))
    with kvstore.open(tmp_path / "store", config) as store:
        store.create_topics([TopicConfig(name=f"t{i}", queues=6) for i in range(1, 13)])
        store.create_groups([GroupConfig(name=f"g{i}") for i in range(1, 4)])
        store.put_batch([Message("t12", b"", queue=5)] * 1003)
        inside.offsets(store).recovered(store.stats().end_position)
        inside.offsets(store).recovered(store.stats().end_position)
        store.commit_offset("g3", "t12", 5, 1003)
        families = inside.families(store)
        [offset], [history] = (list(families.rows(f, b"")) for f in ("offsets", "offset_history"))
        store.reset_offset("g3", "t12", offset=1003 - 17, queue=5)
        assert store.pop("g3", "t12", queue=5, filter="paid") == []
        [passed] = list(families.rows("offsets", b""))
    assert b"".join(offset) == example(text, "offset")
    assert b"".join(passed) == example(text, "offset-passed")
    assert b"".join(history) == example(text, "history")
    said = ["key: group id 3", "topic id 12", "queue 5"]
    assert fields_of(text, "offset")[1] == [*said, "value: offset 1003", "2 recoveries"]
    assert fields_of(text, "history")[1] == [
        *said,
        "interval from 1767323046000",
        "value: offset 1003",
        "2 recoveries",
        "committed 382 ms later",
    ]


def test_the_rows_of_topics_and_groups_have_the_fields_that_groups_lists() -> None:
    text = page("groups.md")
    for heading, kind in (("A topic's row", TopicInfo), ("A group's row", GroupInfo)):
        part = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        fields = re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)
        assert fields == list(kind.__struct_fields__)


def test_a_message_that_waits_is_what_keys_says() -> None:
    raw = example(page("keys.md"), "timer")
    assert read_timer(raw[:16], raw[16:]) == (1767326645680, 7516262768, 12, 412)
    assert timer_key(1767326645680, 7516262768) == raw[:16]
    raw = example(page("keys.md"), "timer-count")
    assert timer_count_key(12) == raw[:16]
    assert read_timer_count(raw[:16], raw[16:]) == (12, 3000)


def test_the_checkpoint_is_what_keys_says() -> None:
    text = page("keys.md")
    raw = example(text, "checkpoint")
    value = Checkpoint(7516262768, 7516262768, 41, 1767323046382, clean=True)
    assert read_checkpoint(raw) == value
    assert checkpoint_value(value) == raw
    assert f"The value of `checkpoint` is {len(raw)} bytes" in text
    said = " ".join(fields_of(text, "checkpoint")[1])
    assert [int(n) for n in re.findall(r"\d+", said)] == [7516262768, 41, 1767323046382]


def test_the_hashes_of_the_example_keys_are_what_keys_says() -> None:
    text = page("keys.md")
    for topic, key, position in KEYS:
        found = key_hash(topic.encode(), key.encode())
        assert row(f"`{topic}`", f"`{key}`", f"`{found:09x}`", position) in text


def test_a_key_block_decodes_to_the_pairs_keys_lists() -> None:
    text = page("keys.md")
    key = example(text, "block-key")
    first, sequence = read_block_key(key)
    hashes, positions = unpack_block(first, example(text, "block"))
    wanted = [(key_hash(t.encode(), k.encode()), p) for t, k, p in KEYS]
    assert (*read_part_prefix(key), sequence) == (0, SEGMENT, 0, 0)
    assert f"first hash {first:09x}, sequence 0" in text
    assert list(zip(hashes.tolist(), positions.tolist(), strict=True)) == wanted
    distances = [h - first for h, _ in wanted]
    said = fields_of(text, "block")[1]
    assert said[2] == f"distances {distances[0]}, {distances[1]} and {distances[2]}"
    assert said[3] == f"positions {wanted[0][1]}, {wanted[1][1]} and {wanted[2][1]}"


def test_the_code_packs_the_pairs_of_keys_into_the_bytes_it_shows() -> None:
    text = page("keys.md")
    hashes = np.array([key_hash(t.encode(), k.encode()) for t, k, _ in reversed(KEYS)])
    positions = np.array([p for _, _, p in reversed(KEYS)])
    [(first, value)] = pack_blocks(*sort_pairs(hashes, positions), BLOCK)
    assert value == example(text, "block")
    assert block_key(part_prefix(0, SEGMENT, 0), first, 0) == example(text, "block-key")


def test_one_range_of_the_example_block_has_a_key_in_all_topics() -> None:
    text = page("keys.md")
    first, _ = read_block_key(example(text, "block-key"))
    found = find_in_block(first, example(text, "block"), *key_hash_range(b"o-17"))
    assert sorted(position for _, position in found) == [4096, 70000]


def test_keys_says_what_a_part_and_its_filter_are() -> None:
    text = page("keys.md")
    assert f"The head is {HEAD.size} bytes" in text
    assert f"{BITS_A_KEY} bits for each of the part's pairs, {FILTER_HASHES} bits set" in text
    assert f"{PIECE_BLOCKS} blocks are a piece" in text
    prefix = part_prefix(0, 0, 0)
    assert block_key(prefix, 1, 1)[-8:] == (2**23 + 1).to_bytes(8, "big")
    assert filter_key(prefix, 1)[-8:] == (2**63 + 1).to_bytes(8, "big")
    assert head_key(prefix)[-8:].hex() in text
    assert f"`g × {GENERATION}^l`" in text


def _first_cells(table: str) -> list[str]:
    return [line.split("|")[1] for line in table.splitlines()[2:]]


def test_keys_has_a_row_for_every_family_and_the_format_version() -> None:
    text = page("keys.md")
    table = text.partition("| family | key |")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"`(\w+)`", "".join(_first_cells(table)))) == FAMILIES
    assert f"| `format` | format version, 4 bytes: {FORMAT_VERSION} |" in text


# -- docs/runs.md


def columns(entries: list[tuple[int, int, int, int]]) -> Columns:
    return Columns(*(np.array(column, dtype=np.int64) for column in zip(*entries, strict=True)))


def test_the_fields_of_the_example_in_runs_are_its_bytes_in_order() -> None:
    text = page("runs.md")
    assert fields_of(text, "run")[0] == example(text, "run")


def test_the_example_run_decodes_to_the_entries_runs_lists() -> None:
    text = page("runs.md")
    value = example(text, "run")
    found = unpack(value)
    assert [tuple(e) for e in np.stack(found, axis=1).tolist()] == ENTRIES
    assert count_of(value) == len(ENTRIES)
    assert run_positions(value) == [e[0] for e in ENTRIES]
    for entry in ENTRIES:
        assert row(*entry) in text


def test_the_code_packs_the_entries_of_runs_into_the_bytes_it_shows() -> None:
    text = page("runs.md")
    value = pack_many(columns(ENTRIES), np.array([0])).data
    assert value == example(text, "run")
    assert f"make a run of {len(value)} bytes" in text


def test_runs_says_how_long_a_run_may_be() -> None:
    assert f"up to {RUN_MAX:,} consecutive entries" in page("runs.md")
    assert f"up to {RUN_MAX:,} consecutive entries" in page("keys.md")


# -- settings


def default_of(field: msgspec.structs.FieldInfo) -> str:
    """A setting's default as Python shows it; a value of nothing but defaults as a call."""
    if field.default is msgspec.NODEFAULT:
        assert callable(field.default_factory)
        return f"{field.default_factory.__name__}()"
    value = field.default
    if isinstance(value, msgspec.Struct) and value == type(value)():
        return f"{type(value).__name__}()"
    return f'"{value}"' if isinstance(value, str) else repr(value)


SETTINGS: Final = msgspec.structs.fields(StoreConfig)


@pytest.mark.parametrize("field", SETTINGS, ids=[field.name for field in SETTINGS])
def test_every_setting_is_documented_with_its_default(field: msgspec.structs.FieldInfo) -> None:
    assert f"| `{field.name}` | `{default_of(field)}` |" in page("settings.md")


def test_no_setting_is_documented_that_there_is_not() -> None:
    documented = re.findall(r"^\| `(\w+)` \| `", page("settings.md"), re.MULTILINE)
    assert documented == [field.name for field in SETTINGS]


@pytest.mark.parametrize("field", SETTINGS, ids=[field.name for field in SETTINGS])
def test_every_setting_is_named_in_the_docstring_of_its_class(
    field: msgspec.structs.FieldInfo,
) -> None:
    assert f"`{field.name}`" in (StoreConfig.__doc__ or "")


UNITS: Final = {
    "s": 1, "seconds": 1, "minutes": 60, "an hour": 3600, "hours": 3600, "a day": 86400,
    "days": 86400, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
}  # fmt: skip


def values_in(text: str) -> list[tuple[str, float]]:
    """Each "`name` (value unit)" of a text, in seconds or bytes."""
    units = "|".join(UNITS)
    found = re.findall(rf"`(?:\w+\.)?(\w+)` \(([\d.,]+ )?({units})[),;]", " ".join(text.split()))
    return [(name, float(n.replace(",", "") or 1) * UNITS[unit]) for name, n, unit in found]


def test_the_values_that_documents_give_behind_a_settings_name_are_its_defaults() -> None:
    defaults = {
        field.name: field.default
        for kind in (Policy, ArchiveAccess, StoreConfig)
        for field in msgspec.structs.fields(kind)
    }
    said = [
        (path.name, name, value)
        for path in PAGES
        for name, value in values_in(path.read_text(encoding="utf-8"))
        if name in defaults
    ]
    assert len(said) >= 8
    assert [row for row in said if row[2] != defaults[row[1]]] == []


def test_a_value_behind_a_settings_name_is_read_with_its_unit() -> None:
    text = "`flush_interval` (0.5 s), `stage_bytes` (4 MiB, say) and `clock_doubt` (a day)"
    assert values_in(text) == [
        ("flush_interval", 0.5),
        ("stage_bytes", 4 << 20),
        ("clock_doubt", 86400),
    ]


# -- links


def anchors(path: Path) -> set[str]:
    """The names by which a page's headings can be linked to."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


def broken_links(path: Path) -> list[str]:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("path", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_every_relative_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    assert broken_links(path) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("# One `thing`\n[a](#one-thing) [b](page.md#two) [c](none.md) [d](https://e.f)")
    assert broken_links(path) == ["page.md#two", "none.md"]


# -- errors


ERRORS: Final = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if kind.__module__ == errors.__name__
]


def test_the_module_of_errors_has_errors() -> None:
    assert errors.StoreError in ERRORS


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_says_what_it_means(kind: type[BaseException]) -> None:
    assert (vars(kind).get("__doc__") or "").strip()
    assert issubclass(kind, errors.StoreError)


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_is_public(kind: type[BaseException]) -> None:
    import kvstore

    assert getattr(kvstore, kind.__name__) is kind
    assert kind.__name__ in kvstore.__all__


# -- examples in Python


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_every_example_in_python_compiles(path: Path) -> None:
    for block in python_blocks(path):
        compile(block, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_examples_of_consuming_popping_and_pulling_in_start_run(tmp_path: Path) -> None:
    consuming, popping, pulling = (
        block
        for block in python_blocks(DOCS / "start.md")
        if block.startswith(("store.create_group", "for popped in store.pop", "offset ="))
    )
    handled: list[bytes] = []
    config = StoreConfig(segment_size=64 << 10, auto_create_topics=True)
    with kvstore.open(tmp_path / "store", config) as store:
        store.put_batch([Message("orders", b"box", queue=3, tag="paid")] * 2)
        store.put("refunds", b"bag")
        names = {"store": store, "handle": lambda message: handled.append(message.body)}
        exec(consuming, names)
        assert sorted(handled) == [b"bag", b"box", b"box"]
        store.put("orders", b"box", queue=3, tag="paid")
        exec(popping, names)
        assert len(handled) == 4
        assert store.committed_offset("billing", "orders", 3) == 3
        store.put("orders", b"box", queue=3, tag="paid")
        exec(pulling, names)
        assert store.committed_offset("billing", "orders", 3) == 4


# -- commands


def commands_in(text: str) -> list[str]:
    """The uses of `kvmq` that a page shows: in code spans, and at the beginning of code lines."""
    spans = re.findall(r"`kvmq ([^`]*)`", " ".join(text.split()))
    lines = re.findall(r"^(?:    |\$ )?kvmq (.*?)(?:  .*)?$", text, re.MULTILINE)
    return spans + lines


def unknown_in(use: str) -> list[str]:
    """The words and options of a use that the command does not have."""
    command: click.Command = kvmq
    context = click.Context(kvmq)
    words = [word for part in use.split(" -- ")[:1] for word in part.split()]
    reached: list[click.Command] = []
    for word in words:
        if not isinstance(command, click.Group):
            break
        found = [command.get_command(context, name) for name in word.split("\\|")]
        if found[0] is None:
            if re.fullmatch(r"[a-z-]+", word):
                return [word]
            break
        command = found[0]
    if isinstance(command, click.Group):
        reached = [
            c for n in command.list_commands(context) if (c := command.get_command(context, n))
        ]
    known = {
        option
        for each in [command, *reached]
        for parameter in each.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help"}
    named = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", " ".join(words))
    return [option for option in named if option not in known]


@pytest.mark.parametrize("path", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_every_command_in_the_documents_has_the_verbs_and_options_named(path: Path) -> None:
    uses = commands_in(path.read_text(encoding="utf-8"))
    assert {use: found for use in uses if (found := unknown_in(use))} == {}


def test_an_unknown_verb_and_an_unknown_option_are_found() -> None:
    assert commands_in("Use `kvmq tier\nfind DIR`.\n\n    kvmq get DIR --speed 9    fast\n") == [
        "tier find DIR",
        "get DIR --speed 9",
    ]
    assert unknown_in("tier find DIR") == ["find"]
    assert unknown_in("get DIR --speed 9 --id X") == ["--speed"]
    assert unknown_in("erase topic DIR orders --dry-run") == []


# -- names


FOREIGN: Final = {"AzureConfig", "ClientConfig", "UploadPartCopy", "ValueError"}
"""Names of other libraries and protocols that the documents mention."""
TOUR: Final = "tour.md"
"""Its names are inside the rooms, and `test_tour` checks them."""


def code_spans(path: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    return re.findall(r"`([^`]+)`", " ".join(text.split()))


@pytest.mark.parametrize("path", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_every_file_and_folder_that_a_document_names_is_there(path: Path) -> None:
    named = [
        span
        for span in code_spans(path)
        if re.fullmatch(r"(kvstore|tiering|pyspark_kvmq|kombu_kvmq|tests|bench|docs)/[\w/.]*", span)
    ]
    assert [span for span in named if not (ROOT / span).exists()] == []


def is_there(root: object, dotted: str) -> bool:
    """Whether a dotted name leads from an object, or from a package, to something."""
    names = dotted.split(".")
    found = root
    for i, name in enumerate(names):
        if not hasattr(found, name):
            if not inspect.ismodule(found):
                return False
            try:
                importlib.import_module(".".join([root.__name__, *names[: i + 1]]))  # type: ignore[attr-defined]  # a module has a name
            except ImportError:
                return False
        found = getattr(found, name)
    return True


def test_every_name_of_the_api_in_the_documents_is_there(tmp_path: Path) -> None:
    public = {
        *dir(kvstore),
        *kvstore.__all__,
        *dir(tiering),
        *dir(tiering.errors),
        WorkerDied.__name__,
        *FOREIGN,
    }
    missing = []
    with kvstore.open(tmp_path / "store", StoreConfig(segment_size=64 << 10)) as store:
        roots = {"store": store, "kvstore": kvstore, "tiering": tiering}
        roots |= {name: getattr(tiering, name) for name in ("Worker", "Policy", "KeyFile")}
        for path in PAGES:
            for span in code_spans(path):
                if path.name != TOUR and re.fullmatch(r"[A-Z][a-z]+([A-Z][a-z]+)+", span):
                    missing += [(path.name, span)] if span not in public else []
                called = re.match(rf"({'|'.join(roots)})\.([A-Za-z_][\w.]*\w)", span)
                if called and not is_there(roots[called[1]], called[2]):
                    missing.append((path.name, span))
    assert missing == []


def test_a_name_that_the_api_lacks_is_found() -> None:
    assert is_there(tiering, "spark.session.session")
    assert is_there(kvstore, "StoreConfig.archives")
    assert not is_there(tiering, "spark.session.nothing")
    assert not is_there(kvstore, "nothing.at.all")


# -- docs/spark.md


def options_in(title: str) -> dict[str, str]:
    """The options and defaults in the table of a section of docs/spark.md."""
    section = page("spark.md").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    table = section.partition("| option | default | meaning |\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in table.splitlines()[1:]]
    return {name: default for names, default in rows for name in re.findall(r"`(.+?)`", names)}


@pytest.mark.parametrize(
    ("kind", "titles"), [(ReadOptions, ["Options", "Streams"]), (SinkOptions, ["Writing archives"])]
)
def test_the_options_of_spark_are_those_documented(
    kind: type[msgspec.Struct], titles: list[str]
) -> None:
    documented = [name for title in titles for name in options_in(title)]
    fields = [field for field in kind.__struct_fields__ if field not in ("path", "place")]
    assert sorted(documented) == sorted([*fields, "place.NAME"])


def test_the_defaults_of_sparks_options_are_those_documented() -> None:
    reading, writing = ReadOptions(path="data"), SinkOptions(path="data")
    said = options_in("Options")
    assert said["split_bytes"] == str(reading.split_bytes)
    assert (said["hot"], said["damaged"]) == (f"`{str(reading.hot).lower()}`", "`fail`")
    assert options_in("Streams")["starting_offsets"] == f"`{reading.starting_offsets}`"
    said = options_in("Writing archives")
    assert said["archive_bytes"] == str(writing.archive_bytes)
    assert said["spill_bytes"] == str(writing.spill_bytes)
    assert said["retention_class"] == f"`{writing.retention_class}`"
    assert f"{writing.block_bytes}" in said["block_bytes"]


# -- prose


WORDS_MAX: Final = 40
OPENING: Final = re.compile(
    r"(?:^|[.:|*] +|^[-#\d.]+ )\**((?:What|Whoever|Who|Have the|Take note)\b[^.|\n]*)", re.MULTILINE
)


@pytest.mark.parametrize("path", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_sentences_and_headings_begin_with_a_noun_or_a_verb_and_not_with_what(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    assert OPENING.findall(text) == []


# -- docs/words.md


def faults_of_words(text: str) -> list[str]:
    """Too many words, words that are there twice or out of order, and meanings told as two."""
    rows = re.findall(r"(?m)^\| ([^|]+) \| (.+) \|$", text.partition("|---|---|\n")[2])
    words = [word for word, _ in rows]
    found = [f"{len(words)} words"] if not 0 < len(words) <= WORDS_MAX else []
    if words != sorted(set(words)):
        found.append("not in order, or twice")
    return found + [word for word, meaning in rows if "; also" in meaning]


def test_there_are_at_most_forty_words_with_one_meaning_each() -> None:
    assert faults_of_words(page("words.md")) == []


def test_a_word_too_many_or_with_two_meanings_is_found() -> None:
    head = "| word | meaning |\n|---|---|\n"
    many = "".join(f"| w{n} | a thing |\n" for n in range(10, 10 + WORDS_MAX + 1))
    assert faults_of_words(head + many) == ["41 words"]
    assert faults_of_words(head + "| b | one; also, two |\n| a | one |\n") == [
        "not in order, or twice",
        "b",
    ]
