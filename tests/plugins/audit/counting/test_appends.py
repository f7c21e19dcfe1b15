"""The broker tier's counts of batches that are taken as they are appended."""

from __future__ import annotations

import random

import pytest

from klamm.core.errors import CoordinationError, DeliveryError
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.plugin import TopicPartition
from klamm.plugins.audit.comparison.compare import tier_counts
from klamm.plugins.audit.comparison.tiers import TierKey
from klamm.plugins.audit.counting import appends
from klamm.plugins.audit.counting.broker_tier import GROUP
from klamm.plugins.audit.event import FOREIGN
from klammtest.audits import FLIGHTS, WINDOW_MS, AuditTopic, MemoryLogs, follower

BROKER = TierKey("broker", GROUP)


def counted(topic: AuditTopic) -> tuple[dict[int, int], list[str]]:
    """Records by window start, and what is wrong."""
    found = tier_counts("flights", topic.events, WINDOW_MS, 0)[BROKER]
    return {s: t.records for s, t in found.windows.items()}, [problem.kind for problem in found.problems]


def test_what_was_counted_at_its_append_is_not_read_again() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    tier = follower(logs, topic)
    tier.advance()
    for producer in ("p-1", "", "p-1"):
        logs.append([0, 5, 7], "none", producer=producer)
        logs.append([WINDOW_MS, 3], "none", producer=producer)
    assert tier.advance()
    assert not tier.advance()
    assert logs.reads == 0
    assert counted(topic) == ({0: 12, WINDOW_MS: 3}, [])
    sources = {(w.start_ms, w.source): (w.records, w.size) for event in topic.events for w in event.windows}
    assert sources == {
        (0, "p-1"): (8, 64), (0, FOREIGN): (4, 32), (WINDOW_MS, "p-1"): (2, 16), (WINDOW_MS, FOREIGN): (1, 8),
    }  # fmt: skip


def test_a_compressed_batch_between_two_others_is_read() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    tier = follower(logs, topic)
    tier.advance()
    logs.append([0] * 2, "none")
    logs.append([0] * 3, "zstd")
    logs.append([0] * 4, "none")
    assert tier.advance()
    assert logs.reads == 1
    assert counted(topic) == ({0: 9}, [])


def test_spans_of_another_leader_epoch_are_not_taken() -> None:
    """After a truncation the offsets have other records."""
    logs, topic = MemoryLogs(), AuditTopic()
    tier = follower(logs, topic)
    tier.advance()
    logs.append([0] * 10, "none")
    logs.append([0] * 10, "none")
    logs.cut(10)
    logs.append([WINDOW_MS] * 10, "none")
    while tier.advance():
        pass
    assert counted(topic) == ({0: 10, WINDOW_MS: 10}, [])


def test_records_that_are_not_committed_yet_are_taken_later() -> None:
    spans = appends.AppendCounts(WINDOW_MS)
    logs = MemoryLogs()
    logs.on_append(spans.appended)
    spans.follow([FLIGHTS])
    logs.append([0] * 10, "none")
    assert spans.take(FLIGHTS, 0, 0, 9) is None
    logs.append([0] * 10, "none")
    first = spans.take(FLIGHTS, 0, 0, 19)
    assert first is not None
    assert (first.begin, first.end, first.cells) == (0, 10, {(0, FOREIGN): (10, 80)})
    assert spans.take(FLIGHTS, 0, 10, 19) is None
    assert spans.next_begin(FLIGHTS) == 10
    second = spans.take(FLIGHTS, 0, 10, 20)
    assert second is not None
    assert second.end == 20


def test_a_tier_that_cannot_publish_keeps_a_bounded_number_of_counts() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    tier = follower(logs, topic)
    tier.advance()
    topic.fail = 50
    for _ in range(50):
        logs.append([0], "none")
        with pytest.raises(DeliveryError):
            tier.advance()
    assert max(map(len, tier._appends._spans.values())) <= appends.MAX_SPANS
    while tier.advance():
        pass
    assert counted(topic) == ({0: 50}, [])


def test_all_partitions_together_hold_a_bounded_number_of_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of 200 KB may hold records of 20,000 windows, and a partition has 8 spans."""
    monkeypatch.setattr(appends, "MAX_HELD", 100)
    spans, logs = appends.AppendCounts(WINDOW_MS), MemoryLogs()
    partitions = [TopicPartition("flights", number) for number in range(50)]
    spans.follow(partitions)
    logs.append([number * WINDOW_MS for number in range(20)], "none")
    batch = memoryview(bytes(logs.batches[FLIGHTS][0]))

    def held() -> int:
        return sum(len(span.cells) for of_one in spans._spans.values() for span in of_one)

    for epoch in range(3):
        for partition in partitions:
            spans.appended(partition, batch, 20 * epoch, epoch, -1)
    assert held() == 100
    assert spans.take(partitions[9], 0, 0, 20) is None, "left to the tier"
    first = spans.take(partitions[0], 0, 0, 20)
    assert first is not None
    spans.give_back(partitions[0], first)
    assert spans._held == held() == 100
    assert spans.take(partitions[0], 1, 20, 60) is None
    spans.leave(partitions[1:4])
    assert spans._held == held() == 20
    spans.appended(partitions[9], batch, 60, 2, -1)
    assert spans._held == held() == 40


@pytest.mark.parametrize("seed", range(40))
def test_the_counts_are_those_of_a_tier_that_reads_everything(seed: int) -> None:
    rng = random.Random(seed)
    logs, topic = MemoryLogs(), AuditTopic()
    tier = follower(logs, topic)
    records = 0
    for _ in range(60):
        match rng.randrange(10):
            case 0 | 1:
                tier.advance()
            case 2:
                tier = follower(logs, topic)
            case 3:
                logs.leader_epoch += 1
            case _:
                stamps = [rng.choice((-1, 0, 5, WINDOW_MS, 3 * WINDOW_MS)) for _ in range(rng.randrange(1, 6))]
                producer = rng.choice(("", "p-1", "p-2"))
                logs.append(stamps, rng.choice(("none", "none", "none", "zstd")), producer=producer)
                records += len(stamps)
    while tier.advance():
        pass
    logs.offsets.offsets.clear()
    whole, again = AuditTopic(), follower(logs, AuditTopic())
    again = follower(logs, whole)
    while again.advance():
        pass

    def sums(events: AuditTopic) -> dict[tuple[int, str], tuple[int, int]]:
        found: dict[tuple[int, str], tuple[int, int]] = {}
        for event in events.events:
            for window in event.windows:
                count, size = found.get((window.start_ms, window.source), (0, 0))
                found[window.start_ms, window.source] = count + window.records, size + window.size
        return found

    assert sums(topic) == sums(whole)
    assert sum(count for count, _ in sums(topic).values()) == records


def test_spans_of_a_topic_that_was_deleted_are_not_counted_for_the_next_one_of_its_name() -> None:
    """The coordination was not reachable when the partition was to be followed, and the topic was deleted then."""
    logs, topic = MemoryLogs(), AuditTopic()
    tier = follower(logs, topic)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "committed", refuse)
        with pytest.raises(CoordinationError):
            tier.advance()
        logs.append([0] * 9, "none", producer="p-1")
        logs.create_again()
        logs.append([WINDOW_MS] * 3, "none", producer="p-2")
    assert tier.advance()
    assert not tier.advance()
    assert counted(topic) == ({WINDOW_MS: 3}, [])


def refuse(*_: object) -> dict[TopicPartition, CommittedOffset]:
    raise CoordinationError("planted")
