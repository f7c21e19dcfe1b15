"""The `coordination` offset store: the paper's tree, `/consumers/<group>/offsets/<topic>/<partition>`.

Rules: all partitions of a commit and its guards are one transaction; those of a deletion are one transaction for every
thousand. The parent paths are created before it, outside the transaction: they are empty. Existing paths are cached,
and looked up again when a transaction shows that the cache is wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from klamm.core.cluster.tree import paths
from klamm.plugin import (
    ANY_VERSION,
    BadVersionError,
    Check,
    CommittedOffset,
    Coordination,
    CoordinationError,
    CoordinationUnavailableError,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Set,
    TopicPartition,
)

from .topic_config import CoordinationOffsetStoreConfig

_ATTEMPTS = 5
_REMEMBERED_PATHS = 100_000
_DELETED_AT_ONCE = 1_000
"""Deletions in one transaction: a request to ZooKeeper is at most 1 MB."""


class _StoredOffset(BaseModel):
    """The JSON of one path; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, extra="ignore")

    version: int = 1
    offset: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    leader_epoch: int = Field(default=-1, alias="leaderEpoch")
    metadata: str = ""
    commit_timestamp_ms: int = Field(default=-1, alias="commitTimestamp")
    topic_id: UUID | None = Field(default=None, alias="topicId")


class CoordinationOffsetStore:
    """Implements `klamm.core.interfaces.offsets.OffsetStore`."""

    needs_coordination = True
    in_offsets_topic = False

    def __init__(self, config: CoordinationOffsetStoreConfig, coordination: Coordination) -> None:
        self.offsets_topic = config.settings
        self._coordination = coordination
        self._lock = threading.Lock()
        self._known: set[str] = set()

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], guards: Sequence[Check] = ()
    ) -> None:
        if not offsets:
            return
        values = {paths.partition_offset(group, *tp): _encode(tp, value) for tp, value in offsets.items()}
        for _ in range(_ATTEMPTS):
            try:
                self._coordination.transaction([*guards, *self._writes(group, offsets, values)])
            except (NoNodeError, NodeExistsError):
                self._check_guards(guards)  # raises if a guard failed; else a path was created or deleted
                self._forget(values)
                continue
            self._remember(values)
            return
        raise CoordinationUnavailableError(f"offsets of group {group!r} kept changing during {_ATTEMPTS} commits")

    def fetch(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        wanted = self._stored(group) if partitions is None else partitions
        found = {}
        for tp in wanted:
            path = paths.partition_offset(group, *tp)
            try:
                data, _ = self._coordination.get(path)
            except NoNodeError:
                continue
            found[tp] = _decode(path, data)
        return found

    def delete(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        guards: Sequence[Check] = (),
        *,
        seen: Mapping[TopicPartition, CommittedOffset] | None = None,
    ) -> None:
        chosen = list(self._stored(group) if partitions is None else partitions)
        chosen_paths = {paths.partition_offset(group, *tp): tp for tp in chosen}
        self._forget(chosen_paths)
        for _ in range(_ATTEMPTS):
            deletes = [Delete(path, version) for path, version in self._to_delete(chosen_paths, seen)]
            try:
                self._check_guards(guards)
                for at in range(0, len(deletes), _DELETED_AT_ONCE):
                    self._coordination.transaction([*guards, *deletes[at : at + _DELETED_AT_ONCE]])
            except (NoNodeError, BadVersionError):
                self._check_guards(guards)  # raises if a guard failed; else an offset changed
                continue
            break
        else:
            raise CoordinationUnavailableError(f"offsets of group {group!r} kept changing while they were deleted")
        for topic in {tp.topic for tp in chosen}:
            self._remove(paths.topic_offsets(group, topic))
        self._remove(paths.group_offsets(group))
        # The group's root also has the paths of a registry group's members, which prevent its deletion.
        self._remove(paths.group(group))

    def _to_delete(
        self, chosen: Mapping[str, TopicPartition], seen: Mapping[TopicPartition, CommittedOffset] | None
    ) -> Iterable[tuple[str, int]]:
        """Yields the paths that exist and, with `seen`, still have that value; each with the version that was read."""
        for path, tp in chosen.items():
            try:
                data, stat = self._coordination.get(path)
            except NoNodeError:
                continue
            if seen is None:
                yield path, ANY_VERSION
            elif tp in seen and _decode(path, data) == seen[tp]:
                yield path, stat.version

    def groups(self) -> list[str]:
        names = [paths.group_id(part) for part in self._children(paths.CONSUMERS)]
        return sorted(name for name in names if next(iter(self._stored(name)), None) is not None)

    def close(self) -> None:
        """Does nothing: the caller owns the coordination."""

    def _writes(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], values: Mapping[str, bytes]
    ) -> list[Operation]:
        """Returns a `Set` for every existing path and a `Create` for the others, whose parents it creates."""
        missing = {path for path in values if path not in self._known and self._coordination.exists(path) is None}
        for topic in {tp.topic for tp in offsets if paths.partition_offset(group, *tp) in missing}:
            self._create_path(paths.topic_offsets(group, topic))
        return [Create(path, data) if path in missing else Set(path, data) for path, data in values.items()]

    def _check_guards(self, guards: Sequence[Check]) -> None:
        if guards:
            self._coordination.transaction(guards)

    def _create_path(self, path: str) -> None:
        if self._coordination.exists(path) is not None:
            return
        try:
            self._coordination.create(path, make_parents=True)
        except NodeExistsError:
            return  # another commit created it

    def _remove(self, path: str) -> None:
        try:
            self._coordination.delete(path)
        except (NoNodeError, NotEmptyError):
            return  # already deleted, or it has other children

    def _stored(self, group: str) -> Iterable[TopicPartition]:
        for topic in self._children(paths.group_offsets(group)):
            for number in self._children(paths.topic_offsets(group, topic)):
                yield TopicPartition(topic, int(number))

    def _children(self, path: str) -> list[str]:
        try:
            return self._coordination.children(path)
        except NoNodeError:
            return []

    def _remember(self, known: Iterable[str]) -> None:
        with self._lock:
            if len(self._known) > _REMEMBERED_PATHS:
                self._known.clear()
            self._known.update(known)

    def _forget(self, gone: Iterable[str]) -> None:
        with self._lock:
            self._known.difference_update(gone)


def _encode(tp: TopicPartition, value: CommittedOffset) -> bytes:
    try:
        stored = _StoredOffset(
            offset=value.offset,
            leaderEpoch=value.leader_epoch,
            metadata=value.metadata,
            commitTimestamp=value.commit_timestamp_ms,
            topicId=value.topic_id,
        )
    except ValidationError as error:
        raise CoordinationError(f"{tp}: {value.offset} is not a valid offset: {error.errors()[0]['msg']}") from error
    return stored.model_dump_json(by_alias=True, exclude_none=True).encode()


def _decode(path: str, data: bytes) -> CommittedOffset:
    try:
        stored = _StoredOffset.model_validate_json(data)
    except ValidationError as error:
        raise CoordinationError(f"{path} should hold an offset: {error.errors(include_url=False)[0]['msg']}") from error
    return CommittedOffset(
        stored.offset, stored.leader_epoch, stored.metadata, stored.commit_timestamp_ms, stored.topic_id
    )
