"""The paths in the coordination, with Kafka's names where Kafka has one (design D5)."""

from __future__ import annotations

from urllib.parse import quote, unquote

__all__ = [
    "ALL_BROKERS",
    "BROKER_CONFIGS",
    "BROKER_IDS",
    "CHANGES",
    "CLUSTER_ID",
    "CONSUMERS",
    "CONTROLLER",
    "CONTROLLER_EPOCH",
    "DELETED_TOPICS",
    "INCARNATIONS",
    "LAST_CHANGE",
    "LOG_DIRECTORIES",
    "METADATA_VERSION",
    "OFFLINE",
    "PERSISTENT",
    "PRODUCER_ID_BLOCK",
    "RECOVERED",
    "RESTORED",
    "SUSPECTS",
    "TOPICS",
    "TOPIC_CONFIGS",
    "broker",
    "broker_config",
    "deleted_topic",
    "group",
    "group_id",
    "group_ids",
    "group_member",
    "group_offsets",
    "group_owners",
    "log_directory",
    "offline",
    "partition",
    "partition_offset",
    "partition_owner",
    "partition_state",
    "partitions",
    "recovered",
    "suspect",
    "topic",
    "topic_config",
    "topic_offsets",
]

CLUSTER_ID = "/cluster/id"
BROKER_IDS = "/brokers/ids"
INCARNATIONS = "/brokers/incarnations"
"""Klamm's own: a path for each registration, by which a transaction checks that it is live."""
OFFLINE = "/brokers/offline"
"""Klamm's own: the partitions whose log is offline, by broker."""
RECOVERED = "/brokers/recovered"
"""Klamm's own: where the logs of doubtful members end, by broker (docs/replication.md, R7)."""
LOG_DIRECTORIES = "/brokers/log_dirs"
"""Klamm's own: a record of each broker's log directory."""
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
CONSUMERS = "/consumers"
ALL_BROKERS = "<default>"
METADATA_VERSION = "/admin/metadata_version"
"""Klamm's own: set in every transaction that changes a topic, so that one watch reports every change."""
CHANGES = "/admin/changes"
"""Klamm's own: the ring of the last changes."""
LAST_CHANGE = "/admin/last_change"
"""Klamm's own: has one child, which is named as the last change."""
RESTORED = "/admin/restored"
"""Klamm's own: exists while the states must not be used, since the coordination was restored from an older backup."""
SUSPECTS = "/admin/suspects"
"""Klamm's own: the incarnations of brokers that refuse connections."""

_EMPTY = "%"
"""The name of the empty group id, which old clients use for commits; no other id is encoded as a single percent
sign."""

DELETED_TOPICS = "/admin/delete_topics"
"""Deleted topics of which groups may still have offsets. By topic id, unlike Kafka's path, since a topic of the same
name may exist again."""

PERSISTENT = (
    BROKER_IDS, INCARNATIONS, OFFLINE, RECOVERED, LOG_DIRECTORIES, TOPICS, TOPIC_CONFIGS, BROKER_CONFIGS, "/cluster",
    CONSUMERS, DELETED_TOPICS, CHANGES, LAST_CHANGE, SUSPECTS,
)  # fmt: skip
"""The parents of all other paths; a broker creates them at its first start."""


def broker(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def offline(broker_id: int) -> str:
    return f"{OFFLINE}/{broker_id}"


def recovered(broker_id: int) -> str:
    return f"{RECOVERED}/{broker_id}"


def suspect(incarnation: str) -> str:
    return f"{SUSPECTS}/{incarnation}"


def log_directory(broker_id: int) -> str:
    return f"{LOG_DIRECTORIES}/{broker_id}"


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def partitions(name: str) -> str:
    return f"{TOPICS}/{name}/partitions"


def partition(name: str, number: int) -> str:
    return f"{TOPICS}/{name}/partitions/{number}"


def partition_state(name: str, number: int) -> str:
    return f"{TOPICS}/{name}/partitions/{number}/state"


def deleted_topic(topic_id: str) -> str:
    return f"{DELETED_TOPICS}/{topic_id}"


def topic_config(name: str) -> str:
    return f"{TOPIC_CONFIGS}/{name}"


def broker_config(broker_id: int | None) -> str:
    """The dynamic configuration of one broker, or the default of all (None, with Kafka's name)."""
    return f"{BROKER_CONFIGS}/{ALL_BROKERS if broker_id is None else broker_id}"


def group(group_id: str) -> str:
    """The root of a group. Kafka allows any text as a group id, so characters that are not allowed in a path are
    percent-encoded."""
    name = quote(group_id, safe="!$&'()*+,:;=@~ ") or _EMPTY
    return f"{CONSUMERS}/{'%2E' * len(name) if name in ('.', '..') else name}"


def group_id(name: str) -> str:
    """Returns the group id for the name of a group's root: the inverse of `group`."""
    return "" if name == _EMPTY else unquote(name)


def group_ids(group_id: str) -> str:
    """The live members of a registry group, or the broker that coordinates the classic members."""
    return f"{group(group_id)}/ids"


def group_member(group_id: str, member: str) -> str:
    return f"{group(group_id)}/ids/{member}"


def group_owners(group_id: str) -> str:
    return f"{group(group_id)}/owners"


def partition_owner(group_id: str, topic_name: str, number: int) -> str:
    return f"{group(group_id)}/owners/{topic_name}/{number}"


def group_offsets(group_id: str) -> str:
    return f"{group(group_id)}/offsets"


def topic_offsets(group_id: str, topic_name: str) -> str:
    return f"{group(group_id)}/offsets/{topic_name}"


def partition_offset(group_id: str, topic_name: str, number: int) -> str:
    return f"{group(group_id)}/offsets/{topic_name}/{number}"
