"""`klamm topics`: list, create, describe, alter and delete topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..config.section import INT_MAX, LONG_MAX, SHORT_MAX, ConfigSource
from ..config.sections.topic import TopicConfig
from ..config.sections.topic_settings import name_problem, too_high_minimum
from ..config.settings import Settings
from ..errors import BrokerError, ConfigError, ErrorCode
from ..records.partition import TopicPartition
from .options import (
    DEFAULT_CONFIG,
    Bootstrap,
    ConfigFile,
    cell,
    cluster_client,
    console,
    is_offline,
    table,
    why_unserved,
)
from .output import say

if TYPE_CHECKING:
    from ..client.cluster_client import ClusterClient, NewTopic

app = typer.Typer(add_completion=False, help="List, create, describe, alter and delete topics.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="TOPIC")]
Pairs = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A topic config; may be repeated.")]
Partitions = Annotated[
    int | None, typer.Option("--partitions", "-p", min=1, max=INT_MAX, help="The number of partitions.")
]

_NOT_DELETED = {
    ErrorCode.offset_out_of_range: ": --before is above its end (`next` in `klamm topics describe`)",
    ErrorCode.policy_violation: ": its topic is only compacted (cleanup.policy=compact), so records cannot be deleted",
}
"""The meaning of these codes here: the response has no message."""


@app.command("list")
def list_topics(config: ConfigFile = DEFAULT_CONFIG, bootstrap: Bootstrap = None) -> None:
    """Print the names of all topics."""
    with cluster_client(config, bootstrap) as (_, client):
        for name in sorted(client.metadata().topics):
            say(name)


@app.command()
def create(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC")] = None,
    partitions: Partitions = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", min=1, max=SHORT_MAX, help="The replicas of each partition."),
    ] = None,
    settings_of: Pairs = None,
    all_from_config: Annotated[
        bool, typer.Option("--all-from-config", help="Create the file's topics; existing ones stay as they are.")
    ] = False,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Create one topic, with the settings of the file and the options, or all topics of the file."""
    from ..client.cluster_client import NewTopic

    if all_from_config == (topic is not None):
        raise ConfigError("topics create: name one topic, or use --all-from-config")
    changes = _pairs(settings_of)
    _check_file(config)
    with cluster_client(config, bootstrap) as (settings, client):
        if topic is None:
            if not _create_all(settings, client):
                raise typer.Exit(1)
            return
        _check_name(topic)
        base = _from_file(settings, topic)
        new = NewTopic(
            partitions if partitions is not None else base.partitions,
            replication_factor if replication_factor is not None else base.replication_factor,
            {**base.configs, **changes},
        )
        client.create_topics({topic: new})
        _warn_of_minimum(client, topic, new.configs)
        say(f"{topic}: created")


@app.command()
def describe(topic: Name, config: ConfigFile = DEFAULT_CONFIG, bootstrap: Bootstrap = None) -> None:
    """Show a topic's partitions, with first and next offset, and the configs that are not defaults.

    A partition that no broker serves has the leader `none`, and an offset that is not known is `-`; the reason is on
    stderr.
    """
    from ..client.cluster_client import EARLIEST, LATEST

    with cluster_client(config, bootstrap) as (_, client):
        partitions = client.topic(topic, all_led=False).partitions
        chosen = [TopicPartition(topic, number) for number in sorted(partitions)]
        first, problems = client.list_served_offsets(dict.fromkeys(chosen, EARLIEST))
        end, gone = client.list_served_offsets(dict.fromkeys(first, LATEST))
        problems.update(gone)
        reasons = why_unserved(client, problems)
        configs = client.describe_configs(topic)
    rows = table("partition", "leader", "replicas", "in sync", "first", "next", right=("first", "next"))
    for tp in chosen:
        found = partitions[tp.partition]
        leader = "none" if found.leader < 0 or (tp in problems and is_offline(problems[tp])) else found.leader
        offsets = (cell(first.get(tp)), cell(end.get(tp)))
        rows.add_row(str(tp.partition), str(leader), _numbers(found.replicas), _numbers(found.isr), *offsets)
    console().print(rows)
    for line in reasons:
        say(f"klamm: {line}", err=True)
    for name, entry in sorted(configs.items()):
        if entry.source != ConfigSource.DEFAULT:
            say(f"{name}={entry.value}{'' if entry.source == ConfigSource.TOPIC else '  (from the broker)'}")


@app.command()
def alter(
    topic: Name,
    changes: Pairs = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="KEY", help="A topic config to reset to its default; may be repeated."),
    ] = None,
    partitions: Partitions = None,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Change a topic's configs, or add partitions."""
    _check_file(config)
    given: dict[str, str | None] = {**_pairs(changes), **dict.fromkeys(unset or ())}
    if not given and partitions is None:
        raise ConfigError("topics alter: nothing to change; use --set, --unset or --partitions")
    TopicConfig.from_strings({name: value for name, value in given.items() if value is not None})
    with cluster_client(config, bootstrap) as (_, client), _nearest(client, topic):
        if given:
            client.alter_configs(topic, given)
            _warn_of_minimum(client, topic, given)
        if partitions is not None:
            client.create_partitions(topic, partitions)
    say(f"{topic}: altered")


@app.command()
def delete(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC…")],
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Delete topics and their records."""
    with cluster_client(config, bootstrap) as (_, client):
        for name in topics:
            with _nearest(client, name):
                client.delete_topics([name])
            say(f"{name}: deleted")


@app.command("delete-records")
def delete_records(
    topic: Name,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", min=0, help="Only this partition; may be repeated. All if not given."),
    ] = None,
    before: Annotated[
        int,
        typer.Option(
            "--before",
            metavar="OFFSET",
            min=-1,
            max=LONG_MAX,
            help="The first offset to keep; -1 deletes all records.",
        ),
    ] = -1,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Delete the records of a topic before an offset, as kafka-delete-records does."""
    with cluster_client(config, bootstrap) as (_, client):
        chosen = client.partitions(topic)
        unknown = sorted(set(partition or ()) - {tp.partition for tp in chosen})
        if unknown:
            raise ConfigError(f"--partition {unknown[0]}: topic {topic!r} has the partitions 0 to {len(chosen) - 1}")
        wanted = [tp for tp in chosen if partition is None or tp.partition in partition]
        try:
            starts = client.delete_records(dict.fromkeys(wanted, before))
        except BrokerError as error:
            raise BrokerError(error.code, f"{error.words}{_NOT_DELETED.get(error.code, '')}") from error
        for tp, start in sorted(starts.items()):
            say(f"{tp}: starts at {start}")


def _create_all(settings: Settings, client: ClusterClient) -> bool:
    """Creates the file's topics that do not exist, with a line for each topic. Returns False if one was refused."""
    there, refused = client.metadata().topics, False
    for name in settings.topics:
        if name in there:
            say(f"{name}: exists")
            continue
        new = _from_file(settings, name)
        try:
            client.create_topics({name: new}, exists_ok=True)
        except BrokerError as error:
            say(f"klamm: {error}", err=True)
            refused = True
            continue
        _warn_of_minimum(client, name, new.configs)
        say(f"{name}: created")
    return not refused


def _from_file(settings: Settings, topic: str) -> NewTopic:
    """Returns the topic as the file defines it, with the broker's defaults for the rest."""
    from ..client.cluster_client import NewTopic

    section = settings.topics.get(topic)
    if section is None:
        return NewTopic()
    return NewTopic(
        -1 if section.partitions is None else section.partitions,
        -1 if section.replication_factor is None else section.replication_factor,
        section.config,
    )


def _warn_of_minimum(client: ClusterClient, topic: str, configs: Mapping[str, str | None]) -> None:
    """Says on stderr if `min.insync.replicas` is above the number of the topic's replicas: it is accepted, as by
    Kafka."""
    if "min.insync.replicas" not in configs:
        return
    replicas = min(len(each.replicas) for each in client.topic(topic, all_led=False).partitions.values())
    lowered = too_high_minimum(topic, configs, replicas)
    if lowered:
        say(f"klamm: {lowered}", err=True)


def _pairs(given: Iterable[str] | None) -> dict[str, str]:
    """Parses and validates `key=value` options, before any request is sent."""
    pairs = {}
    for text in given or ():
        name, mark, value = text.partition("=")
        if not mark:
            raise ConfigError(f"--set {text}: expected KEY=VALUE")
        if name.strip() in pairs:
            raise ConfigError(f"--set {text}: {name.strip()} is given twice")
        pairs[name.strip()] = value.strip()
    TopicConfig.from_strings(pairs)
    return pairs


@contextmanager
def _nearest(client: ClusterClient, topic: str) -> Iterator[None]:
    """Adds the nearest existing topic to the error for an unknown one."""
    from ..client.errors import unknown_topic

    try:
        yield
    except BrokerError as error:
        if error.code is not ErrorCode.unknown_topic_or_partition:
            raise
        raise unknown_topic(topic, client.metadata().topics, wanted=False) from error


def _check_file(config: Path) -> None:
    """Raises for `--config KEY=VALUE`, with which Kafka's tool sets a topic's configs."""
    if "=" in str(config) and not config.exists():
        raise ConfigError(
            f"--config {config}: this option is for the YAML file; set a topic config with --set {config}"
        )


def _check_name(topic: str) -> None:
    problem = name_problem(topic)
    if problem:
        raise ConfigError(problem)


def _numbers(values: Iterable[int]) -> str:
    return ",".join(map(str, values))
