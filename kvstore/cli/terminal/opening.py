"""Opening: how verbs name and open a store, with the arguments that they share.

The idea: `DIR`, `--config` and `--namespace` are declared once. A verb uses a store that is served
through its socket, with the server's settings. Else one that only reads opens read-only, and can do
so while another process writes. With `--namespace` a verb has the calls of the namespace
(`VerbStore`), so it takes and shows the names that topics and groups have there. Nothing but `topic
create`, `put --create` and `import` makes a folder: a mistyped one is an error, not a new empty
store.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

import click

import kvstore
from kvstore import StoreConfig
from kvstore.cli.terminal.options import Access, LocalPath, Option, listed
from kvstore.cli.terminal.output import Output, output_option
from kvstore.errors import ConnectionLost, StoreLocked, StoreNotFound
from kvstore.files import LocalFiles, local_path
from kvstore.meta.namespaces import check_namespace
from kvstore.opening.store_folder import CLUSTER_FILE, COMMITLOG, INDEX, served_url
from kvstore.record.put.explain import DELAY_MAX
from kvstore.serve.access.credentials import check_private
from kvstore.wire.addresses import TLS, UNIX
from kvstore.wire.proof import PART_MAX, parse_proof

StoreOrNamespace = kvstore.Store | kvstore.Namespace
"""The calls that a verb makes."""

folder_argument: Option = click.argument("folder", metavar="DIR", type=LocalPath(file_okay=False))
topic_argument: Option = click.argument("topic")
exist_ok_option: Option = click.option(
    "--exist-ok", is_flag=True, help="Leave what is there as it is; no error."
)
config_option: Option = click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=LocalPath(exists=True, dir_okay=False),
    help="A TOML file with settings of kvstore.StoreConfig.",
)


namespace_option: Option = click.option(
    "--namespace", metavar="NAME", help="Work in this namespace: names are those it has in it."
)


CREDENTIALS: Final = "KVMQ_CREDENTIALS"
CREDENTIALS_FILE: Final = "KVMQ_CREDENTIALS_FILE"
TRUSTED: Final = "KVMQ_TLS_CA"
"""Variables of the environment, see `environment_target`."""
_RECONNECT_FOR: Final = 5.0
"""Seconds that a verb waits for a server that went away."""
_CREDENTIALS_MAX: Final = 4 * PART_MAX
"""Bytes of a file of a client's credentials."""


class Instant(click.ParamType[int]):
    """A point in time: milliseconds since the epoch, or ISO 8601 (local if it has no zone)."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See `click.ParamType`."""
        text = str(value)
        if text.lstrip("-").isdigit():
            return int(text)
        try:
            return round(datetime.fromisoformat(text).timestamp() * 1000)
        except (ValueError, OverflowError):
            self.fail(
                f"{text!r} is neither milliseconds since the epoch nor like 2026-11-21T08:30:00",
                param,
                ctx,
            )


class Seconds(click.FloatRange):
    """A duration: a number of seconds from `least` to `most`, NaN excluded."""

    name = "seconds"

    def __init__(self, least: float, most: float) -> None:
        super().__init__(min=least, max=most)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """See `click.ParamType`."""
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):
            # NaN is neither below `least` nor above `most`.
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return found


delay_options: Option = listed(
    click.option("--delay", type=Seconds(0, DELAY_MAX), metavar="SECONDS",
                 help="Deliver it so long after the put."),
    click.option("--deliver-at", type=Instant(), metavar="TIME",
                 help="Deliver it at a time: 2026-11-21T08:30, or ms since the epoch."),
)  # fmt: skip
"""When a message is to be delivered."""


def read_config(file: Path | None, access: Access | None = None) -> StoreConfig:
    """The settings in a TOML file, the defaults if there is none; `access` overrides them."""
    text = "" if file is None else file.read_text(encoding="utf-8")
    config = StoreConfig.from_toml(text)
    return config if access is None else access.of(config)


def require_store(
    folder: Path, makes: str = "`kvmq topic create` and `kvmq put --create` make one"
) -> None:
    """Raises `StoreNotFound` unless a store is there, or several; `makes` says what makes one."""
    if not any((folder / part).exists() for part in (COMMITLOG, INDEX, CLUSTER_FILE)):
        raise StoreNotFound(
            f"there is no store in {folder}: it has neither commitlog nor index in it; {makes}"
        )


@contextmanager
def open_store(
    out: Output,
    folder: Path,
    config_file: Path | None = None,
    *,
    access: Access | None = None,
    read_only: bool = False,
    create: bool = False,
    does: str = "",
    own: bool = False,
) -> Iterator[kvstore.Store]:
    """An open store for the time of the block, or the calls of a served one, unless the verb needs
    its `own`; a long recovery shows its progress. A verb that writes names in `does` the program's
    call for the same (`call_text`).
    """
    assert read_only or does, "the error for an open store names the calls to use instead"
    served = None if own else connect_if_served(folder)
    if served is not None:
        with served:
            yield cast(kvstore.Store, served)
        return
    if not create:
        require_store(folder)
    config = read_config(config_file, access)
    with out.progress() as report, telling(does):
        store = kvstore.open(folder, config=config, read_only=read_only, progress=report)
    with store:
        yield store


def connect_if_served(folder: Path) -> kvstore.ServedStore | None:
    """The store in a folder by its server; None if it has none."""
    url = served_url(folder)
    if not url:
        return None
    try:
        found: kvstore.ServedStore = kvstore.connect(
            url, **environment_target(url), reconnect_for=_RECONNECT_FOR
        )
    except ConnectionLost:
        return None  # the server was killed: opening says what is there
    return found


def environment_target(url: str) -> dict[str, Any]:
    """The arguments of `kvstore.connect` that the environment has for a URL: the credentials, or a
    private file with them, and the certificates to trust. An argument on the command line would be
    seen by every user of the machine. `ConfigError` for a file that others can read.
    """
    if url.startswith(f"{UNIX}:"):
        return {}
    text, file = os.environ.get(CREDENTIALS), os.environ.get(CREDENTIALS_FILE)
    if text is None and file is not None:
        path, files = local_path(file, f"the file that {CREDENTIALS_FILE} names"), LocalFiles()
        check_private(files, path, "the file of a client's credentials")
        text = files.read(path, 0, _CREDENTIALS_MAX).decode("utf-8", "replace")
    found: dict[str, Any] = {} if text is None else {"credentials": parse_proof(text)}
    if url.startswith(f"{TLS}:") and TRUSTED in os.environ:
        found["tls"] = os.environ[TRUSTED]
    return found


def within(store: kvstore.Store, namespace: str | None) -> StoreOrNamespace:
    """The calls of the store, or of the namespace that was named."""
    return store if namespace is None else store.namespace(namespace)


@dataclass(frozen=True, slots=True)
class VerbStore:
    """The store that a verb is about, or the namespace in it that was named, and the verb's output;
    see `store_options`.
    """

    out: Output
    folder: Path
    namespace: str | None

    def reading(self, access: Access | None = None) -> AbstractContextManager[StoreOrNamespace]:
        """The calls for the time of the block, for a verb that changes nothing."""
        return self._open(access=access, read_only=True)

    def writing(
        self, does: str, config_file: Path | None = None, *, access: Access | None = None,
        create: bool = False,
    ) -> AbstractContextManager[StoreOrNamespace]:  # fmt: skip
        """As `reading`, for a verb that writes; see `open_store`."""
        return self._open(config_file, access=access, create=create, does=does)

    @contextmanager
    def _open(self, config_file: Path | None = None, **how: Any) -> Iterator[StoreOrNamespace]:
        if self.namespace is not None:
            check_namespace(self.namespace)  # before a store is made for it
        with open_store(self.out, self.folder, config_file, **how) as store:
            yield within(store, self.namespace)

    def call(
        self, call: str, *given: object, access: Access | None = None,
        config_file: Path | None = None, **named: object,
    ) -> Any:  # fmt: skip
        """Makes one call, and returns its result. Of a store that is open elsewhere the error names
        that call.
        """
        with self.writing(self.text(call, *given, **named), config_file, access=access) as calls:
            return getattr(calls, call)(*given, **named)

    def text(self, call: str, *given: object, **named: object) -> str:
        """See `call_text`."""
        return call_text(call, *given, namespace=self.namespace, **named)


def store_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a verb the options `--namespace` and `--json` and, in the place of `folder_argument`,
    a `VerbStore` as its first argument.
    """

    @namespace_option
    @output_option
    @functools.wraps(verb)
    def with_store(
        out: Output, *args: Any, folder: Path, namespace: str | None, **options: Any
    ) -> Any:
        return verb(VerbStore(out, folder, namespace), *args, **options)

    return with_store


def call_text(call: str, *given: object, namespace: str | None = None, **named: object) -> str:
    """A call of the store as a program writes it; arguments that are None are left out.

    >>> call_text("redrive", "billing", limit=None)
    "store.redrive('billing')"
    """
    view = "store" if namespace is None else f"store.namespace({namespace!r})"
    return written_call(view, call, given, named)


def written_call(
    handle: str, call: str, given: Sequence[object], named: Mapping[str, object]
) -> str:
    """A call of the object that a program calls `handle`."""
    words = [_written(value) for value in given if value is not None]
    # There None takes a setting away; elsewhere it stands for an argument that was not given.
    clears = call.startswith("alter_")
    words += [f"{n}={_written(value)}" for n, value in named.items() if clears or value is not None]
    return f"{handle}.{call}({', '.join(words)})"


class Word(str):
    """A part of a call that is no literal: a program's variable, or another call."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _written(value: object) -> str:
    is_ours = type(value).__name__ in kvstore.__all__
    return f"kvstore.{value!r}" if is_ours else repr(value)


@contextmanager
def telling(does: str | None) -> Iterator[None]:
    """Adds to the error of a store that another process has open the call that can be made there;
    None: there is no such call.
    """
    try:
        yield
    except StoreLocked as e:
        e.add_note(
            "no call of the program that has it open does the same"
            if does is None
            else f"the program that has it open does the same by {does}"
        )
        raise


def time_text(milliseconds: int) -> str:
    """An instant for people, in local time."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000).isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)  # beyond what a calendar holds: a damaged or foreign record
