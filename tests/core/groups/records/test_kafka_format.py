"""The records of the `topic` offset store are Kafka's, byte for byte."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from klamm.core.errors import CorruptRecordError
from klamm.core.groups.offsets_topic import java_hash, partition_for
from klamm.core.groups.records.kafka_format import (
    GroupKey,
    OffsetKey,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from klamm.core.groups.records.kafka_groups import decode_group, encode_group
from klamm.core.groups.records.stored_group import StoredGroup, StoredMember
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.records.partition import TopicPartition

# Written by hand from Kafka's OffsetCommitKey.json and OffsetCommitValue.json.
KEY = bytes.fromhex("0001000762696c6c696e6700066f72646572730000000b")
VALUES = {
    0: bytes.fromhex("0000000000000000002a000268690000018bcfe56800"),
    1: bytes.fromhex("0001000000000000002a000268690000018bcfe568000000018bd50bc400"),
    2: bytes.fromhex("0002000000000000002a000268690000018bcfe56800"),
    3: bytes.fromhex("0003000000000000002a00000005000268690000018bcfe56800"),
    4: bytes.fromhex("0004000000000000002a000000050368690000018bcfe5680000"),
}
NAME = OffsetKey("billing", TopicPartition("orders", 11))
MEMBERS_KEY = bytes.fromhex("0002000762696c6c696e67")


def test_kafkas_bytes() -> None:
    stored = CommittedOffset(42, 5, "hi", 1_700_000_000_000)
    assert encode_key(NAME) == KEY
    assert encode_value(stored) == VALUES[3]
    assert decode_key(KEY) == NAME
    assert {v: decode_value(raw) for v, raw in VALUES.items()} == {
        v: CommittedOffset(42, 5 if v >= 3 else -1, "hi", 1_700_000_000_000) for v in VALUES
    }


def test_a_topic_id_makes_it_a_value_of_version_4() -> None:
    stored = CommittedOffset(42, 5, "hi", 1_700_000_000_000, UUID("00112233-4455-6677-8899-aabbccddeeff"))
    assert encode_value(stored) == VALUES[4][:-1] + bytes.fromhex("01001000112233445566778899aabbccddeeff")
    assert decode_value(encode_value(stored)) == stored
    assert decode_value(VALUES[4][:-1] + b"\1\0\x10" + bytes(16)).topic_id is None
    with pytest.raises(CorruptRecordError, match="16"):
        decode_value(VALUES[4][:-1] + b"\1\0\x01\0")


def test_other_records_of_the_topic_are_passed_over() -> None:
    assert decode_key(MEMBERS_KEY) == GroupKey("billing")
    assert decode_key(b"\0\x03" + MEMBERS_KEY[2:]) is None


@pytest.mark.parametrize("size", range(len(KEY)))
def test_keys_that_are_cut_off(size: int) -> None:
    with pytest.raises(CorruptRecordError, match="key"):
        decode_key(KEY[:size])


@pytest.mark.parametrize("version", VALUES)
def test_values_that_are_cut_off(version: int) -> None:
    for size in range(len(VALUES[version]) - {1: 8, 4: 1}.get(version, 0)):
        with pytest.raises(CorruptRecordError, match="value"):
            decode_value(VALUES[version][:size])
    with pytest.raises(CorruptRecordError, match="version 9"):
        decode_value(b"\0\x09" + VALUES[3][2:])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("billing", -109829509),
        ("größe", 98762257),
        ("polygenelubricants", -(1 << 31)),
        ("𝄞", 1772394),
    ],
)
def test_javas_hash(text: str, expected: int) -> None:
    assert java_hash(text) == expected
    assert partition_for(text, 50) == (0 if expected == -(1 << 31) else abs(expected) % 50)


MEMBER = StoredMember("c-1", "pod-0", "c", "/127.0.0.1", 60_000, 10_000, b"\x01\x02", b"\x03")
STATE = StoredGroup("consumer", 7, "range", "c-1", 1_700_000_000_000, (MEMBER,))
# Written by hand from Kafka's GroupMetadataValue.json: the fields up to the members, then the one member's.
GROUPS = {
    0: "0000 0008636f6e73756d6572 00000007 000572616e6765 0003632d31 00000001"
    "0003632d31 000163 000a2f3132372e302e302e31 00002710 000000020102 0000000103",
    1: "0001 0008636f6e73756d6572 00000007 000572616e6765 0003632d31 00000001"
    "0003632d31 000163 000a2f3132372e302e302e31 0000ea60 00002710 000000020102 0000000103",
    2: "0002 0008636f6e73756d6572 00000007 000572616e6765 0003632d31 0000018bcfe56800 00000001"
    "0003632d31 000163 000a2f3132372e302e302e31 0000ea60 00002710 000000020102 0000000103",
    3: "0003 0008636f6e73756d6572 00000007 000572616e6765 0003632d31 0000018bcfe56800 00000001"
    "0003632d31 0005706f642d30 000163 000a2f3132372e302e302e31 0000ea60 00002710 000000020102 0000000103",
    4: "0004 09636f6e73756d6572 00000007 0672616e6765 04632d31 0000018bcfe56800 02"
    "04632d31 06706f642d30 0263 0b2f3132372e302e302e31 0000ea60 00002710 030102 0203 00 01000161",
}


@pytest.mark.parametrize("version", GROUPS)
def test_kafkas_group_records(version: int) -> None:
    raw = bytes.fromhex(GROUPS[version])
    member = replace(
        MEMBER,
        instance_id="pod-0" if version >= 3 else None,
        rebalance_timeout_ms=60_000 if version >= 1 else 10_000,
    )
    expected = replace(STATE, changed_ms=STATE.changed_ms if version >= 2 else -1, members=(member,))
    assert decode_group(raw) == expected
    for size in range(len(raw)):
        with pytest.raises(CorruptRecordError, match="value of a group"):
            decode_group(raw[:size])


def test_the_version_that_is_written() -> None:
    assert encode_group(STATE) == bytes.fromhex(GROUPS[3])
    empty = StoredGroup("", 8, None, None)
    assert decode_group(encode_group(empty)) == empty
    with pytest.raises(CorruptRecordError, match="version 5, not 0 to 4"):
        decode_group(b"\0\x05")


def test_a_lying_count_of_members_is_refused() -> None:
    with pytest.raises(CorruptRecordError, match="elements"):
        decode_group(encode_group(replace(STATE, members=()))[:-4] + b"\x7f\xff\xff\xff")
