"""Door options: how `serve` is told of doors beside its socket, and who may come in by them.

The idea: the options that several doors share (credentials, TLS) are read once; each door of the
server is made of them. A door's packages are imported when it is asked for.

Invariant: a door that would be open to other machines without credentials and TLS is refused before
the store is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from kvstore import __version__
from kvstore.cli.terminal.options import LocalPath, Option, one_argument
from kvstore.config import StoreConfig
from kvstore.errors import CallerError
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.exposure import check_exposure, tls_context
from kvstore.serve.access.limits import ClientLimits
from kvstore.serve.local_door import LocalDoor, check_local_exposure
from kvstore.wire.addresses import Address

if TYPE_CHECKING:
    from kvstore.serve.door import MakesDoor
    from kvstore.sharding.membership import Membership
    from tiering.policy.policy import Policy

_PACKAGES: Final = {"google": "protobuf", "prometheus_client": "prometheus-client"}
"""Modules whose packages have other names."""


class HostAndPort(click.ParamType[tuple[str, int]]):
    """HOST:PORT; an IPv6 address stands in brackets."""

    name = "HOST:PORT"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """See `click.ParamType`."""
        host, colon, port = str(value).rpartition(":")
        is_number = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
        if not colon or not is_number or (":" in host and not host.startswith("[")):
            self.fail(f"{value!r} is not like 127.0.0.1:9876 or [::1]:9876", param, ctx)
        return host.strip("[]"), int(port)


class DoorOptions(NamedTuple):
    """The doors that were asked for, and what they share; None: not given."""

    http: tuple[str, int] | None
    grpc: tuple[str, int] | None
    credentials: Path | None
    certificate: Path | None
    key: Path | None

    def read(self, config: StoreConfig, addresses: Iterable[Address]) -> OpenTo:
        """Reads the files that were named; `ConfigError`, `ExposureRefused`. The addresses are
        those of the local protocol.
        """
        files = config.files
        if (self.certificate is None) != (self.key is None):
            raise CallerError("--tls-certificate and --tls-key go together; one of them is missing")
        access = AccessControl(self.credentials, files, config.clock)
        has_tls = self.certificate is not None
        for door, place in (("--http", self.http), ("--grpc", self.grpc)):
            if place is not None:
                check_exposure(
                    door, place[0], has_credentials=access.has_credentials, has_tls=has_tls
                )
        for address in addresses:
            if address.path is None:
                check_local_exposure(
                    address, has_credentials=access.has_credentials, has_tls=has_tls
                )
        return OpenTo(self, config, access, ClientLimits(access.limits, config.clock))


class OpenTo(NamedTuple):
    """Who may come in, and by which doors."""

    asked: DoorOptions
    config: StoreConfig
    access: AccessControl
    limits: ClientLimits

    def makers(
        self,
        addresses: Iterable[Address],
        policy: Policy | None,
        cluster: Membership | None = None,
    ) -> list[MakesDoor]:
        """Makes the doors that were asked for, those of the local protocol first, of a server that
        is in a cluster by its name.
        """
        found: list[MakesDoor] = [
            partial(
                LocalDoor, address, access=self.access, limits=self.limits,
                tls=self._tls() if address.is_tls else None,
            )
            for address in addresses
        ]  # fmt: skip
        if self.asked.http is not None:
            with _installed("--http"):
                found.append(self._http_door(*self.asked.http, policy))
        if self.asked.grpc is not None:
            with _installed("--grpc"):
                found.append(self._rocketmq_door(*self.asked.grpc, cluster))
        return found

    def _tls(self) -> Any:
        """A context of TLS of a door's own: each door says by itself what it speaks."""
        certificate, key = self.asked.certificate, self.asked.key
        if certificate is None or key is None:
            return None
        return tls_context(self.config.files, certificate, key)

    def _rocketmq_door(self, host: str, port: int, cluster: Membership | None) -> MakesDoor:
        from kvstore.serve.grpc.rocketmq_door import RocketmqDoor

        return partial(
            RocketmqDoor,
            host,
            port,
            access=self.access,
            limits=self.limits,
            tls=self._tls(),
            cluster=cluster,
        )

    def _http_door(self, host: str, port: int, policy: Policy | None) -> MakesDoor:
        from kvstore.cli.tier.plan import tier_costs
        from kvstore.serve.http.http_door import HttpDoor, HttpSettings

        settings = HttpSettings(
            host,
            port,
            self.access,
            self.limits,
            self.config.clock,
            __version__,
            self._tls(),
            None if policy is None else tier_costs(policy),
        )
        return partial(HttpDoor, settings)


@contextmanager
def _installed(option: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as e:
        module = (e.name or "").partition(".")[0]
        package = _PACKAGES.get(module, module)
        raise CallerError(
            f"the door {option} takes the package {package}, which is not installed: "
            "pip install 'kvmq[serve]'"
        ) from e


door_options: Option = one_argument(
    "doors",
    DoorOptions,
    http=click.option("--http", type=HostAndPort(), metavar="HOST:PORT",
                      help="Metrics, health and the admin page, by HTTP."),
    grpc=click.option("--grpc", type=HostAndPort(), metavar="HOST:PORT",
                      help="For RocketMQ's own clients, 5.0 and newer."),
    credentials=click.option("--credentials", metavar="FILE",
                             type=LocalPath(dir_okay=False),
                             help="The clients and their rights; SIGHUP reads it again."),
    certificate=click.option("--tls-certificate", "certificate", metavar="FILE",
                             type=LocalPath(dir_okay=False), help="Of TLS, in PEM."),
    key=click.option("--tls-key", "key", metavar="FILE", type=LocalPath(dir_okay=False),
                     help="The key of the certificate, in PEM."),
)  # fmt: skip
"""The options of doors, as the argument `doors`."""
