"""The tree's paths: Kafka's own names where Kafka has one (design D5)."""

from __future__ import annotations

from urllib.parse import quote, unquote

from urllib.parse import quote, unquote

CLUSTER_ID = "/cluster/id"
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
TOPIC_CONFIGS = "/config/topics"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
CONSUMERS = "/consumers"
METADATA_VERSION = "/admin/metadata_version"
"""Klamm's own: set in every transaction that changes a topic, so that one watch sees them all."""

_SAFE_IN_GROUP = " !\"#$&'()*+,:;<=>?@[\\]^`{|}"
PERSISTENT = (BROKER_IDS, TOPICS, TOPIC_CONFIGS, "/cluster", CONSUMERS, "/admin")
"""What a broker makes at its first start, as the parents of everything else."""


def broker(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def partitions(name: str) -> str:
    return f"{TOPICS}/{name}/partitions"


def partition(name: str, number: int) -> str:
    return f"{TOPICS}/{name}/partitions/{number}"


def partition_state(name: str, number: int) -> str:
    return f"{TOPICS}/{name}/partitions/{number}/state"


def topic_config(name: str) -> str:
    return f"{TOPIC_CONFIGS}/{name}"


def group(group_id: str) -> str:
    """A group's root. Kafka allows any text as a group's id, so what a path cannot hold is percent-encoded."""
    name = quote(group_id, safe="!$&'()*+,:;=@~ ")
    return f"{CONSUMERS}/{'%2E' * len(name) if name in ('.', '..') else name}"


def group_id(name: str) -> str:
    """The id of the group whose root has this name: the other way round from `group`."""
    return unquote(name)


def encode_group(group: str) -> str:
    """A group's name as one part of a path. Kafka lets a group be called anything, a path's part may not hold '/' or
    be '..'; plain names stay as they are."""
    return quote(group, safe=_SAFE_IN_GROUP) if group not in (".", "..") else group.replace(".", "%2E")


def decode_group(part: str) -> str:
    return unquote(part)


def group(name: str) -> str:
    return f"{CONSUMERS}/{encode_group(name)}"


def group_ids(name: str) -> str:
    """The live members of a registry group."""
    return f"{group(name)}/ids"


def group_owners(name: str) -> str:
    return f"{group(name)}/owners"


def partition_owner(name: str, topic_name: str, number: int) -> str:
    return f"{group(name)}/owners/{topic_name}/{number}"


def group_offsets(name: str) -> str:
    return f"{group(name)}/offsets"


def topic_offsets(name: str, topic_name: str) -> str:
    return f"{group(name)}/offsets/{topic_name}"


def partition_offset(name: str, topic_name: str, number: int) -> str:
    return f"{group(name)}/offsets/{topic_name}/{number}"
