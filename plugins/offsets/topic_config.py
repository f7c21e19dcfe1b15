"""The configuration of the `topic` offset store."""

from __future__ import annotations

from klamm.plugin import Int, Long, Section, key


class TopicOffsetStoreConfig(Section):
    """Kafka's keys for the topic; the first two apply when it is created."""

    offsets_topic_num_partitions: Int = key(50, "Partitions of __consumer_offsets.", ge=1)
    offsets_topic_segment_bytes: Int = key(104_857_600, "Its segment.bytes; small, so that it is compacted soon.", ge=1)
    offsets_commit_timeout_ms: Long = key(5_000, "Time-out of a commit or a fetch.", ge=1)
