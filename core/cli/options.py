"""Shared by the commands: the `--config` option, tables, a client to the cluster.

Modules that only some commands need are imported in functions, so that a broker loads neither tables nor a client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ..config.units import parse_time
from ..errors import ConfigError, ErrorCode, KlammError
from ..records.partition import TopicPartition

if TYPE_CHECKING:
    from ..client.cluster_client import ClusterClient
    from ..config.settings import Settings

__all__ = [
    "DEFAULT_CONFIG",
    "TIMEOUT_S",
    "Bootstrap",
    "ConfigFile",
    "cluster_client",
    "interval_s",
    "is_offline",
    "named",
    "settings_and_client",
    "settings_of",
    "why_unserved",
]

ConfigFile = Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="The YAML file.")]


def _servers(text: str | None) -> str | None:
    if text is not None:
        from ..client.network.metadata import parse_bootstrap

        parse_bootstrap(text, "--bootstrap")
    return text


Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT",
        callback=_servers,
        help="A broker's address; taken from the file if not given.",
    ),
]
DEFAULT_CONFIG = Path("klamm.yaml")
TIMEOUT_S = 10.0
"""Time-out of a command's requests, in seconds; short, since a person waits."""


_MOST_DAYS: Final = 3650
"""The longest interval, since the operating system's clock cannot wait for arbitrarily many seconds."""


def interval_s(option: str, text: str) -> int:
    """Returns the seconds of `90s`, `10m`, `1h` or `1d`. Raises `ConfigError` with the option's name for any other
    text, for a number without a unit, and for more than `_MOST_DAYS`."""
    try:
        seconds = 0 if text.strip().isdigit() else parse_time(text, "seconds")
    except ValueError:
        seconds = 0
    if seconds == 0:
        raise ConfigError(f"{option}: expected an interval such as 90s, 10m or 1h, got {text!r}")
    if seconds > _MOST_DAYS * 86_400:
        raise ConfigError(f"{option}: expected an interval of at most {_MOST_DAYS}d, got {text!r}")
    return seconds


_OFFLINE: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.network_exception,
    }
)


def is_offline(error: KlammError) -> bool:
    """Returns whether the error of a partition means that no broker serves it."""
    return error.code in _OFFLINE


def why_unserved(client: ClusterClient, problems: Mapping[TopicPartition, KlammError]) -> list[str]:
    """Returns a line for each partition of which an offset could not be listed."""
    lines = []
    for tp, error in sorted(problems.items()):
        if is_offline(error):
            lines.append(f"{tp} is offline: {error}; the log of its broker says why")
        elif error.code is ErrorCode.offset_not_available:
            lines.append(f"{tp}: the end is not known {_until_known(client, tp)}")
        else:
            lines.append(f"{tp}: {error}")
    return lines


def _until_known(client: ClusterClient, tp: TopicPartition) -> str:
    """Returns what a new leader still waits for before it knows the high watermark (KIP-207)."""
    found = client.cluster.partition(tp)
    try:
        minimum = client.describe_configs(tp.topic).get("min.insync.replicas")
    except KlammError:  # as where it may not be read
        minimum = None
    if found is not None and minimum is not None and minimum.value is not None:
        wanted, there = min(int(minimum.value), len(found.replicas)), len(found.isr)
        if there < wanted:
            return f"until min.insync.replicas ({wanted}) are in sync again ({there} {'is' if there == 1 else 'are'})"
    return "yet: its new leader waits for the other replicas in sync"


@contextmanager
def cluster_client(config: Path, bootstrap: str | None) -> Iterator[ClusterClient]:
    """Yields a client of the cluster that the file or `--bootstrap` names; with `--bootstrap` no file is needed.
    Only the address is read from the file (`servers_in`): the client has no codecs and no plugins."""
    from ..client.factory import ClusterAccess, open_client
    from ..config.document import read
    from ..config.servers import servers_in
    from ..records.codecs import CodecTable

    if bootstrap and named(config):
        read(config)  # raises for a file that does not exist
    access = ClusterAccess(bootstrap or servers_in(config), CodecTable())
    with open_client(access, "cli", request_timeout_s=TIMEOUT_S) as client:
        yield client


@contextmanager
def settings_and_client(config: Path, bootstrap: str | None) -> Iterator[tuple[Settings, ClusterClient]]:
    """Yields the validated settings and the client, for a command that needs more than the address."""
    from ..client.factory import open_client
    from ..config.servers import servers_of

    settings = settings_of(config, bootstrap)
    servers = bootstrap or servers_of(settings)
    with open_client(settings, "cli", bootstrap_servers=servers, request_timeout_s=TIMEOUT_S) as client:
        yield settings, client


def settings_of(config: Path, bootstrap: str | None) -> Settings:
    """Returns the settings of the file, which may be missing with `--bootstrap`."""
    from ..config.settings import Settings, load_settings

    return Settings() if bootstrap and not named(config) else load_settings(config)


def named(config: Path) -> bool:
    """Returns whether the file must be read: a missing file is an error unless it is the default one."""
    return config != DEFAULT_CONFIG or config.exists()
