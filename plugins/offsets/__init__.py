"""Built-in offset stores: `coordination` (the default) and `topic` (Kafka's `__consumer_offsets`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm.plugin import Provider, hookimpl

if TYPE_CHECKING:
    from klamm.plugin import Coordination, OffsetStore

    from .topic_config import CoordinationOffsetStoreConfig, TopicOffsetStoreConfig


@hookimpl
def klamm_offset_stores() -> Iterable[Provider[[Coordination], OffsetStore]]:
    """Registers `coordination` and `topic`."""
    configs = "klamm.plugins.offsets.topic_config"
    return [
        Provider(
            "coordination",
            _coordination_store,
            f"{configs}:CoordinationOffsetStoreConfig",
            summary="in the coordination's tree, under /consumers/<group>/offsets",
        ),
        Provider(
            "topic",
            _topic_store,
            f"{configs}:TopicOffsetStoreConfig",
            summary="in the compacted topic __consumer_offsets, in Kafka's record format",
        ),
    ]


def _coordination_store(config: CoordinationOffsetStoreConfig, coordination: Coordination) -> OffsetStore:
    from .coordination import CoordinationOffsetStore

    return CoordinationOffsetStore(config, coordination)


def _topic_store(config: TopicOffsetStoreConfig, coordination: Coordination) -> OffsetStore:
    from .topic import TopicOffsetStore  # it loads the client, so it is imported only if it is used

    return TopicOffsetStore(config, coordination)
