"""The verbs `tier merge`, `tier compact` and `tier reencrypt`: archives in the place of others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kvstore.cli.terminal.access import Access, access_options
from kvstore.cli.terminal.opening import config_option, folder_argument
from kvstore.cli.terminal.output import Output, output_option
from kvstore.cli.tier.options import policy_option
from kvstore.cli.tier.working import Who, embedded, ended, with_options, worker_call, working

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiering.operations.worker import Worker
    from tiering.worker.runs import RunReport

TARGET_BYTES: Final = 512 << 20
merge_options = with_options(
    folder_argument,
    policy_option,
    click.option("--target-bytes", type=click.IntRange(min=1),
                 help="Bytes that a merged archive is to have at most.  [default: 536870912]"),
    click.option("--topic", metavar="TOPIC",
                 help="Merge nothing; part TOPIC from topics of another retention."),
    access_options,
    config_option,
    output_option,
)  # fmt: skip
rewrite_options = with_options(
    folder_argument,
    policy_option,
    click.option("--topic", metavar="TOPIC", help="Only archives with messages of this topic."),
    access_options,
    config_option,
    output_option,
)


@click.command()
@merge_options
def merge(
    out: Output, folder: Path, policy_file: Path, target_bytes: int | None, topic: str | None,
    access: Access, config_file: Path | None,
) -> None:  # fmt: skip
    """Merge neighbouring archives of the store in DIR into larger ones.

    Compacted topics keep the newest message of each key. With --topic, instead, two archives take
    the place of each one that holds TOPIC together with topics of another retention: one has TOPIC
    alone. What was replaced goes after the policy's grace time, with the next run. Exit code 1 if
    something could not be done.
    """
    merge_with(out, embedded, folder, policy_file, target_bytes, topic, access, config_file)


def merge_with(
    out: Output, who: Who, folder: Path, policy_file: Path, target_bytes: int | None,
    topic: str | None, access: Access, config_file: Path | None,
) -> None:  # fmt: skip
    """Merge archives, or separate a topic from others, with the given worker."""
    if topic is None:
        _done(
            out, who, folder, policy_file, access, config_file,
            worker_call("merge", target_bytes), lambda w: w.merge(target_bytes or TARGET_BYTES),
        )  # fmt: skip
        return
    if target_bytes is not None:
        raise click.UsageError("--topic parts archives, and takes no --target-bytes")
    _done(
        out, who, folder, policy_file, access, config_file,
        worker_call("part", topic), lambda w: w.part(topic),
    )  # fmt: skip


@click.command()
@rewrite_options
def compact(
    out: Output, folder: Path, policy_file: Path, topic: str | None, access: Access,
    config_file: Path | None,
) -> None:  # fmt: skip
    """Keep the newest message of each key in compacted topics of the store in DIR.

    As `tier merge`, but of archives of compacted topics alone, and of all of them, whatever their
    sizes. Exit code 1 if something could not be done.
    """
    compact_with(out, embedded, folder, policy_file, topic, access, config_file)


def compact_with(
    out: Output, who: Who, folder: Path, policy_file: Path, topic: str | None, access: Access,
    config_file: Path | None,
) -> None:  # fmt: skip
    """Compact compacted topics, with the given worker."""
    _done(
        out, who, folder, policy_file, access, config_file,
        worker_call("compact", topic), lambda w: w.compact(topic),
    )  # fmt: skip


@click.command()
@rewrite_options
def reencrypt(
    out: Output, folder: Path, policy_file: Path, topic: str | None, access: Access,
    config_file: Path | None,
) -> None:  # fmt: skip
    """Write archives of the store in DIR anew that are not under the keys of today.

    These are archives with messages of topics that have another key now in the file that --keys
    names, that have got one (`kvmq tier key make`), or that have none any more. What was replaced
    goes after the policy's grace time, with the next run; copies that others made stay as they are.
    Exit code 1 if something could not be done.
    """
    reencrypt_with(out, embedded, folder, policy_file, topic, access, config_file)


def reencrypt_with(
    out: Output, who: Who, folder: Path, policy_file: Path, topic: str | None, access: Access,
    config_file: Path | None,
) -> None:  # fmt: skip
    """Re-encrypt archives, with the given worker."""
    _done(
        out, who, folder, policy_file, access, config_file,
        worker_call("reencrypt", topic), lambda w: w.reencrypt(topic),
    )  # fmt: skip


def _done(
    out: Output, who: Who, folder: Path, policy_file: Path, access: Access,
    config_file: Path | None, does: str, work: Callable[[Worker], RunReport],
) -> None:  # fmt: skip
    with working(out, who, folder, policy_file, access, config_file, does=does) as found:
        done = work(found.worker)
    ended(out, done)
