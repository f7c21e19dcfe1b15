"""The content of the records of one partition of `__consumer_offsets`: offsets by group, and the states of classic
groups.

A record that cannot be decoded is skipped, with a line in the log: any client that may produce to the topic can have
written it, and the other groups of the partition must not fail. The earlier value of its key stays.
"""

from __future__ import annotations

import logging

from ...errors import CorruptRecordError
from ...interfaces.offsets import CommittedOffset
from ...records.partition import TopicPartition
from .kafka_format import GroupKey, OffsetKey, decode_key, decode_value
from .kafka_groups import decode_group
from .stored_group import StoredGroup

__all__ = ["OffsetsContents"]

log = logging.getLogger(__name__)


class OffsetsContents:
    """Implements `klamm.core.client.reader.topic_table.TableContents`: `offsets` by group, and the `states` of classic
    groups."""

    def __init__(self) -> None:
        self.offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self.states: dict[str, StoredGroup] = {}
        self._told = False

    def clear(self) -> None:
        self.offsets, self.states = {}, {}

    def of_group(self, group: str) -> OffsetsContents:
        """Returns a copy of the content that belongs to one group."""
        found = OffsetsContents()
        if group in self.offsets:
            found.offsets[group] = dict(self.offsets[group])
        if group in self.states:
            found.states[group] = self.states[group]
        return found

    def apply(
        self,
        partition: TopicPartition,
        offset: int,
        timestamp_ms: int,  # noqa: ARG002 - a commit's time is in its value
        key: bytes | None,
        value: bytes | None,
    ) -> None:
        try:
            found = decode_key(key) if key is not None else None
            if isinstance(found, OffsetKey):
                self._apply_offset(found, value)
            elif isinstance(found, GroupKey) and value is not None:
                self.states[found.group] = decode_group(value)
            elif isinstance(found, GroupKey):
                self.states.pop(found.group, None)
        except CorruptRecordError as error:
            if not self._told:  # a topic of another format has many
                log.warning("%s offset %d, and others like it, are skipped: %s", partition, offset, error)
            self._told = True

    def _apply_offset(self, found: OffsetKey, value: bytes | None) -> None:
        if value is not None:
            self.offsets.setdefault(found.group, {})[found.partition] = decode_value(value)
            return
        stored = self.offsets.get(found.group)
        if stored is not None:
            stored.pop(found.partition, None)
            if not stored:
                del self.offsets[found.group]
