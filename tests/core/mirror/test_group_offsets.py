"""Which offsets of a group are copied (docs/mirror.md, M10)."""

from __future__ import annotations

from klamm.core.mirror.group_offsets import GroupOffset, offsets_to_copy
from klamm.core.records.partition import TopicPartition

TP = TopicPartition("trips", 0)
OTHER = TopicPartition("trips", 1)


def test_an_offset_is_copied_with_its_epoch() -> None:
    plan = offsets_to_copy({TP: GroupOffset(5, 2)}, {}, {}, {TP: 10}, ())
    assert plan.commits == {TP: GroupOffset(5, 2)}
    assert plan.copied == {TP: (GroupOffset(5, 2),)}


def test_an_offset_above_the_end_waits() -> None:
    assert not offsets_to_copy({TP: GroupOffset(11)}, {}, {}, {TP: 10}, ()).commits


def test_a_group_that_has_moved_is_left_alone() -> None:
    plan = offsets_to_copy({TP: GroupOffset(9)}, {TP: GroupOffset(4)}, {TP: (GroupOffset(5),)}, {TP: 10}, ())
    assert not plan.commits
    assert not plan.copied


def test_a_group_with_members_keeps_what_was_copied() -> None:
    copied = {TP: (GroupOffset(5),)}
    plan = offsets_to_copy({TP: GroupOffset(9)}, {TP: GroupOffset(5)}, copied, {TP: 10}, ("member",))
    assert not plan.commits
    assert plan.copied == copied


def test_a_partition_that_no_broker_serves_now_is_not_taken_for_one_that_has_moved() -> None:
    copied = {TP: (GroupOffset(5),), OTHER: (GroupOffset(5),)}
    here = {TP: GroupOffset(5), OTHER: GroupOffset(5)}
    there = {TP: GroupOffset(9), OTHER: GroupOffset(9)}
    first = offsets_to_copy(there, {TP: here[TP]}, copied, {TP: 10}, ())
    assert first.commits.keys() == {TP}
    then = offsets_to_copy(there, {**here, TP: there[TP]}, first.copied, {TP: 10, OTHER: 10}, ())
    assert then.commits == {OTHER: GroupOffset(9)}


def test_a_copy_that_was_not_committed_is_known_as_the_mirrors_own() -> None:
    first = offsets_to_copy({TP: GroupOffset(9)}, {TP: GroupOffset(5)}, {TP: (GroupOffset(5),)}, {TP: 10}, ())
    assert first.copied == {TP: (GroupOffset(5), GroupOffset(9))}
    for here in (GroupOffset(5), GroupOffset(9)):  # the commit was made, or was not
        assert offsets_to_copy({TP: GroupOffset(10)}, {TP: here}, first.copied, {TP: 10}, ()).commits


def test_only_partitions_that_are_mirrors_are_copied() -> None:
    assert set(offsets_to_copy({TP: GroupOffset(1), OTHER: GroupOffset(1)}, {}, {}, {TP: 10}, ()).commits) == {TP}
