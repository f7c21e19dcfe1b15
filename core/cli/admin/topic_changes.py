"""The differences between a file's topics and the cluster's, as changes (`klamm topics apply`); none deletes
anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from ...config.section import ConfigSource
from ...config.sections.topic import TopicConfig, topic_values
from ...config.sections.topic_settings import TopicSettings
from ...errors import ConfigError, KlammError

if TYPE_CHECKING:
    from ...client.cluster_client import ClusterClient, ConfigEntry, NewTopic
    from ...client.network.metadata import TopicView

PARTITIONS: Final = "partitions"
FACTOR: Final = "replication.factor"


class Action(Enum):
    """`LEFT`: a config that the topic has and the file does not name, which stays. `CANNOT`: a difference that no
    change of a topic removes."""

    CREATE = "create"
    ADD_PARTITIONS = "add partitions"
    SET = "set"
    LEFT = "left"
    CANNOT = "cannot"


@dataclass(frozen=True, slots=True)
class TopicChange:
    """One difference: the value of `key` in the `cluster` and in the `file`. `why`: the reason why the change cannot
    be made, or was refused."""

    topic: str
    action: Action
    key: str | None = None
    cluster: str | None = None
    file: str | None = None
    done: bool = False
    why: str | None = None

    @property
    def is_change(self) -> bool:
        return self.action not in (Action.LEFT, Action.CANNOT)

    @property
    def differs(self) -> bool:
        """True if the cluster's value is not the file's."""
        return self.action is not Action.LEFT and not self.done

    def row(self) -> dict[str, Any]:
        result = "refused" if self.why and self.is_change else "done" if self.done else None
        return {
            "topic": self.topic,
            "change": self.action.value,
            "key": self.key,
            "cluster": self.cluster,
            "file": self.file,
            "result": result,
            "why": self.why,
        }

    def __str__(self) -> str:
        return f"{self.key} is {self.cluster}, {self.file} in the file"


def make(client: ClusterClient, section: TopicSettings, changes: Sequence[TopicChange]) -> list[TopicChange]:
    """Makes the changes of one topic, its configs in one request, since they may depend on each other; returns all of
    them with their results."""
    configs = [change for change in changes if change.action is Action.SET]
    made = [_make(client, section, [change]) for change in changes if change.action is not Action.SET]
    return [change for group in [*made, _make(client, section, configs)] for change in group]


def _make(client: ClusterClient, section: TopicSettings, changes: list[TopicChange]) -> list[TopicChange]:
    if not changes or not changes[0].is_change:
        return changes
    first = changes[0]
    try:
        if first.action is Action.CREATE:
            client.create_topics({first.topic: new_topic(section)})
        elif first.action is Action.ADD_PARTITIONS:
            client.create_partitions(first.topic, int(first.file or 0))
        else:
            client.alter_configs(first.topic, {str(change.key): change.file for change in changes})
    except KlammError as error:
        return [replace(change, why=str(error)) for change in changes]
    return [replace(change, done=True) for change in changes]


def new_topic(section: TopicSettings | None) -> NewTopic:
    """Returns the topic as the file defines it, with the broker's defaults for the rest."""
    from ...client.cluster_client import NewTopic

    if section is None:
        return NewTopic()
    return NewTopic(
        -1 if section.partitions is None else section.partitions,
        -1 if section.replication_factor is None else section.replication_factor,
        section.config,
    )


def smallest_factor(topic: TopicView) -> int:
    """Returns the smallest number of replicas of the topic's partitions."""
    return min((len(each.replicas) for each in topic.partitions.values()), default=0)


def file_changes(
    client: ClusterClient, sections: Mapping[str, TopicSettings]
) -> Iterator[tuple[str, list[TopicChange]]]:
    """Yields each topic of the file with its differences from the cluster. The controller is asked, since another
    broker may not know yet what an earlier command has changed."""
    controller = client.controller()
    there = client.metadata(node_id=controller).topics
    for name, section in sections.items():
        if name in there:
            configs = client.describe_configs(name, node_id=controller)
            yield name, [*_shape(name, section, there[name]), *_configs(name, section.config, configs)]
        else:
            given = {PARTITIONS: section.partitions, FACTOR: section.replication_factor, **section.config}
            text = " ".join(f"{key}={value}" for key, value in given.items() if value is not None)
            yield name, [TopicChange(name, Action.CREATE, file=text or None)]


def _shape(name: str, section: TopicSettings, there: TopicView) -> Iterator[TopicChange]:
    wanted, has = section.partitions, len(there.partitions)
    if wanted is not None and wanted > has:
        yield TopicChange(name, Action.ADD_PARTITIONS, PARTITIONS, str(has), str(wanted))
    if wanted is not None and wanted < has:
        why = "partitions cannot be removed; create another topic, or change the file"
        yield TopicChange(name, Action.CANNOT, PARTITIONS, str(has), str(wanted), why=why)
    factor, replicas = section.replication_factor, smallest_factor(there)
    if factor is not None and factor != replicas:
        why = f"klamm cluster reassign {name} --replication-factor {factor} moves replicas"
        yield TopicChange(name, Action.CANNOT, FACTOR, str(replicas), str(factor), why=why)


def _configs(name: str, wanted: Mapping[str, str], configs: Mapping[str, ConfigEntry]) -> Iterator[TopicChange]:
    for key, value in wanted.items():
        found = configs.get(key)
        has = None if found is None else found.value
        if has is None or _canonical(key, has) != _canonical(key, value):
            yield TopicChange(name, Action.SET, key, has, value)
    for key, entry in sorted(configs.items()):
        if entry.source == ConfigSource.TOPIC and key not in wanted:
            yield TopicChange(name, Action.LEFT, key, entry.value)


def _canonical(key: str, value: str) -> str:
    """Returns a config's value in one spelling: `compact,delete` is `delete,compact`."""
    try:
        return topic_values({key: value}, TopicConfig())[key]
    except ConfigError:  # a broker of another version may have other values
        return value
