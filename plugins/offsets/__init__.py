"""Built-in offset stores: `coordination` (the default) and `topic` (Kafka's `__consumer_offsets`)."""

from __future__ import annotations

from collections.abc import Iterable

from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.offsets import OffsetStore
from klamm.core.interfaces.provider import Provider

from .coordination import CoordinationOffsetStore
from .topic_config import TopicOffsetStoreConfig


@hookimpl
def klamm_offset_stores() -> Iterable[Provider[OffsetStore]]:
    return [
        Provider(
            "coordination",
            CoordinationOffsetStore,
            summary="in the coordination's tree, under /consumers/<group>/offsets",
        ),
        Provider(
            "topic",
            _topic_store,
            TopicOffsetStoreConfig,
            summary="in the compacted topic __consumer_offsets, in Kafka's record format",
        ),
    ]


def _topic_store(config: TopicOffsetStoreConfig, coordination: Coordination) -> OffsetStore:
    from .topic import TopicOffsetStore  # the client, only where it is used

    return TopicOffsetStore(config, coordination)
