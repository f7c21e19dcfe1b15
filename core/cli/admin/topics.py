"""`klamm topics`: list, create, describe, alter and delete topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...config.limits import INT_MAX, LONG_MAX, SHORT_MAX
from ...config.units import in_unit_of
from ...errors import BrokerError, ConfigError, ErrorCode
from ...records.partition import TopicPartition, counted
from ..options import (
    DEFAULT_CONFIG,
    Bootstrap,
    ConfigFile,
    cluster_client,
    is_offline,
    settings_and_client,
    why_unserved,
)
from ..output import Json, say, say_json, say_rows

if TYPE_CHECKING:
    from ...client.cluster_client import ClusterClient
    from ...config.settings import Settings

app = typer.Typer(
    add_completion=False, help="List, create, describe, alter, apply and delete topics.", no_args_is_help=True
)
CHANGES = 3
"""The exit status of `apply --dry-run` when there are changes to be made."""
Name = Annotated[str, typer.Argument(metavar="TOPIC")]
Pairs = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A topic config; may be repeated.")]
Partitions = Annotated[
    int | None, typer.Option("--partitions", "-p", min=1, max=INT_MAX, help="The number of partitions.")
]

_NOT_DELETED = {
    ErrorCode.offset_out_of_range: ": --before is above its end (`next` in `klamm topics describe`)",
    ErrorCode.policy_violation: ": its topic is only compacted (cleanup.policy=compact), so records cannot be deleted",
}
"""The meaning of these error codes, since the response has no message."""


@app.command("list")
def list_topics(config: ConfigFile = DEFAULT_CONFIG, bootstrap: Bootstrap = None, as_json: Json = False) -> None:
    """Print the names of all topics; with --json also their partitions and replication factors."""
    with cluster_client(config, bootstrap) as client:
        topics = client.metadata().topics
    if as_json:
        from .topic_changes import smallest_factor
    for name, topic in sorted(topics.items()):
        if as_json:
            say_json({"topic": name, "partitions": len(topic.partitions), "replication_factor": smallest_factor(topic)})
        else:
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
        bool,
        typer.Option("--all-from-config", help="Create the file's topics; existing ones stay as they are."),
    ] = False,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Create one topic, with the settings of the file and the options, or all topics of the file.

    With --all-from-config the exit status is 1 if a topic exists and differs from the file.
    """
    from ...client.cluster_client import NewTopic
    from .topic_changes import new_topic

    if all_from_config == (topic is not None):
        raise ConfigError("topics create: name one topic, or use --all-from-config")
    changes = _pairs(settings_of)
    _check_file(config)
    with settings_and_client(config, bootstrap) as (settings, client):
        if topic is None:
            if not _create_all(settings, client):
                raise typer.Exit(1)
            return
        _check_name(topic)
        base = new_topic(settings.topics.get(topic))
        new = NewTopic(
            partitions if partitions is not None else base.partitions,
            replication_factor if replication_factor is not None else base.replication_factor,
            {**base.configs, **changes},
        )
        client.create_topics({topic: new})
        _warn_of_minimum(client, topic, new.configs)
        say(f"{topic}: created")


@app.command()
def describe(
    topic: Name, config: ConfigFile = DEFAULT_CONFIG, bootstrap: Bootstrap = None, as_json: Json = False
) -> None:
    """Show a topic's partitions, with first and next offset, and the configs that are not defaults.

    A partition that no broker serves has the leader `none`, and an offset that is not known is `-`; the reason is on
    stderr.
    """
    from ...client.cluster_client import EARLIEST, LATEST
    from ...config.section import ConfigSource

    with cluster_client(config, bootstrap) as client:
        partitions = client.topic(topic, all_led=False).partitions
        chosen = [TopicPartition(topic, number) for number in sorted(partitions)]
        first, problems = client.list_served_offsets(dict.fromkeys(chosen, EARLIEST))
        end, gone = client.list_served_offsets(dict.fromkeys(first, LATEST))
        problems.update(gone)
        reasons = why_unserved(client, problems)
        configs = client.describe_configs(topic)
    rows = []
    for tp in chosen:
        found = partitions[tp.partition]
        led = found.leader >= 0 and not (tp in problems and is_offline(problems[tp]))
        rows.append(
            {
                "partition": tp.partition,
                "leader": found.leader if led else None,
                "replicas": list(found.replicas),
                "in_sync": list(found.isr),
                "first": first.get(tp),
                "next": end.get(tp),
            }
        )
    given = {name: entry for name, entry in sorted(configs.items()) if entry.source != ConfigSource.DEFAULT}
    if as_json:
        values = {name: entry.value for name, entry in given.items()}
        say_json({"topic": topic, "partitions": rows, "configs": values})
    else:
        shown = [{**row, "leader": "none" if row["leader"] is None else row["leader"]} for row in rows]
        say_rows(("partition", "leader", "replicas", "in_sync", "first", "next"), shown)
    for line in reasons:
        say(f"klamm: {line}", err=True)
    for name, entry in () if as_json else given.items():
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
    from ...config.sections.topic import TopicConfig

    _check_file(config)
    given: dict[str, str | None] = {**_pairs(changes), **dict.fromkeys(unset or ())}
    if not given and partitions is None:
        raise ConfigError("topics alter: nothing to change; use --set, --unset or --partitions")
    TopicConfig.from_strings({name: value for name, value in given.items() if value is not None})
    with cluster_client(config, bootstrap) as client, _nearest(client, topic):
        if given:
            client.alter_configs(topic, given)
            _warn_of_minimum(client, topic, given)
        if partitions is not None:
            client.create_partitions(topic, partitions)
    say(f"{topic}: altered")


@app.command()
def apply(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC…", help="Only these topics of the file; all if not given.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be changed, and change nothing.")
    ] = False,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Make the cluster's topics as the file defines them: create topics, add partitions, set configs. Deletes
    nothing.

    Configs that a topic has and the file does not name are listed, and not changed. Exit status 0: the cluster's
    topics are as the file defines them; 1: a change was refused, or cannot be made (fewer partitions, another
    replication factor); 2: the command or the file is wrong; 3: with --dry-run, there are changes to be made, and
    all can be.
    """
    from ...config.sections.topic_settings import MINIMUM
    from ...config.settings import load_settings
    from .topic_changes import file_changes, make

    settings = load_settings(config)
    unknown = [name for name in topics or () if name not in settings.topics]
    if unknown:
        known = ", ".join(settings.topics) or "none"
        raise ConfigError(f"{config}: topics: there is no {unknown[0]!r} (there are: {known})")
    with cluster_client(config, bootstrap) as client:
        found = dict(file_changes(client, {name: settings.topics[name] for name in topics or settings.topics}))
        try:
            for name, changes in found.items() if not dry_run else ():
                found[name] = make(client, settings.topics[name], changes)
        finally:  # also what was done before Ctrl-C
            columns = ("topic", "change", "key", "cluster", "file", *(() if dry_run else ("result",)))
            all_changes = [change for changes in found.values() for change in changes]
            if all_changes or as_json:
                say_rows(columns, (change.row() for change in all_changes), as_json)
        for change in all_changes:
            if change.why is not None:
                say(f"klamm: {change.topic}: {change.key or 'not created'}: {change.why}", err=True)
            elif change.done and change.key in (None, MINIMUM):
                _warn_of_minimum(client, change.topic, settings.topics[change.topic].config)
    differing = [change for change in all_changes if change.differs]
    if not as_json:
        made = sum(change.done for change in all_changes)
        if dry_run and differing:
            say(f"{counted(len(differing), 'difference')}; a dry run: nothing was changed")
        else:
            left = f", {len(differing)} not made" if differing else ""
            say(f"{counted(made, 'change')} made{left}" if made or left else "the topics are as the file defines them")
    if any(change.why is not None for change in differing):
        raise typer.Exit(1)
    if differing:
        raise typer.Exit(CHANGES)


@app.command()
def delete(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC…")],
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Delete topics and their records."""
    with cluster_client(config, bootstrap) as client:
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
    as_json: Json = False,
) -> None:
    """Delete the records of a topic before an offset, as kafka-delete-records does."""
    with cluster_client(config, bootstrap) as client:
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
            if as_json:
                say_json({"topic": topic, "partition": tp.partition, "start": start})
            else:
                say(f"{tp}: starts at {start}")


def _create_all(settings: Settings, client: ClusterClient) -> bool:
    """Creates the file's topics that do not exist, with a line for each topic. Returns False if one was refused, or
    exists and differs from the file."""
    from .topic_changes import Action, file_changes, make

    well = True
    for name, changes in file_changes(client, settings.topics):
        section = settings.topics[name]
        differs = "; ".join(str(change) for change in changes if change.differs)
        if changes and changes[0].action is Action.CREATE:
            [made] = make(client, section, changes)
            if made.done:
                say(f"{name}: created")
                _warn_of_minimum(client, name, section.config)
            else:
                say(f"klamm: {made.why}", err=True)
            well = well and made.done
        elif differs:
            say(f"klamm: {name}: exists, and differs: {differs} (klamm topics apply)", err=True)
            well = False
        else:
            say(f"{name}: exists")
    return well


def _warn_of_minimum(client: ClusterClient, topic: str, configs: Mapping[str, str | None]) -> None:
    """Warns on stderr if `min.insync.replicas` is above the number of the topic's replicas. It is accepted, as by
    Kafka."""
    from ...config.sections.topic_settings import MINIMUM, too_high_minimum
    from .topic_changes import smallest_factor

    if MINIMUM not in configs:
        return
    lowered = too_high_minimum(topic, configs, smallest_factor(client.topic(topic, all_led=False)))
    if lowered:
        say(f"klamm: {lowered}", err=True)


def _pairs(given: Iterable[str] | None) -> dict[str, str]:
    """Parses and validates `key=value` options, before any request is sent."""
    from ...config.sections.topic import TopicConfig

    pairs = {}
    for text in given or ():
        name, mark, value = text.partition("=")
        if not mark:
            raise ConfigError(f"--set {text}: expected KEY=VALUE")
        key = name.strip()
        if key in pairs:
            raise ConfigError(f"--set {text}: {key} is given twice")
        try:
            pairs[key] = str(in_unit_of(key, value.strip()))
        except ValueError as error:
            raise ConfigError(f"--set {text}: {key}: {error}") from error
    TopicConfig.from_strings(pairs)
    return pairs


@contextmanager
def _nearest(client: ClusterClient, topic: str) -> Iterator[None]:
    """Adds the nearest existing topic to the error for an unknown one."""
    from ...client.errors import unknown_topic

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
    from ...config.sections.topic_settings import name_problem

    problem = name_problem(topic)
    if problem:
        raise ConfigError(problem)
