"""A checkpoint that is written in pieces: wherever it is cut short, each message is there once.

Pieces are made small here. A store with many queues and keys, over a border of segments, is
checkpointed; after each write, or in the place of one, the process dies or the disk fails.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import kvstore
from kvstore import FormatTooNew, Message, Store, StoreConfig
from kvstore.core.packed_pairs import pack_block
from kvstore.engine.verification.verify import verify
from kvstore.index import families as families_module
from kvstore.index import pieces
from kvstore.index.families import Batch, check_format
from kvstore.index.key_parts import read_parts
from kvstore.index.keys import (
    AHEAD,
    FORMAT,
    FORMAT_AHEAD,
    FORMAT_VERSION,
    MESSAGE_KEYS,
    META,
    PLACES,
    RUNS,
    U32,
    block_key,
)
from kvstore.opening import viewing
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.contents import read_all
from tests.support.stores import SEGMENT, killed, settings
from tests.support.struck import struck_behind

QUEUES: Final = 7
HELD: Final = 150
"""Messages that the checkpoint before covers."""
ALL: Final = 400
CONFIG: Final = settings(checkpoint_interval=1e9, clock=VirtualClock())


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_PIECE", 900)


def add(store: Store, first: int, count: int) -> None:
    """Messages that each have a key of their own and one of all."""
    store.put_batch(
        [
            Message("t", b"%d" % n * 20, queue=n % QUEUES, tag=f"t{n % 5}", keys=[f"k{n}", "all"])
            for n in range(first, first + count)
        ]
    )


def filled(path: Path) -> Store:
    """A store with a checkpoint, and a tail that begins in its segment and ends in the next."""
    store = kvstore.open(path, config=CONFIG)
    inside.stop_housekeepers(store)
    store.create_topic("t", QUEUES)
    store.create_topic("lone", 1)
    add(store, 0, HELD)
    store.checkpoint()
    add(store, HELD, ALL - HELD)
    store.put("lone", b"", queue=0)
    assert inside.log(store).end > SEGMENT > inside.index(store).checkpoint.position
    return store


def assert_has(store: Store, count: int) -> None:
    """The first `count` messages, each once, and an index that says so."""
    held = read_all(store)
    assert len(held.pop(("lone", 0))) == 1
    assert store.recovery.damage == []
    assert sum(len(found) for found in held.values()) == count
    for (_, queue), found in held.items():
        numbers = [int(m.body[: len(m.body) // 20]) for m in found]
        assert numbers == list(range(queue, count, QUEUES))
        assert [m.offset for m in found] == list(range(len(found)))
    assert len(store.query("t", "all", limit=10 * count)) == count
    for n in range(count):
        assert [m.body for m in store.query("t", f"k{n}")] == [b"%d" % n * 20]
    assert store.verify().problems == []


def rows(store: Store) -> list[tuple[bytes, bytes]]:
    """The rows of runs and locations."""
    families = inside.families(store)
    return [*families.rows(RUNS, b""), *families.rows(PLACES, b"")]


def writes(store: Store, work: Callable[[], object]) -> int:
    return struck_behind(store, 0, work)


@pytest.fixture
def cuts(tmp_path: Path) -> list[Path]:
    """The store's folder as a kill behind each write of a checkpoint leaves it."""
    store = filled(tmp_path / "store")
    found = list[Path]()
    families = inside.families(store)
    write = families.write

    def watched(batch: Batch, *, sync: bool = False) -> None:
        write(batch, sync=sync)
        found.append(killed(store, tmp_path / f"cut{len(found)}"))

    families.write = watched  # type: ignore[method-assign]  # to look between two steps
    store.checkpoint()
    families.write = write  # type: ignore[method-assign]  # as it was
    store.close()
    assert len(found) > 10
    return found


def test_a_kill_behind_any_piece_leaves_each_message_once(cuts: list[Path]) -> None:
    replayed = []
    for path in cuts:
        with kvstore.open(path, config=CONFIG) as store:
            assert_has(store, ALL)
            replayed.append(store.recovery.entries)
            assert inside.families(store).get(META, AHEAD) is None
            add(store, ALL, 50)
            store.seal()
            assert_has(store, ALL + 50)
        with kvstore.open(path, config=CONFIG) as store:
            assert_has(store, ALL + 50)
    assert replayed == sorted(replayed, reverse=True)
    assert replayed[0] < ALL - HELD
    assert replayed[-1] == 0


@pytest.mark.parametrize("tail", [2000, 5000, 1 << 30])
def test_a_second_kill_behind_any_write_of_the_recovery_changes_nothing(
    cuts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: int
) -> None:
    """Recovery writes checkpoints of its own, also before the position of the one cut short."""
    config = settings(checkpoint_interval=1e9, checkpoint_bytes=tail, clock=VirtualClock())
    write = families_module.Families.write
    for path in cuts[1::3]:
        again = list[Path]()

        def watched(
            families: families_module.Families, batch: Batch, *, sync: bool = False
        ) -> None:
            write(families, batch, sync=sync)
            target = tmp_path / f"{path.name}-{len(again)}"  # noqa: B023  # called in this turn
            again.append(_copied(path, target))  # noqa: B023  # as above

        with monkeypatch.context() as patched:
            patched.setattr(families_module.Families, "write", watched)
            with kvstore.open(path, config=config) as store:
                assert_has(store, ALL)
                pairs = [len(inside.keys(store).pairs(segment)[1]) for segment in (0, 1)]
                assert sum(pairs) == 3 * ALL + 1, "an id and two keys of each, the id of one"
        assert again
        for left in again[:: max(len(again) // 4, 1)]:
            with kvstore.open(left, config=CONFIG) as store:
                assert_has(store, ALL)


def _copied(path: Path, target: Path) -> Path:
    for folder in ("index", "commitlog"):
        (target / folder).mkdir(parents=True)
        for file in (path / folder).iterdir():
            (target / folder / file.name).write_bytes(file.read_bytes())
    (target / "lock").write_bytes(b"")
    return target


@pytest.mark.parametrize("behind", [False, True])
def test_a_piece_that_fails_is_written_again_and_the_rows_are_as_if_none_had_failed(
    tmp_path: Path, behind: bool
) -> None:
    with filled(tmp_path / "whole") as store:
        count = writes(store, store.checkpoint)
        wanted = rows(store)
    for number in range(1, count + 1):
        with filled(tmp_path / f"{number}") as store:
            if behind:
                struck_behind(store, number, store.checkpoint)
            else:
                _fails_at(store, number)
            assert_has(store, ALL)
            add(store, ALL, 50)
            store.checkpoint()
            assert store.stats().tail_entries == 0
            assert_has(store, ALL + 50)
            families = inside.families(store)
            assert families.get(META, AHEAD) is None
            assert set(wanted) < set(rows(store))


def _fails_at(store: Store, number: int) -> None:
    """A checkpoint whose write with this number, from 1, is refused."""
    families = inside.families(store)
    write, count = families.write, 0

    def failing(batch: Batch, *, sync: bool = False) -> None:
        nonlocal count
        count += 1
        if count == number:
            raise MemoryError
        write(batch, sync=sync)

    families.write = failing  # type: ignore[method-assign]  # to strike one write
    with pytest.raises(MemoryError):
        store.checkpoint()
    families.write = write  # type: ignore[method-assign]  # as it was


def test_a_reader_beside_a_checkpoint_that_is_being_written_sees_each_message_once(
    cuts: list[Path],
) -> None:
    for path in cuts:
        with kvstore.open(path, config=CONFIG, read_only=True) as store:
            assert_has(store, ALL)


def test_a_view_beside_it_counts_what_the_checkpoint_covers(cuts: list[Path]) -> None:
    *before, last = cuts
    for path in before:
        reach = viewing.reach(path, CONFIG, None)
        assert reach.position < SEGMENT
        assert sum(end for _, end in reach.queues.values()) == HELD
    assert sum(end for _, end in viewing.reach(last, CONFIG, None).queues.values()) == ALL + 1


def test_what_rows_ahead_name_is_never_cut_from_the_log(cuts: list[Path]) -> None:
    """A record that is damaged after the crash is damage, and its place is not given again."""
    path = cuts[2]
    with kvstore.open(path, config=CONFIG, read_only=True) as store:
        offset, queue = divmod(ALL - 1, QUEUES)
        position = store.pull("t", queue, offset).messages[0].position
        end = inside.log(store).end
    segment, at = divmod(position, SEGMENT)
    with (path / "commitlog" / f"{segment * SEGMENT:020d}").open("rb+") as f:
        f.seek(at + 100)
        f.write(b"\xff\xfe\xfd")
    with kvstore.open(path, config=CONFIG) as store:
        assert store.recovery.damage
        assert store.recovery.torn is None
        assert inside.log(store).end == end


def test_all_is_read_and_verified_between_two_pieces(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        families = inside.families(store)
        write, looks = families.write, 0

        def watched(batch: Batch, *, sync: bool = False) -> None:
            nonlocal looks
            write(batch, sync=sync)
            looks += 1
            assert sum(map(len, read_all(store).values())) == ALL + 1
            assert len(store.query("t", "all", limit=10 * ALL)) == ALL
            assert verify(inside.engine(store).context, None, archives=False).problems == []

        families.write = watched  # type: ignore[method-assign]  # to look between two steps
        store.checkpoint()
        families.write = write  # type: ignore[method-assign]  # as it was
        assert looks > 10


def test_a_program_that_does_not_know_pieces_refuses_the_store_only_while_there_are_some(
    cuts: list[Path],
) -> None:
    for path in cuts:
        found = families_module.Families(path / "index", read_only=True, create=False)
        check_format(found, to_rebuild=False)
        is_ahead = found.get(META, AHEAD) is not None
        version = U32.unpack(found.get(META, FORMAT) or b"")[0]
        found.close()
        assert version == (FORMAT_AHEAD if is_ahead else FORMAT_VERSION)
        assert is_ahead == (path != cuts[-1])
    with pytest.raises(FormatTooNew):
        _of_version(cuts[0] / "index", FORMAT_AHEAD + 1)


def _of_version(path: Path, version: int) -> None:
    families = families_module.Families(path, read_only=False, create=False)
    batch = families.batch()
    batch.put(META, FORMAT, U32.pack(version))
    families.write(batch)
    try:
        check_format(families, to_rebuild=False)
    finally:
        families.close()


def test_a_rebuild_of_a_checkpoint_that_was_cut_short_has_each_message_once(
    cuts: list[Path],
) -> None:
    for path in cuts[::3]:
        kvstore.rebuild(path, config=CONFIG)
        with kvstore.open(path, config=CONFIG) as store:
            assert_has(store, ALL)


def test_rows_of_a_part_without_a_head_are_gone_with_the_next_checkpoint(cuts: list[Path]) -> None:
    """Or a part that gets the same number would have them."""
    path = cuts[-2]
    families = families_module.Families(path / "index", read_only=False, create=False)
    parts, _, headless = read_parts(families, families.iter(MESSAGE_KEYS))
    assert len(parts) == 1
    assert headless
    batch, strays = families.batch(), [block_key(prefix, 5, 0) for prefix in headless]
    for key in strays:
        batch.put(MESSAGE_KEYS, key, pack_block(5, np.array([5]), np.array([7])))
    families.write(batch)
    families.close()
    with kvstore.open(path, config=CONFIG) as store:
        assert_has(store, ALL)
        assert [inside.families(store).get(MESSAGE_KEYS, key) for key in strays] == [None] * len(
            strays
        )


def test_a_small_checkpoint_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with filled(tmp_path / "store") as store:
        assert writes(store, store.checkpoint) == 1


def test_no_write_of_a_checkpoint_is_large_however_large_the_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One queue, and thousands: neither makes RocksDB take more than a bounded piece at a time."""
    monkeypatch.undo()
    bound = 1 << 18
    monkeypatch.setattr(pieces, "_PIECE", bound)
    config = StoreConfig(checkpoint_bytes=1 << 40, checkpoint_interval=1e9)
    with kvstore.open(tmp_path / "store", config=config) as store:
        inside.stop_housekeepers(store)
        store.create_topic("one", 1)
        store.create_topic("many", 3000)
        families = inside.families(store)
        write, sizes = families.write, list[int]()

        def watched(batch: Batch, *, sync: bool = False) -> None:
            sizes.append(batch.raw.size_in_bytes())
            write(batch, sync=sync)

        for topic, queues in (("one", 1), ("many", 3000)):
            for n in range(60):
                one = [Message(topic, b"x", queue=(n * 500 + i) % queues) for i in range(500)]
                store.put_batch(one)
            families.write = watched  # type: ignore[method-assign]  # to measure
            store.checkpoint()
            families.write = write  # type: ignore[method-assign]  # as it was
        assert len(sizes) > 4
        assert max(sizes) < 2 * bound
        assert store.verify().problems == []
