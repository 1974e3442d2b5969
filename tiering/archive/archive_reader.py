"""Archive reader: one open archive, whose blocks are read by ranges.

The idea: the end of the file says where everything is (`tail`). Directory, filter and fences stand
there, too. They are read with it, or when they are first needed (`open_lazily`), and decoded when
they are first needed, so that thousands of archives are open at once. A message then costs one read
of its block. Finding it by position costs one read more, of the chunk that says where the message
lies. Finding it by key costs another, of the chunk that says which messages have the key.

Invariants:

- Bytes that differ from those written raise ArchiveDamaged with the archive's name, or have no
  effect.
- A damaged block costs the messages of its group only.
- Nothing is allocated that the checked bytes do not pay for.
- An archive is never written to, so any number of threads may read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import ArchiveDamaged, FormatError, KeyMissing
from kvstore.record.hashes import topic_byte
from kvstore.record.key_filter import Filter
from tiering.archive import indexes
from tiering.archive.block import Block, BlockGroup, GroupBlocks, GroupOrigin
from tiering.archive.columns.header_fields import OffsetRanges
from tiering.archive.columns.packed import I64
from tiering.archive.directory import Directory, DirectoryRows, GroupExtent, Groups, decode_rows
from tiering.archive.indexes import KeyFences, PositionColumns, PositionFences
from tiering.archive.layout import HEADER_SIZE, PART_HEAD, Section, Sizes
from tiering.archive.manifest import (
    Manifest,
    ManifestHead,
    decode_head,
    decode_manifest,
    with_figures,
)
from tiering.archive.tail import PLAIN, Source, read_exactly, read_tail
from tiering.keys.crypto import KeyProvider

T = TypeVar("T")

_RUN_MAX: Final = 64
"""The most chunks that one read gets."""
_MEMORY_FACTORS: Final = {Section.MANIFEST: 18}
"""Memory that a decoded section takes, as a multiple of its payload, where the section can't say
itself. The manifest: with and without its figures, as objects.
"""
_TOPIC_BITS: Final = 8
"""The lowest bits of a key hash, which belong to the topic."""


class FoundMessage(NamedTuple):
    """A message: its log position, its block, and its row there."""

    position: int
    block: int
    row: int


class ReadPart(Protocol):
    """Reads a part of an archive, which the key identifies within it."""

    def __call__(self, key: tuple[object, ...], read: Callable[[], T]) -> T:
        """The result of `read`."""
        ...


def read_alone(key: tuple[object, ...], read: Callable[[], T]) -> T:
    """A `ReadPart` for a caller that no other thread shares its reads with."""
    return read()


class Archive:
    """One archive, open; see the module."""

    def __init__(self, source: Source, keys: KeyProvider | None, *, lazily: bool) -> None:
        self.source = source
        self.name = source.name
        self._keys = keys
        self._sections, self._raw = read_tail(source, lazily=lazily)
        self._is_lazy = lazily
        self._blocks_size = min(place.at for place in self._sections.values()) - HEADER_SIZE
        self._decoded: dict[Section, int] = {}
        """About how many bytes each decoded section takes in memory."""
        self.on_growth: Callable[[], None] | None = None
        """Called when `memory_bytes` has changed."""

    @classmethod
    def open(cls, source: Source, *, keys: KeyProvider | None = None) -> Archive:
        """Opens the archive of a source. A part's crc32c is checked when the part is decoded.
        Raises ArchiveDamaged, FormatTooNew, FormatTooOld.
        """
        return cls(source, keys, lazily=False)

    # --- the archive as a whole ---

    @cached_property
    def manifest(self) -> Manifest:
        """The archive's description of itself, with the figures of its topics."""
        with self._damage("section MANIFEST"):
            return with_figures(self._manifest, self.rows())

    @cached_property
    def _manifest(self) -> Manifest:
        """The manifest as stored."""
        return self._section(Section.MANIFEST, decode_manifest)

    def manifest_head(self) -> ManifestHead:
        """The fields that tell this archive from others, decoded anew."""
        return self._section(Section.MANIFEST, decode_head, is_kept=False)

    @cached_property
    def directory(self) -> Directory:
        """The directory: which block holds which offsets."""
        return self._section(Section.DIRECTORY, lambda data: Directory(data, self._blocks_size))

    def rows(self) -> DirectoryRows:
        """All columns of the directory, decoded anew."""
        return self._section(
            Section.DIRECTORY, lambda data: decode_rows(data, self._blocks_size), is_kept=False
        )

    @cached_property
    def filter(self) -> Filter | None:
        """The filter of the keys that may be here; None for an archive without keys."""
        return self._section(Section.FILTER, Filter) if Section.FILTER in self._sections else None

    @cached_property
    def key_fences(self) -> KeyFences | None:
        """The fences that say which chunk has which keys; None for an archive without keys."""
        place = self._sections.get(Section.KEY_INDEX)
        if place is None:
            return None
        return self._section(Section.KEY_FENCES, lambda data: KeyFences(data, place.size))

    @cached_property
    def position_fences(self) -> PositionFences | None:
        """The fences that say which chunk has which positions; None for an archive without
        messages.
        """
        place = self._sections.get(Section.POSITION_INDEX)
        if place is None:
            return None
        return self._section(Section.POSITION_FENCES, lambda data: PositionFences(data, place.size))

    def section_sizes(self) -> dict[str, int]:
        """The bytes of the file that blocks and sections take."""
        sizes = {kind.name.lower(): place.size for kind, place in self._sections.items()}
        return {"blocks": self._blocks_size, **sizes}

    @property
    def memory_bytes(self) -> int:
        """About how many bytes of memory the archive takes: directory, filter, fences and manifest,
        or the bytes that they will be decoded from.
        """
        # Tuples, since other threads decode meanwhile.
        return sum(map(len, tuple(self._raw.values()))) + sum(tuple(self._decoded.values()))

    # --- blocks ---

    def blocks(self, topic_id: int, queue: int) -> range:
        """The blocks of a queue, by the offsets they hold; empty if there are none."""
        number = self.directory.number_of(topic_id)
        return range(0) if number is None else self.directory.blocks_of(number, queue)

    def block_at(self, topic_id: int, queue: int, offset: int) -> int | None:
        """The block with the first held offset that is not below `offset`; None: there is none."""
        number = self.directory.number_of(topic_id)
        return None if number is None else self.directory.block_at(number, queue, offset)

    def read_block(self, number: int) -> Block:
        """Reads one block, by one ranged read. Raises ArchiveDamaged, KeyMissing."""
        return self.block_of(number, self.read_group(number))

    def read_group(self, number: int) -> BlockGroup:
        """Reads the group of a block (`directory.group_of`), by one ranged read. `block_of` then
        gives each block of the group without another read. Raises ArchiveDamaged,
        KeyMissing.
        """
        place = self.directory.group(number)
        data = read_exactly(self.source, place.at, sum(place.sizes))
        return self.decode_group(place, data, asked=number)

    def block_of(self, number: int, group: BlockGroup) -> Block:
        """One block of a group that was read. Raises ArchiveDamaged."""
        with self._block_damage(number):
            return group.block(number - group.number)

    def groups(self) -> Iterator[BlockGroup]:
        """All groups, one after the other. Raises ArchiveDamaged, KeyDestroyed, KeyMissing."""
        for place in self.all_groups():
            yield self.decode_group(place, read_exactly(self.source, place.at, sum(place.sizes)))

    def all_groups(self) -> Groups:
        """The places and blocks of all groups, in columns, for a caller that reads many."""
        return Groups(self.rows())

    def lazy_group(self, place: GroupExtent) -> BlockGroup:
        """A group whose bodies are read when they are first needed, for a caller that looks at the
        other columns only, or at them first. Raises as `read_group` does.
        """
        at, sizes, _ = place
        heads = sizes[0] + sizes[1]
        # The head of the bodies' part comes along: it states their decoded size.
        data = read_exactly(self.source, at, heads + PART_HEAD.size)
        return self.decode_group(
            place, data, bodies=lambda: read_exactly(self.source, at + heads, sizes[2])
        )

    def decode_group(
        self,
        place: GroupExtent,
        data: bytes | memoryview,
        *,
        asked: int | None = None,
        bodies: Callable[[], bytes] | None = None,
    ) -> BlockGroup:
        """Decodes a group from its bytes, which may have been read together with other groups'.
        Errors name the block `asked`, or else the group's first block.
        """
        _, sizes, members = place
        topics = self._topics
        topic, key_id = topics[members.topics[0]]
        blocks = GroupBlocks(
            [topics[member][0] for member in members.topics],
            members.queues,
            OffsetRanges(members.counts, members.first_offsets, members.last_offsets),
        )
        with self._block_damage(members.first if asked is None else asked):
            return BlockGroup(
                data if bodies is None else data[: sizes[0] + sizes[1]], sizes,
                self._stated_sizes(data, sizes), PLAIN, blocks,
                GroupOrigin(
                    self.name, members.first, members.topics[0], self._secret(topic, key_id)
                ),
                bodies=bodies,
            )  # fmt: skip

    def _stated_sizes(self, data: bytes | memoryview, sizes: Sizes) -> Sizes:
        """The decoded sizes that the parts state. Of the directory's figures only the largest is in
        memory."""
        ends = (0, sizes[0], sizes[0] + sizes[1])
        fixed, properties, bodies = (PART_HEAD.unpack_from(data, at)[1] for at in ends)
        most = self.directory.decoded_max
        if fixed > most[0] or properties > most[1] or bodies > most[2]:
            raise ArchiveDamaged(f"{self.name}: a part says that it takes more than any does")
        return fixed, properties, bodies

    @contextmanager
    def _block_damage(self, number: int) -> Iterator[None]:
        try:
            yield
        except ArchiveDamaged as error:
            error.archive, error.block = self.name, number
            error.next_offset = self.directory.last_with(number) + 1
            raise

    # --- by position, by key ---

    def locate(self, position: int) -> tuple[int, int] | None:
        """Block and row of the message at a log position, by one ranged read; None if there is
        none.

        Raises ArchiveDamaged.
        """
        fences = self.position_fences
        chunk = fences.chunk_of(position) if fences is not None else None
        if chunk is None:
            return None
        ((_, placed),) = self._placed([chunk])
        row = int(np.searchsorted(placed.positions, position))
        if row == len(placed.positions) or placed.positions[row] != position:
            return None
        return int(placed.blocks[row]), int(placed.rows[row])

    def find(self, low: int, high: int, read: ReadPart = read_alone) -> Iterator[FoundMessage]:
        """The messages, newest first, that may have a key whose hash is between `low` and `high`,
        both included; each with its block and row, so that `locate` need not be asked.

        For one key (in one topic, or in any: `kvstore.record.hashes`) the filter is asked
        first. Every message that has the key is found; one that lacks it is rarely among them.
        Where the messages lie is read as the caller goes on, part by part through `read`. Raises
        ArchiveDamaged.
        """
        first, last = low >> _TOPIC_BITS, high >> _TOPIC_BITS
        if self.denies(low, high):
            return
        ranks = read((Section.KEY_INDEX, first, last), lambda: self._ranks(first, last))
        for one in self._placed_down(ranks, read):
            if first != last or low & 0xFF <= self._topic_byte(one.block) <= high & 0xFF:
                yield one

    def denies(self, low: int, high: int) -> bool:
        """Whether the filter excludes every key with such a hash; no chunk and no block is read."""
        first, last = low >> _TOPIC_BITS, high >> _TOPIC_BITS
        return first == last and self.filter is not None and not self.filter.may_hold(first)

    def key_pairs(self) -> Iterator[tuple[I64, I64]]:
        """The whole key index, chunk by chunk: kept digests, ranks."""
        fences = self.key_fences
        if fences is None:
            return
        for chunk in range(fences.chunks):
            ((_, payload),) = self._chunks(Section.KEY_INDEX, [chunk], fences.extent)
            with self._damage("the key index"):
                pairs = fences.decode(chunk, payload)
            yield pairs

    def position_chunks(self) -> Iterator[PositionColumns]:
        """The whole position index, chunk by chunk."""
        fences = self.position_fences
        for chunk in range(fences.chunks if fences is not None else 0):
            ((_, placed),) = self._placed([chunk])
            yield placed

    def _ranks(self, first: int, last: int) -> NDArray[np.uint32]:
        """The ranks, which rise, of the pairs whose digest may be from `first` to `last`.

        All of them, at 4 bytes each: keys with the same kept digest stand one behind the other, so
        the newest rank may be in any of their chunks.
        """
        fences, messages = self.key_fences, self.position_fences
        most = messages.entries if messages is not None else 0
        found = [np.zeros(0, np.uint32)]
        if fences is not None:
            wanted = fences.chunks_of(first, last)
            for chunk, payload in self._chunks(Section.KEY_INDEX, wanted, fences.extent):
                with self._damage("the key index"):
                    ranks = fences.find(chunk, payload, first, last)
                if len(ranks) and not 0 <= int(ranks.min()) <= int(ranks.max()) < most:
                    told = f"{self.name}: a key names a message that is not there"
                    raise ArchiveDamaged(told, self.name)
                found.append(ranks.astype(np.uint32))
        every = np.concatenate(found)
        return every if bool((every[1:] > every[:-1]).all()) else np.unique(every)

    def _placed_down(self, ranks: NDArray[np.uint32], read: ReadPart) -> Iterator[FoundMessage]:
        """The messages of ranks that rise, the last one first. Chunks are read as the caller goes
        on: each time up to twice as many as before.
        """
        chunks, firsts = np.unique(ranks // indexes.CHUNK, return_index=True)
        cuts = [*firsts.tolist(), len(ranks)]
        stop, most = len(chunks), 1
        while stop:
            begin = max(stop - most, 0)
            wanted = tuple(chunks[begin:stop].tolist())
            key = (Section.POSITION_INDEX, wanted)
            found = read(key, partial(self._placed, wanted))
            for at, (chunk, placed) in reversed(list(enumerate(found, begin))):
                # A caller that wants one message must not pay for a chunk of objects.
                for rank in ranks[cuts[at] : cuts[at + 1]][::-1]:
                    row = int(rank) - chunk * indexes.CHUNK
                    yield FoundMessage(*(int(column[row]) for column in placed))
            stop, most = begin, min(2 * most, _RUN_MAX)

    def _placed(self, chunks: Iterable[int]) -> list[tuple[int, PositionColumns]]:
        fences = self.position_fences
        assert fences is not None, "the caller had the chunks from the fences"
        directory = self.directory
        found: list[tuple[int, PositionColumns]] = []
        for chunk, payload in self._chunks(Section.POSITION_INDEX, chunks, fences.extent):
            with self._damage("the position index"):
                placed = indexes.decode_position_chunk(payload, fences.count(chunk))
                if int(placed.blocks.max()) >= directory.blocks or int(placed.blocks.min()) < 0:
                    raise FormatError("it names a block that is not there")
            found.append((chunk, placed))
        return found

    def _chunks(
        self, kind: Section, chunks: Iterable[int], place: Callable[[int], tuple[int, int]]
    ) -> Iterator[tuple[int, bytes]]:
        """Chunks, whose numbers rise, with their payloads; neighbours are read together."""
        section = self._sections[kind]
        for run in _runs(chunks):
            begin, end = place(run[0])[0], place(run[-1])[1]
            data = read_exactly(self.source, section.at + begin, end - begin)
            for chunk in run:
                first, stop = place(chunk)
                with self._damage(f"chunk {chunk} of {kind.name}"):
                    payload = PLAIN.decode(data[first - begin : stop - begin])
                yield chunk, payload

    # --- parts ---

    @cached_property
    def _topics(self) -> list[tuple[str, str | None]]:
        """Name and key id of each topic."""
        topics = self._manifest.topics
        if len(topics) != self.directory.topics:
            raise ArchiveDamaged(f"{self.name}: manifest and directory disagree", self.name)
        return [(topic.name, topic.key_id) for topic in topics]

    @cached_property
    def _topic_bytes(self) -> bytes:
        return bytes(topic_byte(name.encode()) for name, _ in self._topics)

    def _topic_byte(self, block: int) -> int:
        return self._topic_bytes[self.directory.queue_of(block)[0]]

    def _secret(self, topic: str, key_id: str | None) -> bytes | None:
        if key_id is None:
            return None
        if self._keys is None:
            raise KeyMissing(
                f"{self.name}: topic {topic!r} is encrypted with key {key_id}, and no keys were "
                f"given", topic,
            )  # fmt: skip
        return self._keys.key_for_reading(topic, key_id).secret

    def _section(self, kind: Section, decode: Callable[[bytes], T], *, is_kept: bool = True) -> T:
        """Decodes a section. Its bytes are dropped if the caller keeps the decoded value; those of
        an archive that is open for a moment stay, for `rows`.
        """
        place = self._sections.get(kind)
        with self._damage(f"section {kind.name}"):
            if place is None:
                raise FormatError("it is missing")
            raw = self._raw.get(kind)
            if raw is None:
                raw = read_exactly(self.source, place.at, place.size)
            elif is_kept and not self._is_lazy:
                self._raw.pop(kind, None)
            payload = PLAIN.decode(raw)
            decoded = decode(payload)
        if is_kept:
            taken = getattr(decoded, "memory_bytes", len(payload) * _MEMORY_FACTORS.get(kind, 1))
            self._decoded[kind] = taken
            if self.on_growth is not None:
                self.on_growth()
        return decoded

    @contextmanager
    def _damage(self, what: str) -> Iterator[None]:
        """Adds to an error the archive's name and the damaged part."""
        try:
            yield
        except (FormatError, ArchiveDamaged) as error:
            if isinstance(error, ArchiveDamaged) and error.archive:
                raise
            raise ArchiveDamaged(f"{self.name}: {what}: {error}", self.name) from None


def open_lazily(source: Source, *, keys: KeyProvider | None = None) -> Archive:
    """Opens the archive of a source for a caller that keeps it for a moment only, and may look at
    several sections more than once, or at none. Raises as `Archive.open` does.
    """
    return Archive(source, keys, lazily=True)


def _runs(chunks: Iterable[int]) -> Iterator[list[int]]:
    """Cuts chunk numbers into runs of neighbours, each of a bounded length."""
    run: list[int] = []
    for chunk in chunks:
        if run and (chunk != run[-1] + 1 or len(run) == _RUN_MAX):
            yield run
            run = []
        run.append(chunk)
    if run:
        yield run
