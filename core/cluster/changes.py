"""Changes of partition states: all in one total order, each whole in a ring of the last 64.

A change of version v + 1 is one transaction: the writer's guard; every state, on condition of its path's version;
`/admin/metadata_version`, on condition that it is at v; `/admin/changes/<(v + 1) mod 64>`, which holds the change. So
nobody writes from metadata that are not the newest, whoever lost a race reads only what it missed, and a write whose
answer was lost has happened if and only if the ring's entry of its version is its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..errors import CoordinationError
from ..interfaces.coordination import (
    BadVersionError,
    Check,
    CoordinationUnavailableError,
    NodeExistsError,
    NoNodeError,
    Operation,
    SessionExpiredError,
    Set,
)
from ..records.partition import TopicPartition
from ..replication.leader import ProposalOutcome
from ..replication.partition_state import PartitionState
from .tree import paths
from .tree.steps import Steps, find, get, transact

CHANGES: Final = "/admin/changes"
INCARNATIONS: Final = "/brokers/incarnations"
RING_SIZE: Final = 64
_READS: Final = 5


class StoredState(NamedTuple):
    """A state and the version of its path."""

    state: PartitionState
    path_version: int


States = Mapping[TopicPartition, StoredState]


@dataclass(frozen=True, slots=True)
class MetadataStates:
    """Every partition's state at one version of the metadata."""

    version: int
    states: States


@dataclass(frozen=True, slots=True)
class MetadataChange:
    """A ring entry: what changed from `version` - 1 to `version`. `by` names the writer's attempt."""

    version: int
    by: str
    states: States

    def encode(self) -> bytes:
        rows = [
            [tp.topic, tp.partition, stored.path_version, json.loads(stored.state.encode())]
            for tp, stored in self.states.items()
        ]
        return json.dumps({"version": self.version, "by": self.by, "states": rows}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> MetadataChange:
        """Decodes a change. Raises `CoordinationError`, which names the path, if the data is not a change."""
        try:
            found = json.loads(data)
            states = {
                TopicPartition(str(topic), int(partition)): StoredState(
                    PartitionState.decode(path, json.dumps(state).encode()), int(path_version)
                )
                for topic, partition, path_version, state in found["states"]
            }
            return cls(int(found["version"]), str(found["by"]), states)
        except (ValueError, KeyError, TypeError) as error:
            raise CoordinationError(f"{path} holds no metadata change: {error!r}") from error


def ring_path(version: int) -> str:
    return f"{CHANGES}/{version % RING_SIZE}"


def incarnation_path(incarnation: str) -> str:
    return f"{INCARNATIONS}/{incarnation}"


def controller_guard(lease_version: int) -> list[Operation]:
    """Returns the checks that hold while the writer is the controller: `lease_version` is that of `/controller_epoch`
    after its election.
    """
    return [Check(paths.CONTROLLER_EPOCH, lease_version)]


def leader_guard(incarnation: str, added: Sequence[str] = ()) -> list[Operation]:
    """Returns the checks that hold while the leader's registration and those of the members that it adds are live."""
    return [Check(incarnation_path(name)) for name in (incarnation, *added)]


def change_operations(
    guard: Sequence[Operation], base: MetadataStates, states: Mapping[TopicPartition, PartitionState], by: str
) -> list[Operation]:
    """Returns the transaction that changes `states` from `base`."""
    stored = {tp: StoredState(state, base.states[tp].path_version + 1) for tp, state in states.items()}
    change = MetadataChange(base.version + 1, by, stored)
    marker = json.dumps({"version": 1, "by": by, "topics": sorted({tp.topic for tp in states})}).encode()
    return [
        *guard,
        *(
            Set(paths.partition_state(tp.topic, tp.partition), state.encode(), base.states[tp].path_version)
            for tp, state in states.items()
        ),
        Set(paths.METADATA_VERSION, marker, base.version),
        Set(ring_path(change.version), change.encode()),
    ]


def write_change(operations: Sequence[Operation]) -> Steps[ProposalOutcome]:
    """Makes one attempt. After UNKNOWN the caller reads the metadata until their version has passed the change's
    base.
    """
    try:
        yield from transact(*operations)
    except (BadVersionError, NoNodeError, NodeExistsError, SessionExpiredError):
        return ProposalOutcome.REFUSED
    except CoordinationUnavailableError:
        return ProposalOutcome.UNKNOWN
    return ProposalOutcome.APPLIED


def read_states(known: MetadataStates | None, partitions: Sequence[TopicPartition]) -> Steps[MetadataStates]:
    """Reads the newest states: from the ring those after `known`, or all of `partitions` if the ring does not reach
    back so far.

    Registrations that these states are judged by are read afterwards (R10).
    """
    for _ in range(_READS):
        _, stat = yield from get(paths.METADATA_VERSION)
        if known is not None and stat.version - known.version < RING_SIZE:
            caught_up = yield from _read_ring(known, stat.version)
            if caught_up is not None:
                return caught_up
        states = yield from _read_all(partitions)
        # A change during the read is applied from the ring at the next read: its entries are complete states.
        known = MetadataStates(stat.version, states)
    assert known is not None
    return known


def _read_ring(known: MetadataStates, version: int) -> Steps[MetadataStates | None]:
    """Reads the changes from the ring; returns None if an entry has been overwritten."""
    states = dict(known.states)
    for number in range(known.version + 1, version + 1):
        path = ring_path(number)
        data, _ = yield from get(path)
        change = MetadataChange.decode(path, data)
        if change.version != number:
            return None
        for tp, stored in change.states.items():
            if tp not in states or stored.path_version > states[tp].path_version:
                states[tp] = stored
    return MetadataStates(version, states)


def _read_all(partitions: Sequence[TopicPartition]) -> Steps[dict[TopicPartition, StoredState]]:
    states = {}
    for tp in partitions:
        path = paths.partition_state(tp.topic, tp.partition)
        found = yield from find(path)
        if found is not None:
            states[tp] = StoredState(PartitionState.decode(path, found[0]), found[1].version)
    return states
