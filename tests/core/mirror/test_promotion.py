"""The state of a promoted partition, and that its epoch of promotion stays."""

from __future__ import annotations

from klamm.core.cluster.changes import MetadataChange, StoredState
from klamm.core.cluster.control.leadership import Terms, doubted_state
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.mirror.promotion import promoted
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.partition_state import NO_EPOCH, PartitionState

MIRROR = PartitionState(0, 5, 100, (0,), (), {0: "a0"}, 1, "berlin")


def test_a_promotion_begins_an_epoch_above_both_clusters_and_the_state_keeps_it() -> None:
    assert MIRROR.promoted_epoch == NO_EPOCH
    state = promoted(MIRROR, 8)
    assert (state.mirror, state.leader_epoch, state.promoted_epoch) == ("", 9, 9)
    assert promoted(MIRROR, 2).promoted_epoch == 6
    assert doubted_state(state, (0, 1), Terms(2, 0, TopicConfig())).promoted_epoch == 9


def test_both_encodings_have_it() -> None:
    for state in (MIRROR, promoted(MIRROR)):
        assert PartitionState.decode("/x", state.encode()) == state
        change = MetadataChange(9, "0-x/3", {TopicPartition("t", 0): StoredState(state, 4)}, {}, {})
        assert MetadataChange.decode("/x", change.encode()) == change
