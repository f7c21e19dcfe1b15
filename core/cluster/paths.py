"""The tree's paths: Kafka's own names where Kafka has one (design D5)."""

from __future__ import annotations

from urllib.parse import quote, unquote

CLUSTER_ID = "/cluster/id"
BROKER_IDS = "/brokers/ids"
LOG_DIRECTORIES = "/brokers/log_dirs"
"""Klamm's own: what each broker last said of its log directory."""
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
CONSUMERS = "/consumers"
ALL_BROKERS = "<default>"
METADATA_VERSION = "/admin/metadata_version"
"""Klamm's own: set in every transaction that changes a topic, so that one watch sees them all."""

_EMPTY = "%"
"""Stands for the empty group id, by which old clients commit; no other id is encoded to a lone percent sign."""

DELETED_TOPICS = "/admin/delete_topics"
"""Topics whose deletion is not finished: they are gone, but groups may have offsets of them. By id, unlike Kafka's: one
of the same name may be there again."""

PERSISTENT = (
    BROKER_IDS, LOG_DIRECTORIES, TOPICS, TOPIC_CONFIGS, BROKER_CONFIGS, "/cluster", CONSUMERS, DELETED_TOPICS,
)  # fmt: skip
"""What a broker makes at its first start, as the parents of everything else."""


def broker(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


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
    """What the cluster says of one broker's configuration; None: of all brokers', under Kafka's name."""
    return f"{BROKER_CONFIGS}/{ALL_BROKERS if broker_id is None else broker_id}"


def group(group_id: str) -> str:
    """A group's root. Kafka allows any text as a group's id, so what a path cannot hold is percent-encoded."""
    name = quote(group_id, safe="!$&'()*+,:;=@~ ") or _EMPTY
    return f"{CONSUMERS}/{'%2E' * len(name) if name in ('.', '..') else name}"


def group_id(name: str) -> str:
    """The id of the group whose root has this name: the other way round from `group`."""
    return "" if name == _EMPTY else unquote(name)


def group_ids(group_id: str) -> str:
    """The live members of a registry group, or the broker that has classic ones."""
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
