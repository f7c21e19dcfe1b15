"""The paper's ranges: contiguous, complete, disjoint, alike for all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from klamm.core.groups.membership.assignment import Stream, assign, ranges
from klamm.core.records.partition import TopicPartition

NAMES = st.text("abcdef", min_size=1, max_size=3)


def test_first_streams_get_one_more() -> None:
    streams = [Stream("b", 0), Stream("a", 1), Stream("a", 0)]
    assert ranges([3, 1, 0, 2, 7, 5, 6], streams) == {
        Stream("a", 0): [0, 1, 2],
        Stream("a", 1): [3, 5],
        Stream("b", 0): [6, 7],
    }


def test_more_streams_than_partitions_leave_some_idle() -> None:
    assert assign("b", {"a": {"t": 1}, "b": {"t": 1}}, {"t": [0]}) == {}
    assert ranges([0], []) == {}


def test_only_subscribers_of_a_topic_count() -> None:
    subscriptions = {"a": {"t": 1}, "b": {"t": 1, "u": 2}, "c": {"u": 0}}
    partitions = {"t": [0, 1], "u": [0, 1, 2], "unseen": [0]}
    assert assign("b", subscriptions, partitions) == {
        TopicPartition("t", 1): 0,
        TopicPartition("u", 0): 0,
        TopicPartition("u", 1): 0,
        TopicPartition("u", 2): 1,
    }


def test_streams_past_nine_are_sorted_by_number() -> None:
    streams = [Stream("a", n) for n in range(12)]
    assert list(ranges(range(12), streams).values()) == [[n] for n in range(12)]


@given(
    st.dictionaries(NAMES, st.dictionaries(st.sampled_from("tuv"), st.integers(0, 3)), max_size=6),
    st.dictionaries(st.sampled_from("tuv"), st.sets(st.integers(0, 20), max_size=12).map(tuple)),
)
def test_every_partition_has_one_owner_and_loads_differ_by_one(
    subscriptions: dict[str, dict[str, int]], partitions: dict[str, tuple[int, ...]]
) -> None:
    shares = {member: assign(member, subscriptions, partitions) for member in subscriptions}
    for topic, numbers in partitions.items():
        owners = [(m, s) for m, share in shares.items() for p, s in share.items() if p.topic == topic]
        streams = [(m, n) for m, topics in subscriptions.items() for n in range(topics.get(topic, 0))]
        assert len(owners) == (len(numbers) if streams else 0)
        loads = [owners.count(stream) for stream in streams]
        assert not loads or max(loads) - min(loads) <= 1
    for share in shares.values():
        for topic in {p.topic for p in share}:
            mine = sorted(p.partition for p in share if p.topic == topic)
            between = [n for n in partitions[topic] if mine[0] <= n <= mine[-1]]
            assert sorted(between) == mine
