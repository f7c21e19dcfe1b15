"""Roles by the metadata (R1, R8) and Produce requests that wait."""

from __future__ import annotations

from dataclasses import replace

from kio.schema.errors import ErrorCode

from klamm.core.records.partition import TopicPartition
from klamm.core.replication.leader import ReplicationSettings
from klamm.core.replication.partition import Partition
from klamm.core.replication.partition_state import PartitionState
from klamm.core.replication.registrations import BrokerRegistration
from klamm.core.replication.replica_fetch import ReplicaFetch
from klammsim.memory_log import MemoryLog

TP = TopicPartition("t", 0)
OWN = BrokerRegistration(0, 100, "i0", ("a0",))
OTHER = BrokerRegistration(1, 101, "i1", ("a1",))
STATE = PartitionState(0, 5, 100, (0, 1), (), {0: "a0", 1: "a1"}, 1)


def partition_of(log: MemoryLog) -> Partition[str]:
    return Partition(0, log, (0, 1), ReplicationSettings(2, 30))


def test_it_leads_only_under_the_registration_and_with_the_data_that_the_state_names() -> None:
    for own in (None, replace(OWN, epoch=200), replace(OWN, data_ids=("b0", "a0"))):
        partition = partition_of(MemoryLog("0"))
        partition.on_metadata(STATE, 1, own, 0.0)
        assert partition.leader is None
        refused = partition.refusal(TP)
        assert refused is not None
        assert refused.code is ErrorCode.not_leader_or_follower
    partition = partition_of(MemoryLog("0"))
    partition.on_metadata(STATE, 1, OWN, 0.0)
    assert partition.leader is not None
    assert partition.refusal(TP) is None


def test_an_epoch_that_was_left_is_not_led_again() -> None:
    partition = partition_of(MemoryLog("0"))
    partition.on_metadata(STATE, 1, OWN, 0.0)
    partition.on_metadata(STATE, 2, None, 0.0)
    partition.on_metadata(STATE, 3, OWN, 0.0)
    assert partition.leader is None
    partition.on_metadata(replace(STATE, leader_epoch=6), 4, OWN, 0.0)
    assert partition.leader is not None


def test_older_metadata_is_passed_over() -> None:
    partition = partition_of(MemoryLog("0"))
    partition.on_metadata(replace(STATE, leader=1, leader_epoch=6), 9, OWN, 0.0)
    partition.on_metadata(STATE, 8, OWN, 0.0)
    assert partition.follower is not None
    assert partition.follower.leader == 1


def test_a_request_waits_until_its_records_are_committed_and_so_does_its_retry() -> None:
    log = MemoryLog("0")
    partition = partition_of(log)
    partition.on_metadata(STATE, 1, OWN, 0.0)
    end = log.append(7, 5) + 1
    assert partition.appended(5, end, "first")
    assert partition.appended(5, end, "retry")
    assert partition.take_committed() == ([], ErrorCode.none)
    assert partition.leader is not None
    partition.leader.on_fetch(ReplicaFetch(1, 101, 5, 1, 5), OTHER, 1.0)
    assert partition.take_committed() == (["first", "retry"], ErrorCode.none)
    assert not partition.appended(4, end, "of an earlier epoch")


def test_an_isr_that_fell_below_the_minimum_meanwhile_is_told() -> None:
    log = MemoryLog("0")
    partition = partition_of(log)
    partition.on_metadata(STATE, 1, OWN, 0.0)
    partition.appended(5, log.append(7, 5) + 1, "waits")
    assert partition.leader is not None
    partition.leader.on_fetch(ReplicaFetch(1, 101, 5, 1, 5), OTHER, 1.0)
    partition.on_metadata(replace(STATE, isr=(0,), elr=(1,)), 2, OWN, 2.0)
    assert partition.take_committed() == (["waits"], ErrorCode.not_enough_replicas_after_append)
    refused = partition.refusal(TP)
    assert refused is not None
    assert refused.code is ErrorCode.not_enough_replicas


def test_requests_fail_when_the_replica_is_deposed() -> None:
    log = MemoryLog("0")
    partition = partition_of(log)
    partition.on_metadata(STATE, 1, OWN, 0.0)
    partition.appended(5, log.append(7, 5) + 1, "waits")
    assert partition.on_metadata(replace(STATE, leader=1, leader_epoch=6), 2, OWN, 0.0) == ["waits"]
    assert partition.take_committed() == ([], ErrorCode.none)
