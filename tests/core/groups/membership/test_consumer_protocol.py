"""The messages that members of a classic group exchange, and the assignment that its leader computes."""

from __future__ import annotations

import struct

import pytest

from klamm.core.errors import ProtocolError
from klamm.core.groups.membership.assignors import range_assignor, roundrobin_assignor
from klamm.core.groups.membership.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from klamm.core.records.partition import TopicPartition


def test_what_is_written_is_read() -> None:
    assert decode_subscription(encode_subscription(["b", "a"])) == ("a", "b")
    partitions = [TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)]
    assert decode_assignment(encode_assignment(reversed(partitions))) == partitions
    assert decode_assignment(b"") == []


def test_the_bytes_are_kafkas() -> None:
    assert encode_subscription(["t"]) == b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff"
    expected = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\1" + b"\0\0\0\3" + b"\xff\xff\xff\xff"
    assert encode_assignment([TopicPartition("t", 3)]) == expected


def test_newer_versions_are_read_as_far_as_we_know() -> None:
    newer = struct.pack(">h", 9) + encode_subscription(["t"])[2:]
    newer += struct.pack(">i", 0) + struct.pack(">i", 5) + struct.pack(">h", -1) + b"what comes after"
    assert decode_subscription(newer) == ("t",)


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff\0\0", b"\0\0\0\0\0\5"])
def test_what_is_no_message_is_one_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_subscription(data)


SUBSCRIPTIONS = {"b": ["t", "u"], "a": ["t"], "c": ["u"]}
PARTITIONS = {"t": [0, 1, 2], "u": [0, 1]}


def names(share: list[TopicPartition]) -> list[str]:
    return [str(partition) for partition in share]


def test_range_goes_topic_by_topic() -> None:
    shares = range_assignor(SUBSCRIPTIONS, PARTITIONS)
    assert {m: names(s) for m, s in shares.items()} == {"a": ["t-0", "t-1"], "b": ["t-2", "u-0"], "c": ["u-1"]}


def test_roundrobin_deals_to_those_who_subscribe() -> None:
    shares = roundrobin_assignor(SUBSCRIPTIONS, PARTITIONS)
    assert {m: names(s) for m, s in shares.items()} == {"a": ["t-0", "t-2"], "b": ["t-1", "u-0"], "c": ["u-1"]}
    assert roundrobin_assignor({"a": ["gone"]}, {}) == {"a": []}
