"""The parts of an open store that writing, upkeep, hand-over, figures and verification share.

The idea: one frozen value is made when the store opens, and each module of this room is given it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.config import StoreConfig
from kvstore.index.index import Index
from kvstore.log.commitlog import CommitLog
from kvstore.meta.topics import Topics
from kvstore.read.find import Finder
from kvstore.read.reader import Reader
from kvstore.timing.pending_messages import TimingContext


@dataclass(frozen=True, slots=True)
class EngineContext:
    """See the module."""

    log: CommitLog
    index: Index
    topics: Topics
    reader: Reader
    config: StoreConfig

    def timing(self) -> TimingContext:
        """The parts that messages in time need."""
        finder = Finder(self.reader, self.log, self.index, self.topics.find, sees_all=True)
        return TimingContext(
            self.log,
            self.index,
            self.topics,
            self.reader,
            finder,
            self.config.clock,
            self.config.check_crc,
            self.config.any_time,
        )
