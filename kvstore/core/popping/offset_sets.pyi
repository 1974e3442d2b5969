"""Sets of offsets; see offset_sets.pyx."""

from typing import final

EMPTY_MAX: int

def below(offset: int, first: int, bits: int) -> int:
    """How many of the offsets that a row's bitmap names are below one."""

@final
class Shelf:
    """Numbers with values, of which the lowest is wanted."""

    values: dict[int, int]

    def __init__(self) -> None: ...
    def put(self, number: int, value: int) -> None:
        """Sets a number's value."""

    def add(self, number: int, by: int) -> None:
        """Changes a number's value."""

    def first(self) -> int | None:
        """The lowest number with a value; None if there is none."""

    def __len__(self) -> int: ...

@final
class OffsetSet:
    """A set of offsets, one bit each."""

    count: int
    pages: Shelf
    """The bits of each 256 offsets."""

    def __init__(self) -> None: ...
    def add(self, first: int, bits: int) -> None:
        """Adds the offsets that a row's bitmap names: `first` + i for bit i. None of them is in the
        set. A row may reach over two pages.
        """

    def remove(self, first: int, bits: int) -> None:
        """Removes offsets that are in the set."""

    def replace(self, first: int, bits: int) -> None:
        """Gives the page that begins with `first` these offsets and no others."""

    def lowest(self) -> int | None:
        """The lowest offset; None if there is none."""

    def has_below(self, offset: int) -> bool:
        """Whether there is an offset below this one."""

    def within(self, first: int, size: int) -> int:
        """Which of `size` offsets from `first` on are in the set: bit i for `first` + i."""

    def count_from(self, offset: int) -> int:
        """How many offsets there are from `offset` on."""

@final
class QueueLocks:
    """A group's rows in one queue: their count, the offsets they lock, those of them that were
    handed out before, and the parked offsets. Once this queue alone is asked for: how many rows are
    due in each 1/8 s. The table has counted the locked offsets below `gone_below` as gone.
    """

    rows: int
    dues: Shelf | None
    gone_below: int
    locked: OffsetSet
    redelivered: OffsetSet
    parked: OffsetSet

    def __init__(self) -> None: ...
    def has_gone(self, low: int) -> bool:
        """Whether an offset from `gone_below` to before `low` is locked."""

    def lowest(self) -> int | None:
        """The lowest offset below the next offset that is not done."""
