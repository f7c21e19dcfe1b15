"""Built-in offset stores: `coordination` (the default) and `topic` (Kafka's `__consumer_offsets`)."""

from __future__ import annotations

from collections.abc import Iterable

from klamm.core.hookspecs import hookimpl
from klamm.core.seams.coordination import Coordination
from klamm.core.seams.offsets import OffsetStore
from klamm.core.seams.provider import Provider
from klamm.plugins.offsets.coordination import CoordinationOffsetStore
from klamm.plugins.offsets.topic_config import TopicOffsetStoreConfig


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
    from klamm.plugins.offsets.topic import TopicOffsetStore  # the client, only where it is used

    return TopicOffsetStore(config, coordination)
