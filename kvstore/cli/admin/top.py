"""The verb `top`: a live screen of puts, pops and acks, and of the work left to do.

The idea: the store is opened read-only for each snapshot, so the process that writes is not
disturbed and need not help; one that serves it is asked, as it alone knows its deliveries. Rates
are the differences of two snapshots. On a terminal the screen is drawn anew each time; into a pipe
one table follows the other, or one JSON line.

Invariant: the terminal is left as it was found, however the verb ends.
"""

from __future__ import annotations

import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import click
import msgspec

import kvstore
from kvstore import GroupStats, Store
from kvstore.cli.terminal.opening import (
    Seconds,
    connect_if_served,
    folder_argument,
    namespace_option,
    require_store,
    time_text,
    within,
)
from kvstore.cli.terminal.output import Output, output_option, size_text
from kvstore.clock import SystemClock
from kvstore.errors import Damaged

_TOPICS_MAX: Final = 1000
"""Topics that are read: all of very many would take longer than an interval."""
_TRIES: Final = 10
_INTERVAL_MAX: Final = 24 * 3600.0
_PAUSE: Final = 0.02
"""Seconds before another try, where files went while they were being opened."""
_HEADER_LINES: Final = 9
_SCREEN: Final = "\x1b[?1049h\x1b[?25l"
_SCREEN_END: Final = "\x1b[?25h\x1b[?1049l"
_CLEAR: Final = "\x1b[2J\x1b[H"
_QUIT: Final = frozenset({"q", "Q", "\x03", "\x04"})


class TopicSnapshot(msgspec.Struct, frozen=True):
    """A topic at one moment: the number of messages it holds, and of messages put so far."""

    topic: str
    messages: int
    end: int


class Snapshot(msgspec.Struct, frozen=True):
    """A store at one moment; `at` is ms since the epoch, `seconds` the clock of the rates. Of
    delayed messages it has how many wait, when the next is due, ms (None if none waits), and by how
    many ms the last delivery was late (None if the server of the store made none, or there is no
    server to tell).
    """

    at: int
    seconds: float
    log_bytes: int
    disk_used: float
    topics_left_out: int
    topics: list[TopicSnapshot]
    groups: list[GroupStats]
    waiting: int
    next_due: int | None
    last_late_ms: int | None

    @property
    def late_ms(self) -> int:
        """By how many ms the next delayed message is overdue."""
        return 0 if self.next_due is None else max(0, self.at - self.next_due)


@click.command()
@folder_argument
@click.option("--interval", type=Seconds(0.05, _INTERVAL_MAX), default=2.0, show_default=True,
              metavar="SECONDS", help="Between two looks.")  # fmt: skip
@click.option("--once", is_flag=True, help="Show one interval, and end.")
@namespace_option
@output_option
def top(out: Output, folder: Path, interval: float, once: bool, namespace: str | None) -> None:
    """Show rates, lag, messages in flight and delayed, and dead letters, live; q or ctrl-C ends it.

    put/s, pop/s (handed out for the first time, or passed over) and ack/s (done, be it acked or a
    dead letter) are of the last interval; retried are those in flight that were handed out before,
    passed those that the group's filters refused, or that had expired, since its offset was last
    set, dead the group's dead letters that nobody took. The last line says how many delayed
    messages wait, and when the next is due; late, if nothing delivered it yet; of a store that is
    served, also by how much the last delivery was late. Other processes may write meanwhile. A look
    opens the store anew, reads all topics and groups, and the locks of each group: with many
    thousands of these choose a longer interval. With --namespace it has topics and groups of the
    namespace; log, disk and delayed messages are the whole store's.
    With --json one line for each interval.
    """
    require_store(folder)
    live = not once and not out.json and sys.stdout.isatty()
    with _terminal(live) as pause:
        before = take_snapshot(folder, namespace)
        if live:
            _draw(out, folder, before, None, interval)
        while pause(interval):
            now = take_snapshot(folder, namespace)
            if live:
                _draw(out, folder, now, before, interval)
            elif out.json:
                out.line(_value(now, before))
                sys.stdout.flush()
            else:
                _tables(out, now, before, None)
            if once:
                return
            before = now


def take_snapshot(folder: Path, namespace: str | None = None) -> Snapshot:
    """Opens the store read-only and reads its figures once, with the topics and groups of the
    namespace if one is named.
    """
    clock = SystemClock()
    for attempt in range(_TRIES):
        try:
            # Before the store is opened: what becomes due meanwhile is not late.
            at = clock.now_ms()
            served = connect_if_served(folder)
            with served or kvstore.open(folder, read_only=True) as store:
                return _snapshot(cast(Store, store), namespace, at, clock)
        except (Damaged, FileNotFoundError):
            # The writer may have replaced files between listing and opening them.
            if attempt == _TRIES - 1:
                raise
            clock.sleep(_PAUSE)
    raise AssertionError("the last try raises")


def _snapshot(store: Store, namespace: str | None, at: int, clock: SystemClock) -> Snapshot:
    calls = within(store, namespace)
    stats, infos = store.stats(), calls.topics()
    topics = []
    for info in infos[:_TOPICS_MAX]:
        bounds = [calls.bounds(info.name, queue) for queue in range(info.read_queues)]
        end = sum(b.next_offset for b in bounds)
        topics.append(TopicSnapshot(info.name, end - sum(b.min_offset for b in bounds), end))
    return Snapshot(
        at=at,
        seconds=clock.monotonic(),
        log_bytes=stats.log_bytes,
        disk_used=stats.disk_used,
        topics_left_out=len(infos) - len(topics),
        topics=topics,
        groups=[found for group in calls.groups() for found in calls.group_stats(group.name)],
        waiting=stats.delays.waiting,
        next_due=stats.delays.next_due,
        last_late_ms=stats.delays.late_ms if stats.delays.delivered else None,
    )


# --- rates ---


def _rate(now: int, before: int | None, seconds: float) -> float | None:
    """The increase a second; a decrease (by a reset) is no rate."""
    if before is None or seconds <= 0:
        return None
    return max(0, now - before) / seconds


def _done(stats: GroupStats) -> int:
    return stats.taken - stats.in_flight


def _topic_rows(now: Snapshot, before: Snapshot | None) -> list[tuple[TopicSnapshot, float | None]]:
    seconds = now.seconds - before.seconds if before else 0.0
    known = {t.topic: t.end for t in before.topics} if before else {}
    return [(t, _rate(t.end, known.get(t.topic), seconds)) for t in now.topics]


def _group_rows(
    now: Snapshot, before: Snapshot | None
) -> list[tuple[GroupStats, float | None, float | None]]:
    seconds = now.seconds - before.seconds if before else 0.0
    known = {(g.group, g.topic): g for g in before.groups} if before else {}
    rows = []
    for g in now.groups:
        old = known.get((g.group, g.topic))
        taken, done = (None, None) if old is None else (old.taken, _done(old))
        rows.append((g, _rate(g.taken, taken, seconds), _rate(_done(g), done, seconds)))
    return rows


# --- showing ---


def _value(now: Snapshot, before: Snapshot | None) -> dict[str, Any]:
    topics = [
        {"topic": t.topic, "messages": t.messages, "end": t.end, "put_per_second": put}
        for t, put in _topic_rows(now, before)
    ]
    groups = [
        {**msgspec.to_builtins(g), "pop_per_second": pop, "ack_per_second": ack}
        for g, pop, ack in _group_rows(now, before)
    ]
    delays = {
        "waiting": now.waiting,
        "next_due": now.next_due,
        "late_ms": now.late_ms,
        "last_late_ms": now.last_late_ms,
    }
    found = {"at": now.at, "log_bytes": now.log_bytes, "delays": delays}
    return {**found, "topics": topics, "groups": groups}


def _delays_text(now: Snapshot) -> str:
    """How many delayed messages wait, when the next is due, and how late the last one came."""
    if now.next_due is None:
        found = "no delayed message waits"
    elif now.late_ms:
        found = f"{now.waiting:,} delayed wait, the next is due late by {now.late_ms / 1000:,.3f} s"
    else:
        ahead = (now.next_due - now.at) / 1000
        found = f"{now.waiting:,} delayed wait, the next is due in {ahead:,.3f} s"
    if now.last_late_ms is None:
        return found
    return f"{found}; the last came {now.last_late_ms / 1000:,.3f} s late"


def _tables(out: Output, now: Snapshot, before: Snapshot | None, lines: int | None) -> None:
    """Both tables; with `lines`, cut to so many rows: the rows most behind, or busiest, stay."""
    groups = sorted(_group_rows(now, before), key=lambda row: -row[0].lag)
    topics = sorted(_topic_rows(now, before), key=lambda row: -(row[1] or 0))
    left = now.topics_left_out
    if lines is not None:
        room = max(1, lines - _HEADER_LINES)
        shown = groups[: max(1, room - min(len(topics), room // 2))]
        cut = topics[: max(1, room - len(shown))]
        left += len(groups) - len(shown) + len(topics) - len(cut)
        groups, topics = shown, cut
    out.table(
        (
            "group",
            "topic",
            "pop/s",
            "ack/s",
            "lag",
            "in flight",
            "due",
            "retried",
            "passed",
            "dead",
        ),
        [
            (
                g.group,
                g.topic,
                pop,
                ack,
                g.lag,
                g.in_flight,
                g.due,
                g.redelivered,
                g.passed_over + g.expired,
                g.dead_letters,
            )
            for g, pop, ack in groups
        ],
        right=("pop/s", "ack/s"),
    )
    out.text("")
    rows = [(t.topic, put, t.messages) for t, put in topics]
    out.table(("topic", "put/s", "messages"), rows, right=("put/s",))
    if left:
        out.text(f"and {left:,} more")
    out.text(_delays_text(now))


def _draw(
    out: Output, folder: Path, now: Snapshot, before: Snapshot | None, interval: float
) -> None:
    lines = shutil.get_terminal_size().lines
    click.echo(_CLEAR, nl=False)
    out.text(
        f"{folder}   {time_text(now.at)[:19]}   log {size_text(now.log_bytes)}   disk "
        f"{now.disk_used:.0%}   every {interval:g} s, q ends",
        bold=True,
    )
    _tables(out, now, before, lines)
    sys.stdout.flush()


# --- the terminal ---


@contextmanager
def _terminal(live: bool) -> Iterator[Callable[[float], bool]]:
    """A function that lets seconds pass and says whether to go on. Ctrl-C ends it quietly."""
    restore = _take_keys() if live and sys.stdin.isatty() else None
    pause = _SystemPause(keys=restore is not None)
    before = signal.signal(signal.SIGINT, pause.interrupt)
    if live:
        click.echo(_SCREEN, nl=False)
    try:
        yield pause
    except KeyboardInterrupt:
        pass  # the way to end it
    finally:
        signal.signal(signal.SIGINT, before)
        if restore is not None:
            restore()
        if live:
            click.echo(_SCREEN_END, nl=False)


def _take_keys() -> Callable[[], None]:
    """Reads keys as they are pressed; returns the function that undoes it."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    found = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    return lambda: termios.tcsetattr(fd, termios.TCSADRAIN, found)


class _SystemPause:
    """Lets seconds pass; False if a key or an interrupt ended the verb."""

    def __init__(self, *, keys: bool) -> None:
        self._keys = keys
        self._clock = SystemClock()
        self._is_over = False

    def interrupt(self, *_: object) -> None:
        """Handles SIGINT. Python passes over an exception that comes amid the clearing up of an
        object, so it is noted as well.
        """
        self._is_over = True
        raise KeyboardInterrupt

    def __call__(self, seconds: float) -> bool:
        if self._is_over:
            return False
        if not self._keys:
            self._clock.sleep(seconds)
            return True
        until = self._clock.monotonic() + seconds
        while (left := until - self._clock.monotonic()) > 0:
            if select.select([sys.stdin], [], [], left)[0]:
                key = sys.stdin.read(1)
                if not key or key in _QUIT:
                    return False
        return True
