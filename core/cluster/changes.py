"""Changes of the metadata (topics, configs, partition states): all in one total order, each whole in a ring of the last
64.

A change of version v + 1 is one transaction: the writer's guard; every state, on condition of its path's version;
`/admin/metadata_version`, on condition that it is at v; `/admin/changes/<(v + 1) mod 64>`, which holds the change;
`/admin/last_change/<name>`, the name of the change, in place of that of v. So no broker writes from metadata that are
not the newest, one that lost a race reads only what it missed, and a write whose answer was lost was made if and only
if the ring's entry of its version is its own. Versions alone would not do: after the coordination was restored from a
backup they come again, with other content.

A reader that finds another change's entry, or none, reads the whole tree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from ..errors import CoordinationError
from ..interfaces.coordination import Check, Create, Delete, Operation, Set, Stat
from ..records.partition import TopicPartition
from ..replication.partition_state import NO_EPOCH, PartitionState
from .tree import paths
from .tree.nodes import MetadataVersionNode, TopicNode
from .tree.steps import Steps, find, get

CHANGES: Final = paths.CHANGES
INCARNATIONS: Final = paths.INCARNATIONS
RING_SIZE: Final = 64
MOST_STATES: Final = 500
"""Maximum number of existing partitions in one change."""


class StoredState(NamedTuple):
    """A state and the version of its path."""

    state: PartitionState
    path_version: int


States = Mapping[TopicPartition, StoredState]


@dataclass(frozen=True, slots=True)
class MetadataChange:
    """A ring entry: what changed from `version` - 1 to `version`. `by` names the writer's attempt.

    `topics`: the new definition of each topic that was created or changed, None for one that was deleted. `configs`:
    the whole configuration of each topic whose configuration was set.
    """

    version: int
    by: str
    states: States = field(default_factory=dict)
    topics: Mapping[str, TopicNode | None] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Returns JSON in which every topic name and data id occurs once: a change of 1000 partitions stays far below
        the coordination's 1 MB.
        """
        ids: dict[str, int] = {}
        rows: dict[str, list[list[object]]] = {}
        for tp, (state, path_version) in self.states.items():
            members = [[member, ids.setdefault(state.data_ids[member], len(ids))] for member in state.members]
            rows.setdefault(tp.topic, []).append(
                [
                    tp.partition, path_version, state.leader, state.leader_epoch, state.leader_broker_epoch,
                    state.controller_epoch, len(state.isr), members, *_mirror_columns(state),
                ]
            )  # fmt: skip
        topics = {name: node and node.model_dump(mode="json") for name, node in self.topics.items()}
        found = {
            "version": self.version, "by": self.by, "data_ids": list(ids), "states": rows, "topics": topics,
            "configs": self.configs,
        }  # fmt: skip
        return json.dumps(found, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> MetadataChange:
        """Decodes a change. Raises `CoordinationError`, which names the path, if the data is not a change."""
        try:
            found = json.loads(data)
            ids = [str(data_id) for data_id in found["data_ids"]]
            states = {
                TopicPartition(topic, int(row[0])): _decode_state(row, ids)
                for topic, rows in found["states"].items()
                for row in rows
            }
            topics = {
                name: None if node is None else TopicNode.decode(path, json.dumps(node).encode())
                for name, node in found["topics"].items()
            }
            configs = {
                topic: {str(key): str(value) for key, value in config.items()}
                for topic, config in found["configs"].items()
            }
            return cls(int(found["version"]), str(found["by"]), states, topics, configs)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise CoordinationError(f"{path} holds no metadata change: {error!r}") from error


def _mirror_columns(state: PartitionState) -> tuple[str, int] | tuple[()]:
    """Returns what the states of few partitions have."""
    return (state.mirror, state.promoted_epoch) if state.mirror or state.promoted_epoch != NO_EPOCH else ()


def _decode_state(row: list[Any], ids: list[str]) -> StoredState:
    _, path_version, leader, leader_epoch, broker_epoch, controller_epoch, in_sync, found, *more = row
    members = tuple(int(member) for member, _ in found)
    data_ids = {int(member): ids[index] for member, index in found}
    state = PartitionState(
        int(leader), int(leader_epoch), int(broker_epoch), members[:in_sync], members[in_sync:], data_ids,
        int(controller_epoch), *((str(more[0]), int(more[1])) if more else ()),
    )  # fmt: skip
    return StoredState(state, int(path_version))


@lru_cache(maxsize=8)
def _decoded(path: str, data: bytes) -> MetadataChange:
    """Each read of the image has the change of the last one again, and every write reads its own."""
    return MetadataChange.decode(path, data)


def ring_path(version: int) -> str:
    return f"{CHANGES}/{version % RING_SIZE}"


def incarnation_path(incarnation: str) -> str:
    return f"{INCARNATIONS}/{incarnation}"


def last_change_path(by: str) -> str:
    return f"{paths.LAST_CHANGE}/{by.replace('/', '.')}"


def controller_guard(lease_version: int) -> list[Operation]:
    """Returns the checks that hold while the writer is the controller. `lease_version` is the version of
    `/controller_epoch` after its election."""
    return [Check(paths.CONTROLLER_EPOCH, lease_version)]


def leader_guard(incarnation: str, added: Sequence[str] = ()) -> list[Operation]:
    """Returns the checks that hold while the leader's registration and those of the members that it adds are live."""
    return [Check(incarnation_path(name)) for name in (incarnation, *added)]


def change_operations(
    guard: Sequence[Operation],
    base_version: int,
    base_by: str,
    base: States,
    states: Mapping[TopicPartition, PartitionState],
    by: str,
    *,
    operations: Sequence[Operation] = (),
    topics: Mapping[str, TopicNode | None] | None = None,
    configs: Mapping[str, Mapping[str, str]] | None = None,
) -> list[Operation]:
    """Returns the transaction that changes `states` from those at `base_version`, to which the change `base_by` led (""
    if there was none yet); a state that `base` does not have is created.

    `operations`, which come before the states, make the rest of the change; `topics` and `configs` describe it.
    """
    versions = {tp: base[tp].path_version if tp in base else None for tp in states}
    stored = {
        tp: StoredState(state, 0 if (before := versions[tp]) is None else before + 1) for tp, state in states.items()
    }
    change = MetadataChange(base_version + 1, by, stored, topics or {}, configs or {})
    touched = sorted({tp.topic for tp in states}.union(change.topics, change.configs))
    marker = json.dumps({"version": 1, "by": by, "topics": touched}).encode()
    written = [operation for tp, state in states.items() for operation in _write_state(tp, state, versions[tp])]
    return [
        *guard,
        *operations,
        *written,
        Set(paths.METADATA_VERSION, marker, base_version),
        Set(ring_path(change.version), change.encode()),
        *([Delete(last_change_path(base_by))] if base_by else []),
        Create(last_change_path(by)),
    ]


def _write_state(tp: TopicPartition, state: PartitionState, path_version: int | None) -> list[Operation]:
    path = paths.partition_state(tp.topic, tp.partition)
    if path_version is not None:
        return [Set(path, state.encode(), path_version)]
    return [Create(paths.partition(tp.topic, tp.partition)), Create(path, state.encode())]


def read_change(version: int) -> Steps[MetadataChange | None]:
    """Reads the change that led to `version`; returns None if the ring does not have it."""
    return change_at(version, (yield from find(ring_path(version))))


def lacks_change(version: int, by: str) -> Steps[bool]:
    """Returns True if the metadata lack the change `by` that led to `version`: they were restored from an older backup.
    Returns False, too, if so many changes were made since that the ring no longer shows it."""
    data, stat = yield from get(paths.METADATA_VERSION)
    if version >= stat.version:
        return version > stat.version or by != MetadataVersionNode.decode(paths.METADATA_VERSION, data or b"{}").by
    if stat.version - version >= RING_SIZE:
        return False
    change = yield from read_change(version)
    return change is not None and change.by != by


def change_at(version: int, found: tuple[bytes, Stat] | None) -> MetadataChange | None:
    """Returns the change in `found`, the content of a path of the ring, if it led to `version`."""
    if found is None or found[0] in (b"", b"{}"):  # no change came here yet
        return None
    change = _decoded(ring_path(version), found[0])
    return change if change.version == version else None
