"""Policy: how long messages are hot, warm and cold, where archives go, and when moves happen.

The idea: one frozen Struct, checked once when it is made, loadable from TOML. It holds for every
topic whose own `Retention` does not say otherwise, field by field. Its consequences for a topic are
worked out in `retention_classes`, the moves due now in `schedule`. See docs/tiering.md.

Durations are texts, like "36h", in a policy's file, in the name of a retention class and in a
plan. Prices are the cost of storing, requesting and transferring data, tier by tier, as it stands
in a provider's price list. The defaults are examples, of the size that public price lists of large
clouds showed in 2026 for a region in the United States: an SSD volume, a volume of large disks, an
object store in its standard class. Users should give their own; only plans and Spark's views use
them.

Invariants: a `Policy` that exists does not contradict itself; each refusal names the fields that
do, and the remedy. `parse_duration(format_duration(n)) == n` for every whole number of
milliseconds, 0 or more. A price is finite and not negative; a GB is 10^9 bytes, a month 30 days.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from kvstore.clock import whole_ms
from kvstore.config import Retention
from kvstore.errors import CallerError
from kvstore.files import local_path
from tiering.archive.coder import LEVELS
from tiering.errors import PolicyIllegal
from tiering.places.objects import ARCHIVE_MAX
from tiering.places.settings import is_remote, is_url

_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_TEXT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[dhms])")


def format_duration(milliseconds: int) -> str:
    """The shortest exact text: 129,600,000 is "36h"."""
    if milliseconds == 0:
        return "0"
    unit = next(u for u, size in _UNITS.items() if milliseconds % size == 0)
    return f"{milliseconds // _UNITS[unit]}{unit}"


def parse_duration(text: str) -> int | None:
    """Milliseconds of a text; None if it is no duration."""
    if text == "0":
        return 0
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        return None
    size = _UNITS[found[2]]
    # Whole numbers stay whole, however large: a float has 53 bits only.
    return int(found[1]) * size if found[1].isdigit() else whole_ms(float(found[1]) * size / 1000)


GB: Final = 1_000_000_000
"""Bytes of a GB, as price lists count."""
MONTH: Final = 30 * 86_400.0
"""Seconds of a month, as durations count."""


class TierPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tier's prices, in `Prices.currency`: `gb_month` for a GB kept for a month, `requests` for
    1,000 requests, `transfer` for a GB read from the tier (leave it at 0 where reading is free, as
    it mostly is inside one region).
    """

    gb_month: float = 0.0
    requests: float = 0.0
    transfer: float = 0.0


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The prices of each tier; the defaults are examples, see the module."""

    hot: TierPrice = TierPrice(gb_month=0.08)
    warm: TierPrice = TierPrice(gb_month=0.045)
    cold: TierPrice = TierPrice(gb_month=0.023, requests=0.005)
    currency: str = "USD"


def check_prices(prices: Prices) -> None:
    """Raises `PolicyIllegal` for a value that is no price."""
    for tier in ("hot", "warm", "cold"):
        price = getattr(prices, tier)
        for name in price.__struct_fields__:
            value = getattr(price, name)
            if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
                raise PolicyIllegal(
                    f"prices.{tier}.{name} is {value!r}; it must be a finite number, 0 or more"
                )


Tier = Literal["warm", "cold"]
"""The tier of an archive."""

BLOCK_MIN: Final = 4 << 10
BLOCK_MAX: Final = 64 << 20
_PLACES: Final = frozenset({"warm", "cold"})
_DURATION_MAX: Final = float(1 << 43)
"""Seconds; in milliseconds it still fits 8 bytes."""
_DURATIONS: Final = (
    "hot_for",
    "warm_for",
    "cold_for",
    "dead_letters_for",
    "tombstones_for",
    "grace",
    "clock_doubt",
)


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When segments become archives and archives are deleted. Durations are seconds, sizes bytes.

    Messages are kept as raw segments for `hot_for`, then as archives in `warm` for `warm_for`, then
    in `cold` for `cold_for`; then they are deleted. All three count from a message's store time,
    one behind the other. None means no limit of that kind. A topic's own `Retention` goes before,
    field by field. Without `warm` messages go from hot to `cold` and stay there for `warm_for`
    longer. With neither place nothing moves, and only the store's retention deletes raw segments.

    `warm` is a folder, `cold` a folder or a URL, like s3://bucket/prefix. A relative folder is in
    the store's; `~` is the home folder.

    `codec` ("zstd" or "lz4"), `level` and `block_bytes` (raw bytes of records in a block, 4 KiB to
    64 MiB) are the settings of archives.

    `max_bytes`: when the raw segments take more, the oldest move though their time has not come.
    `hours`: work is begun within these local hours only, from the first to before the second; (22,
    6) is the night. `watermarks` are shares of the disk in use: from the first on, due moves begin
    at any hour; from the second on the oldest segment moves though its time has not come.
    None: the disk does not matter. They must be below those at which the store deletes.

    `read_rate`, `upload_rate`: bytes a second at most, None for no limit. `grace`: how long a
    replaced object stays for readers that have it open. `merge_bytes`: a worker that runs by itself
    merges neighbouring archives into larger ones, of so many bytes at most; None: it never does.
    `dead_letters_for`: dead letters whose topic has no retention of its own are kept for at least
    so long in all; None: without limit. `tombstones_for`: how long compaction keeps a message with
    an empty body, which says that its key is deleted. `clock_doubt`: a leap of the clock is
    believed after it has lasted for so long.

    `prices` are for `plan` alone.

    >>> Policy(hot_for=86400, warm_for=7 * 86400, warm="archive").warm_for
    604800

    Raises `PolicyIllegal` for fields that are out of range or contradict each other.
    """

    hot_for: float | None = None
    warm_for: float | None = None
    cold_for: float | None = None
    warm: str | None = None
    cold: str | None = None
    codec: Literal["zstd", "lz4"] = "zstd"
    level: int | None = None
    block_bytes: int = 256 << 10
    max_bytes: int | None = None
    hours: tuple[int, int] | None = None
    watermarks: tuple[float, float] | None = (0.70, 0.80)
    read_rate: float | None = None
    upload_rate: float | None = None
    merge_bytes: int | None = 512 << 20
    grace: float = 3600.0
    dead_letters_for: float | None = 30 * 86_400.0
    tombstones_for: float = 7 * 86_400.0
    clock_doubt: float = 86_400.0
    prices: Prices = Prices()

    def __post_init__(self) -> None:
        _check_ranges(self)
        _check_places(self)
        _check_times(self)

    @property
    def moves(self) -> bool:
        """Whether there is a place for archives at all."""
        return self.warm is not None or self.cold is not None

    @classmethod
    def from_toml(cls, text: str, relative_to: Path | None = None) -> Policy:
        """Reads a policy from TOML with the names of this class; durations may be texts like
        "36h" or "90d". A relative path in `warm` or `cold` is relative to the store's folder, or to
        `relative_to`, for a policy that is in a file there.

        >>> Policy.from_toml('hot_for = "1d"\\nwarm = "archive"').hot_for
        86400.0

        Raises `PolicyIllegal` for a text that is not TOML, and for a name or a value that is not
        a policy's.
        """
        if not isinstance(text, str):
            raise PolicyIllegal(f"the policy is {text!r}; it must be a text in TOML")
        try:
            found: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as e:
            raise PolicyIllegal(f"the policy is not TOML: {e}") from e
        try:
            found = _seconds(found)
            if relative_to is not None:
                found |= {
                    name: _placed(found[name], relative_to) for name in _PLACES & found.keys()
                }
            return msgspec.convert(found, cls)
        except msgspec.ValidationError as e:
            raise PolicyIllegal(f"the policy can't be used: {e}") from e


def is_open(policy: Policy, hour: int, disk_used: float) -> bool:
    """Whether work may be begun at a local hour (0-23), with such a share of the disk in use.

    >>> is_open(Policy(hours=(22, 6)), 3, 0.1), is_open(Policy(hours=(22, 6)), 12, 0.1)
    (True, False)
    """
    if policy.hours is None:
        return True
    if policy.watermarks is not None and disk_used >= policy.watermarks[0]:
        return True
    first, end = policy.hours
    if first < end:
        return first <= hour < end
    return hour >= first or hour < end


def check_with_store(
    policy: Policy, retention: Retention, watermarks: tuple[float, float, float]
) -> None:
    """Raises `PolicyIllegal` if the store would delete raw segments that the policy is to move, or
    would refuse puts for a full disk before the policy moves any segment. `retention` and
    `watermarks` are the store's (`StoreConfig`).
    """
    if not policy.moves:
        return
    if retention.hot_for is not None and (
        policy.hot_for is None or policy.hot_for >= retention.hot_for
    ):
        raise PolicyIllegal(
            f"the store deletes segments that are {_text(retention.hot_for)} old (its "
            f"retention.hot_for), the policy moves them after {_text(policy.hot_for)} (hot_for): "
            "nothing would be left to move; take hot_for out of the store's retention"
        )
    if retention.max_bytes is not None and (
        policy.max_bytes is None or policy.max_bytes >= retention.max_bytes
    ):
        raise PolicyIllegal(
            f"the store deletes segments above {retention.max_bytes} bytes (its "
            f"retention.max_bytes), the policy moves them above {policy.max_bytes} (max_bytes): "
            "they would be deleted before they moved; take max_bytes out of the store's "
            "retention, or give the policy a smaller one"
        )
    deletes = retention.hot_for is not None or retention.max_bytes is not None
    if policy.watermarks is None:
        return
    if deletes and policy.watermarks[1] >= watermarks[1]:
        raise PolicyIllegal(
            f"the store deletes segments when its disk is {watermarks[1]:.0%} full, the policy "
            f"moves them at {policy.watermarks[1]:.0%}: they would be deleted before they moved; "
            "give the policy lower watermarks, or the store higher ones"
        )
    if policy.watermarks[1] >= watermarks[2]:
        raise PolicyIllegal(
            f"the store refuses puts when its disk is {watermarks[2]:.0%} full, the policy moves "
            f"segments at {policy.watermarks[1]:.0%}: puts would stop before any moved; give the "
            "policy lower watermarks, or the store higher ones"
        )


def _seconds(found: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(found)
    for name in _DURATIONS:
        value = out.get(name)
        if isinstance(value, str):
            milliseconds = parse_duration(value)
            if milliseconds is None:
                raise PolicyIllegal(
                    f"{name} is {value!r}; it must be a number of seconds, or a text like 90s, "
                    "15m, 36h or 7d"
                )
            out[name] = milliseconds / 1000
    return out


def _placed(place: object, folder: Path) -> object:
    """A place of a policy that is in a file in `folder`; a value that is no path stays as it is."""
    if not isinstance(place, str) or not place.strip() or is_url(place):
        return place
    return str(folder / expanded(place))


def expanded(place: str) -> str:
    """A path with `~` replaced by the home folder. Raises `PolicyIllegal` if the home folder is
    unknown, and for a URL that lost a slash.
    """
    try:
        return str(local_path(place, "a place"))
    except CallerError as e:
        raise PolicyIllegal(str(e)) from e


def _check_ranges(p: Policy) -> None:
    for name in _DURATIONS:
        value = getattr(p, name)
        may_be_none = name not in ("tombstones_for", "grace", "clock_doubt")
        _number(
            name,
            value,
            "a finite number of seconds, 0 or more" + (", or None" if may_be_none else ""),
            (value is None and may_be_none) or _within(value, 0, _DURATION_MAX),
        )
    if p.codec not in LEVELS:
        raise PolicyIllegal(f"codec is {p.codec!r}; it must be 'zstd' or 'lz4'")
    low, high = LEVELS[p.codec]
    _number(
        "level", p.level, f"None, or {low} to {high} with {p.codec}",
        p.level is None or _whole(p.level, low, high),
    )  # fmt: skip
    _number(
        "block_bytes",
        p.block_bytes,
        f"{BLOCK_MIN} to {BLOCK_MAX} bytes",
        _whole(p.block_bytes, BLOCK_MIN, BLOCK_MAX),
    )
    _number(
        "max_bytes",
        p.max_bytes,
        "None, or 0 bytes and more",
        p.max_bytes is None or _whole(p.max_bytes, 0, (1 << 63) - 1),
    )
    for name in ("read_rate", "upload_rate"):
        rate = getattr(p, name)
        _number(
            name,
            rate,
            "None, or bytes a second, 1 or more",
            rate is None or _within(rate, 1, 1e18),
        )
    _number(
        "merge_bytes",
        p.merge_bytes,
        f"None, or 1 to {ARCHIVE_MAX} bytes, which a place takes in one put",
        p.merge_bytes is None or _whole(p.merge_bytes, 1, ARCHIVE_MAX),
    )
    if type(p.prices) is not Prices:
        raise PolicyIllegal(f"prices is {p.prices!r}; it must be a tiering.Prices")
    check_prices(p.prices)
    _check_hours(p.hours)
    _check_watermarks(p.watermarks)


def _check_hours(hours: object) -> None:
    if hours is None:
        return
    if not (isinstance(hours, tuple) and len(hours) == 2 and all(_whole(h, 0, 24) for h in hours)):
        raise PolicyIllegal(f"hours is {hours!r}; it must be None, or two local hours, 0 to 24")
    first, end = (h % 24 for h in hours)
    if first == end:
        raise PolicyIllegal(
            f"hours is {hours!r}: does it begin when it ends, or last all day? leave hours out if "
            "any hour will do, and both places if none will"
        )


def _check_watermarks(watermarks: object) -> None:
    if watermarks is None:
        return
    if not (
        isinstance(watermarks, tuple)
        and len(watermarks) == 2
        and all(_within(w, 0, 1) and w > 0 for w in watermarks)
        and watermarks[0] <= watermarks[1]
    ):
        raise PolicyIllegal(
            f"watermarks are {watermarks!r}; they must be None, or two shares that rise, from "
            "above 0 to 1 at most"
        )


def _check_places(p: Policy) -> None:
    for name in ("warm", "cold"):
        place = getattr(p, name)
        if place is not None and (type(place) is not str or not place.strip()):
            raise PolicyIllegal(f"{name} is {place!r}; it must be None, or a folder or URL")
    if p.warm is not None and is_remote(p.warm):
        raise PolicyIllegal(
            f"warm is {p.warm!r}, an object store, but warm archives are on a disk; give it as "
            "cold, and leave warm out"
        )
    if p.warm is not None and p.cold is not None and _bare(p.warm) == _bare(p.cold):
        raise PolicyIllegal(
            f"warm and cold are both {p.cold!r}: what goes cold would stay where it is; give them "
            "two places, or leave one out"
        )


def _check_times(p: Policy) -> None:
    later = [n for n in ("warm_for", "cold_for") if getattr(p, n) is not None]
    if later and not p.moves:
        raise PolicyIllegal(
            f"{' and '.join(later)} {'is' if len(later) == 1 else 'are'} given, but neither warm "
            "nor cold is: there is no place to keep an archive in; give one, or leave it out"
        )
    if p.cold_for is not None and p.cold is None and p.moves:
        raise PolicyIllegal(
            f"cold_for is {_text(p.cold_for)}, but there is no place cold; give one, or add the "
            "time to warm_for"
        )
    if p.warm is not None and p.cold is not None and p.warm_for is None:
        raise PolicyIllegal(
            "warm and cold are given, but warm_for is not: without limit in warm nothing would "
            "ever go cold; give warm_for, or leave cold out"
        )
    if p.hot_for is None and later:
        raise PolicyIllegal(
            f"{' and '.join(later)} {'begins' if len(later) == 1 else 'begin'} when the time hot "
            "is over, but hot_for is not given; give it (max_bytes and watermarks still move "
            "segments sooner)"
        )
    if p.moves and p.hot_for is None and p.max_bytes is None and p.watermarks is None:
        raise PolicyIllegal(
            f"{'warm' if p.warm is not None else 'cold'} is given, but nothing would ever move "
            "there: hot_for, max_bytes and watermarks are all without limit; give one of them"
        )


def _bare(place: str) -> str:
    return place.removeprefix("file://").rstrip("/")


def _number(name: str, value: object, wanted: str, is_right: bool) -> None:
    if not is_right:
        raise PolicyIllegal(f"{name} is {value!r}; it must be {wanted}")


def _whole(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _within(value: object, low: float, high: float) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and low <= value <= high
    )


def _text(seconds: float | None) -> str:
    return "no time" if seconds is None else format_duration(whole_ms(seconds))
