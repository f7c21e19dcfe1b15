"""The configuration of the built-in offset stores, with Kafka's keys for `__consumer_offsets`."""

from __future__ import annotations

from klamm.plugin import Int, Long, OffsetsTopicSettings, Section, key

_FACTOR = "offsets_topic_replication_factor"
_MOST_PARTITIONS = 1_000
"""The largest number of partitions with which a topic can be created."""
_MOST_REPLICAS = 2**15 - 1


class OffsetsTopicConfig(Section):
    """How `__consumer_offsets` is created; its partitions place the groups with either store.

    12 partitions, where Kafka has 50: each costs every replica an open log and a place in its leader's fetch sessions,
    and a broker of few cores does not coordinate more groups with more of them. 1, 2, 3, 4, 6 or 12 brokers lead equal
    shares.
    """

    offsets_topic_num_partitions: Int = key(
        12, "Partitions of __consumer_offsets, when it is created.", ge=1, le=_MOST_PARTITIONS
    )
    offsets_topic_replication_factor: Int = key(
        3,
        "Replicas of __consumer_offsets, when it is created. If the key is set, creation waits until as many brokers "
        "are live, as in Kafka; if not, fewer brokers have a replica each.",
        ge=1,
        le=_MOST_REPLICAS,
    )

    @property
    def replication_factor(self) -> int | None:
        """None if the key is not set."""
        return self.offsets_topic_replication_factor if _FACTOR in self.model_fields_set else None

    @property
    def settings(self) -> OffsetsTopicSettings:
        configs = {"cleanup.policy": "compact", "compression.type": "producer"}
        return OffsetsTopicSettings(self.offsets_topic_num_partitions, self.replication_factor, configs)


class CoordinationOffsetStoreConfig(OffsetsTopicConfig):
    """The topic holds no records with this store: its partitions only place the groups."""


class TopicOffsetStoreConfig(OffsetsTopicConfig):
    offsets_topic_segment_bytes: Int = key(104_857_600, "Its segment.bytes; small, so that it is compacted soon.", ge=1)
    offsets_commit_timeout_ms: Long = key(5_000, "Time-out of a commit or a fetch.", ge=1)

    @property
    def settings(self) -> OffsetsTopicSettings:
        base = super().settings
        segment = {"segment.bytes": str(self.offsets_topic_segment_bytes)}
        return OffsetsTopicSettings(base.partitions, base.replication_factor, {**base.configs, **segment})
