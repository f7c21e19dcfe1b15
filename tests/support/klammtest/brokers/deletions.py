"""Helpers for a topic's deletion: what the coordination and the offset store hold afterwards."""

from __future__ import annotations

from pathlib import Path

from klamm.core.cluster.tree import paths
from klamm.core.errors import ErrorCode
from klamm.core.interfaces.coordination import NoNodeError
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.plugins import plugin_host
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.partition import TopicPartition
from klamm.plugins.coordination.embedded.coordination import EmbeddedConfig, EmbeddedCoordination
from klammtest.clients.grouping import SESSION
from klammtest.wire import WireClient

PATIENT = {"offsets.topic.num.partitions": 1, "offsets.commit.timeout.ms": 60_000}
"""Configuration of the offset store `topic`: one partition, long time-outs."""


def delete_topic(wire: WireClient, name: str) -> ErrorCode:
    answer = wire.call(ApiKey.DELETE_TOPICS, 5, topic_names=(name,), timeout=SESSION)
    code = answer.responses[0].error_code
    assert isinstance(code, ErrorCode)
    return code


def stored_in(tree: Path, plugin: str, group: str) -> dict[TopicPartition, CommittedOffset]:
    """Returns the group's offsets from the offset store itself, not through a broker."""
    coordination = EmbeddedCoordination(EmbeddedConfig(path=tree))
    coordination.start()
    store = plugin_host().offset_stores.create(plugin, PATIENT if plugin == "topic" else {}, coordination)
    try:
        return store.fetch(group)
    finally:
        store.close()
        coordination.close()


def unfinished(tree: Path) -> list[str]:
    coordination = EmbeddedCoordination(EmbeddedConfig(path=tree))
    coordination.start()
    try:
        return coordination.children(paths.DELETED_TOPICS)
    except NoNodeError:
        return []
    finally:
        coordination.close()
