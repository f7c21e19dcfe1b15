from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from klamm.core.errors import BrokerError, ConfigError, CoordinationError, DeliveryError, ErrorCode
from klamm.core.interfaces.audit import Publish
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.interfaces.service import BrokerContext, MirrorSource, ServiceRead
from klamm.core.records import native
from klamm.core.records.decode import RecordArea, read_area
from klamm.core.records.encode import assemble, encode_batch, encode_headers, encode_record
from klamm.core.records.header import HEADER_SIZE, BatchHeader, rewrite_base, rewrite_log_append_time
from klamm.core.records.isolation import IsolationLevel
from klamm.core.records.partition import TopicPartition
from klamm.core.records.varint import encode_varint
from klamm.plugins.audit.comparison.compare import tier_counts
from klamm.plugins.audit.comparison.tiers import TierKey
from klamm.plugins.audit.config import AuditConfig
from klamm.plugins.audit.counting import batch_counts, broker_tier, origins
from klamm.plugins.audit.counting.broker_tier import GROUP, BrokerTier, Follower
from klamm.plugins.audit.event import FOREIGN, AuditEvent, EventWindow
from klamm.plugins.audit.query import absent_topics
from klammtest.audits import CODECS, FLIGHTS, WINDOW_MS, AuditTopic, MemoryLogs, follower, identity, mark_of
from klammtest.guarantees import guarantee

BROKER = TierKey("broker", GROUP)


def counted(topic: AuditTopic) -> tuple[dict[int, int], list[str]]:
    """Records by window start, and what is wrong."""
    found = tier_counts("flights", topic.events, WINDOW_MS, 0)[BROKER]
    return {s: t.records for s, t in found.windows.items()}, [problem.kind for problem in found.problems]


@pytest.mark.parametrize("codec", CODECS.names())
def test_it_counts_what_is_stored_by_window(codec: str) -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    tier = follower(logs, topic)
    logs.append([0, WINDOW_MS, 5], codec)
    assert tier.advance()
    assert not tier.advance()
    logs.append([7], codec)
    assert tier.advance()
    assert counted(topic) == ({0: 3, WINDOW_MS: 1}, [])
    assert topic.events[0].windows[0].size == 16
    assert logs.offsets.offsets[FLIGHTS].offset == 4


def test_the_next_broker_goes_on_where_the_last_one_stopped() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    logs.append([0] * 10)
    follower(logs, topic).advance()
    logs.append([0] * 5)
    follower(logs, topic).advance()
    assert [(event.from_offset, event.to_offset) for event in topic.events] == [(0, 10), (10, 15)]
    assert counted(topic) == ({0: 15}, [])


def test_a_crash_between_publish_and_commit_neither_loses_nor_doubles() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    logs.append([0] * 10)
    logs.offsets.fail = 1
    with pytest.raises(CoordinationError):
        follower(logs, topic).advance()
    logs.append([0] * 5)
    follower(logs, topic).advance()
    assert counted(topic) == ({0: 15}, [])


def test_it_waits_for_the_store_and_reads_no_further() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    tier = follower(logs, topic)
    logs.append([0] * 10)
    logs.offsets.fail = 2
    for _ in range(2):
        with pytest.raises(CoordinationError):
            tier.advance()
    topic.fail = 1
    with pytest.raises(DeliveryError):
        tier.advance()
    logs.append([0] * 5)
    assert tier.advance()
    assert counted(topic) == ({0: 15}, [])


def test_a_batch_that_lies_is_unknown_and_does_not_stop_the_rest() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    tier = follower(logs, topic)
    logs.append([0] * 10)
    logs.append([0] * 10)
    logs.append([0] * 10)
    logs.batches[FLIGHTS][1][70] ^= 0xFF
    tier.advance()
    logs.append([WINDOW_MS])
    tier.advance()
    assert counted(topic) == ({0: 20, WINDOW_MS: 1}, ["lossy"])


def append_first_record(logs: MemoryLogs, fields: bytes, codec: str) -> None:
    """Appends a batch of one record with these fields, from the key's length on; only the CRC is right."""
    body = b"\0" + encode_varint(0) * 2 + fields
    records = bytearray(HEADER_SIZE) + encode_varint(len(body)) + body
    batch = assemble(records, CODECS.by_name(codec), (5, 5), (-1, -1, -1), 1)
    rewrite_base(batch, 0, logs.ends[FLIGHTS], 0)
    logs.batches[FLIGHTS].append(batch)
    logs.ends[FLIGHTS] += 1


NULL, ONE = encode_varint(-1), encode_varint(1)


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(NULL * 2 + ONE + b"\x03\x00", id="name of -2 bytes"),
        pytest.param(NULL * 2 + ONE + NULL + NULL, id="name null"),
        pytest.param(NULL * 2 + ONE + b"\x02n\x03", id="value of -2 bytes"),
        pytest.param(NULL * 2 + ONE + b"\x02n\x08v", id="value cut off"),
        pytest.param(NULL * 2 + ONE + b"\x08n", id="name cut off"),
        pytest.param(NULL * 2 + ONE + b"\x02\xff" + NULL, id="name not UTF-8"),
        pytest.param(NULL * 2 + ONE + b"\x80", id="length cut off"),
        pytest.param(NULL * 2 + NULL, id="number of headers negative"),
        pytest.param(encode_varint(-2) + NULL + b"\0", id="key of -2 bytes"),
        pytest.param(NULL + encode_varint(-2) + b"\0", id="value of the record of -2 bytes"),
    ],
)
def test_a_first_record_that_is_malformed_makes_its_range_lossy(fields: bytes, codec: str) -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    append_first_record(logs, fields, codec)
    logs.append([0] * 3, codec)
    follower(logs, topic).advance()
    assert counted(topic) == ({0: 3}, ["lossy"])


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("producer", ["", "p"])
def test_a_batch_that_is_damaged_on_disk_makes_its_range_lossy(codec: str, producer: str) -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    logs.append([0] * 50, codec, producer=producer)
    logs.batches[FLIGHTS][0][-3] ^= 0x55
    follower(logs, topic).advance()
    [told] = topic.events
    assert told.lossy
    assert not told.windows


@pytest.mark.parametrize("content", [f"0 {'9' * 30}", "0 1000", "0 -5", f"{-WINDOW_MS} 8", "1 8", "-1 8"])
def test_a_mark_of_impossible_content_is_not_believed(content: str) -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    mark = (
        (origins.PRODUCER_HEADER, b"p"),
        (origins.BATCH_HEADER, f"1 {FLIGHTS} {WINDOW_MS} {content}".encode()),
    )
    logs.append([5], "none", each=[mark])
    follower(logs, topic).advance()
    [told] = topic.events
    assert [(w.start_ms, w.source, w.records, w.size) for w in told.windows] == [(0, "p", 1, 8)]


def test_records_that_retention_took_first_are_unknown() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    tier = follower(logs, topic)
    logs.append([0] * 10)
    tier.advance()
    logs.append([0] * 10)
    logs.append([0] * 10)
    del logs.batches[FLIGHTS][:2]
    logs.starts[FLIGHTS] = 20
    tier.advance()
    tier.advance()
    assert counted(topic) == ({0: 20}, ["lossy"])


def test_a_partition_that_is_no_longer_led_is_left_alone() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    tier = follower(logs, topic)
    logs.append([0])
    tier.advance()
    kept = logs.batches.pop(FLIGHTS)
    assert not tier.advance()
    logs.batches[FLIGHTS] = kept
    logs.append([0])
    assert tier.advance()
    assert counted(topic) == ({0: 2}, [])


@pytest.mark.parametrize("codec", CODECS.names())
def test_a_batch_is_its_producers_by_the_mark_of_its_first_record(codec: str) -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    logs.append([0, WINDOW_MS, 5], codec, producer="p")
    logs.append([0, 1], codec)
    follower(logs, topic).advance()
    assert [(w.start_ms, w.source, w.records) for w in topic.events[0].windows] == [
        (0, "", 2), (0, "p", 2), (WINDOW_MS, "p", 1),
    ]  # fmt: skip


def test_an_uncompressed_batch_that_its_producer_has_counted_is_not_counted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    logs.append([WINDOW_MS + 3, WINDOW_MS, 2 * WINDOW_MS - 1], "none", producer="p")
    monkeypatch.setattr(native, "window_counts", None)
    follower(logs, topic).advance()
    assert topic.events[0].windows == (EventWindow(WINDOW_MS, 3, 24, source="p"),)


COMPRESSED = [name for name in CODECS.names() if CODECS.by_name(name).codec_id]


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_compressed_batch_with_fewer_records_than_it_says_is_unknown(codec: str) -> None:
    """Its header and its mark agree, and its CRC is right; by default the broker does not read it on Produce."""
    logs, topic = MemoryLogs(), AuditTopic()
    records = bytearray(HEADER_SIZE) + encode_record(0, 0, b"key", b"value", encode_headers(mark_of("p", [0] * 5)))
    logs.batches[FLIGHTS].append(bytearray(assemble(records, CODECS.by_name(codec), (0, 0), (-1, -1, -1), 5)))
    logs.ends[FLIGHTS] += 5
    follower(logs, topic).advance()
    [told] = topic.events
    assert (told.lossy, told.windows) == (True, ())


def walked(logs: MemoryLogs) -> list[tuple[int, str, int, int]]:
    """Returns the tier's counts of records without bytes whose mark says that they have 24."""
    topic = AuditTopic()
    follower(logs, topic).advance()
    return [(w.start_ms, w.source, w.records, w.size) for w in topic.events[0].windows]


def append_marked(logs: MemoryLogs, stamps: list[int], *, window_ms: int = WINDOW_MS, start: int = 0) -> None:
    counted = ((start, len(stamps), 24),)
    mark = origins.mark(identity("producer", "p"), FLIGHTS, counted, window_ms)
    batch = bytearray(encode_batch([(stamp, None, None, mark if n == 0 else ()) for n, stamp in enumerate(stamps)]))
    logs.batches[FLIGHTS].append(batch)
    logs.ends[FLIGHTS] += len(stamps)


def test_a_mark_that_contradicts_the_header_counts_for_no_window() -> None:
    for stamps, start in (([0, 5], WINDOW_MS), ([5, WINDOW_MS], 0), ([WINDOW_MS, 5], 0), ([-1, 5], 0)):
        logs = MemoryLogs()
        append_marked(logs, stamps, start=start)
        found = Counter(stamp - stamp % WINDOW_MS if stamp >= 0 else -1 for stamp in stamps)
        assert walked(logs) == sorted((window, "p", records, 0) for window, records in found.items())


def test_a_mark_in_windows_of_another_length_says_whose_the_batch_is_alone() -> None:
    logs = MemoryLogs()
    append_marked(logs, [0, 5], window_ms=60_000)
    assert walked(logs) == [(0, "p", 2, 0)]


def test_a_batch_that_the_broker_stamped_is_in_the_window_of_its_stamp() -> None:
    logs = MemoryLogs()
    append_marked(logs, [0, 5])
    [batch] = logs.batches[FLIGHTS]
    rewrite_log_append_time(batch, 0, BatchHeader.parse(batch), 7 * WINDOW_MS + 9)
    assert walked(logs) == [(7 * WINDOW_MS, "p", 2, 24)]


def test_a_batch_that_compaction_has_thinned_is_counted() -> None:
    logs = MemoryLogs()
    append_marked(logs, [0, 5, 6])
    [batch] = logs.batches[FLIGHTS]
    header = BatchHeader.parse(batch)
    area = read_area(batch, 0, header, CODECS)
    *_, headers = native.lists(*area)
    kept = encode_record(0, 0, None, None, encode_headers(headers[0])) + encode_record(2, 6, None, None, b"\0")
    thinned = bytearray(HEADER_SIZE) + kept
    native.seal(thinned, 0, 0, 0, 2, 0, 6, -1, -1, -1, 2)
    logs.batches[FLIGHTS] = [thinned]
    assert walked(logs) == [(0, "p", 2, 0)]


def test_a_batch_is_its_producers_where_the_first_record_was_counted_before() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    logs.append([0] * 10, producer="p")
    logs.offsets.offsets[FLIGHTS] = CommittedOffset(4, topic_id=logs.topic_id)
    follower(logs, topic).advance()
    [told] = topic.events
    assert (told.from_offset, [(w.source, w.records) for w in told.windows]) == (4, [("p", 6)])


def test_a_log_that_grows_all_the_time_is_not_counted_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One event for each partition and interval is enough: it has been read to where it ended."""
    monkeypatch.setattr(broker_tier, "CHUNK", broker_tier.PIECE)  # a pass is one read
    logs, topic = MemoryLogs(), AuditTopic()
    tier = follower(logs, topic)
    for _ in range(3):
        logs.append([0] * 10)
        assert tier.advance()
        assert not tier.behind
    logs.ends[FLIGHTS] += 5  # which this pass was not given: a read holds so many bytes
    logs.append([0] * 10)
    logs.ends[FLIGHTS] += 5
    assert tier.advance()
    assert tier.behind


def test_many_producers_make_several_ranges_and_lose_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_counts, "MAX_CELLS", 4)
    logs, topic = MemoryLogs(), AuditTopic()
    for n in range(10):
        logs.append([n, WINDOW_MS], producer=f"p-{n}")
    tier = follower(logs, topic)
    while tier.advance() and tier.behind:
        pass
    spans = [(event.from_offset, event.to_offset) for event in topic.events]
    assert spans == [(n, n + 4) for n in range(0, 20, 4)]
    assert {w.source: w.records for event in topic.events for w in event.windows if w.start_ms == 0} == {
        f"p-{n}": 1 for n in range(10)
    }


def test_a_range_ends_before_a_batch_for_which_its_event_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_counts, "MAX_CELLS", 4)
    logs, topic = MemoryLogs(), AuditTopic()
    for n in range(3):
        logs.append([0, WINDOW_MS, 2 * WINDOW_MS], producer=f"p-{n}")
    tier = follower(logs, topic)
    while tier.advance() and tier.behind:
        pass
    assert [(event.from_offset, event.to_offset, len(event.windows)) for event in topic.events] == [
        (0, 3, 3), (3, 6, 3), (6, 9, 3),
    ]  # fmt: skip
    assert counted(topic) == ({0: 3, WINDOW_MS: 3, 2 * WINDOW_MS: 3}, [])


def test_a_batch_with_too_many_counts_for_an_event_is_unknown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batch_counts, "MAX_CELLS", 4)
    logs, topic = MemoryLogs(), AuditTopic()
    logs.append([0] * 3)
    logs.append([n * WINDOW_MS for n in range(5)])
    logs.append([0] * 2)
    tier = follower(logs, topic)
    while tier.advance() and tier.behind:
        pass
    assert counted(topic) == ({0: 5}, ["lossy"])
    assert [record.getMessage() for record in caplog.records] == [
        f"broker audit: {FLIGHTS} offset 3: the batch has more than 4 windows; its records are counted as unknown"
    ]


def test_the_largest_event_fits_into_the_audit_topic() -> None:
    most, owner = 2**63 - 1, "p" * origins.MAX_OWNER_BYTES
    windows = tuple(EventWindow(most, most, most, source=owner) for _ in range(batch_counts.MAX_CELLS))
    config = AuditConfig()
    largest = AuditEvent(
        tier="broker", owner=GROUP, host="h" * 255, application="broker", topic="t" * 249, partition=0, from_offset=0,
        to_offset=most, window_ms=WINDOW_MS, windows=windows,
    )  # fmt: skip
    assert sum(map(len, largest.encode())) < int(config.topic_configs()["max.message.bytes"]) - 1024


def test_a_producers_id_that_is_too_long_is_no_mark() -> None:
    most = origins.MAX_OWNER_BYTES
    for value, valid in [
        (b"p" * most, True),
        (b"p" * (most + 1), False),
        ("ü".encode() * (most // 2), True),
        ("ü".encode() * (most // 2) + b"p", False),
        (b"\xff" * (most // 3), True),
        (b"\xff" * (most // 3 + 1), False),  # a U+FFFD has three bytes
    ]:
        logs, topic = MemoryLogs(), AuditTopic()
        marked = ((origins.PRODUCER_HEADER, value), (origins.BATCH_HEADER, f"2 {FLIGHTS} {WINDOW_MS} 0 16".encode()))
        logs.append([0, 0], "none", each=[marked])
        follower(logs, topic).advance()
        [window] = topic.events[0].windows
        assert (window.source, window.records) == (value.decode(errors="replace") if valid else FOREIGN, 2)


@pytest.mark.parametrize(("size", "kept"), [(100, True), (100_000, False)])
def test_only_short_headers_are_kept(size: int, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def parse(headers: bytes) -> origins.Mark:
        parsed.append(headers)
        return origins.mark_of(headers)

    monkeypatch.setattr(batch_counts, "mark_of", parse)
    logs, topic = MemoryLogs(), AuditTopic()
    marked = (
        (origins.PRODUCER_HEADER, b"p"), (origins.BATCH_HEADER, f"1 {FLIGHTS}".encode()), ("trace", b"t" * size)
    )  # fmt: skip
    logs.append([0], each=[marked])
    tier = follower(logs, topic)
    tier.advance()
    parsed_before = len(parsed)
    logs.append([0], each=[marked])
    tier.advance()
    assert len(parsed) == (parsed_before if kept else 2 * parsed_before)
    assert sum(w.records for e in topic.events for w in e.windows if w.source == "p") == 2


def test_a_batch_before_an_unexpected_error_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    logs.append([0] * 3)
    logs.append([0] * 2)

    def failing(*args: Any, **kwargs: Any) -> RecordArea:
        if args[2].base_offset == 3:
            raise RuntimeError("a codec of a plugin")
        return read_area(*args, **kwargs)

    tier = follower(logs, topic)
    with monkeypatch.context() as patch:
        patch.setattr(broker_tier, "read_area", failing)
        for _ in range(2):
            with pytest.raises(RuntimeError):
                tier.advance()
    tier.advance()
    assert counted(topic) == ({0: 5}, [])


def test_the_service_counts_until_it_is_stopped() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    stored = threading.Semaphore(0)

    @contextmanager
    def connect(_: BrokerContext) -> Iterator[Publish]:
        def publish(key: bytes, value: bytes) -> Future[None]:
            future = topic(key, value)
            stored.release()
            return future

        yield publish

    config = AuditConfig(broker_interval_ms=10)
    service = BrokerTier(lambda name: not name.startswith("__"), WINDOW_MS, config, logs, connect, lambda: 1)
    logs.append([0] * 3)
    service.start()
    assert stored.acquire(timeout=60)
    logs.append([0] * 4)
    service.stop()
    assert logs.topics == ["__klamm_audit"]
    assert counted(topic) == ({0: 7}, [])


def test_the_audit_topic_is_created_once_enough_brokers_are_live() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    stored = threading.Semaphore(0)
    refused = iter((ErrorCode.invalid_replication_factor, ErrorCode.not_controller))
    create = logs.ensure_topic

    def ensure_topic(name: str, partitions: int, configs: Mapping[str, str]) -> None:
        if (code := next(refused, None)) is not None:
            raise BrokerError(code, "planted")
        create(name, partitions, configs)

    @contextmanager
    def connect(_: BrokerContext) -> Iterator[Publish]:
        def publish(key: bytes, value: bytes) -> Future[None]:
            future = topic(key, value)
            stored.release()
            return future

        yield publish

    logs.ensure_topic = ensure_topic  # type: ignore[method-assign]
    config = AuditConfig(broker_interval_ms=10)
    service = BrokerTier(lambda name: not name.startswith("__"), WINDOW_MS, config, logs, connect, lambda: 1)
    logs.append([0] * 3)
    service.start()
    assert stored.acquire(timeout=60)
    service.stop()
    assert service.problem is None
    assert logs.topics == ["__klamm_audit"]
    assert counted(topic) == ({0: 3}, [])


def test_the_tier_does_not_start_if_its_topic_is_refused_for_good() -> None:
    logs = MemoryLogs()

    def ensure_topic(name: str, partitions: int, configs: Mapping[str, str]) -> None:
        raise ConfigError("planted")

    logs.ensure_topic = ensure_topic  # type: ignore[method-assign]
    service = BrokerTier(bool, WINDOW_MS, AuditConfig(), logs, lambda _: nullcontext(AuditTopic()), lambda: 1)
    with pytest.raises(ConfigError, match="planted"):
        service.start()
    service.stop()


def test_a_topic_that_does_not_exist_is_told_once_per_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker_tier, "ABSENT_GRACE_S", 0.0)
    asked = threading.Semaphore(0)

    @contextmanager
    def connect(_: BrokerContext) -> Iterator[Publish]:
        yield AuditTopic()

    def absent() -> list[str]:
        asked.release()
        return absent_topics(config, {"trips", "flights"})

    config = AuditConfig(broker_interval_ms=10, topics=("flights", "tripss"), mirrored_topics=("live.audit",))
    service = BrokerTier(config.audits, WINDOW_MS, config, MemoryLogs(), connect, lambda: 1, absent)
    with caplog.at_level("WARNING"):
        service.start()
        assert asked.acquire(timeout=60)
        service.stop()
    assert not asked.acquire(blocking=False)
    assert caplog.messages == [
        "audit.topics: there is no topic 'tripss' in the cluster; did you mean 'trips'?",
        "audit.mirrored.topics: there is no topic 'live.audit' in the cluster",
    ]


def test_a_pass_reads_several_pieces_and_ends_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_tier, "PIECE", 1)
    monkeypatch.setattr(broker_tier, "CHUNK", 3)
    logs, topic = MemoryLogs(), AuditTopic()
    for _ in range(5):
        logs.append([0] * 10)
    read = logs.read
    asked: list[int] = []

    def one_batch(partition: TopicPartition, offset: int, max_bytes: int, _: IsolationLevel) -> ServiceRead:
        if max_bytes:
            asked.append(offset)
        found = read(partition, offset, max_bytes)
        return found._replace(data=found.data[: BatchHeader.parse(found.data).size] if found.data else b"")

    monkeypatch.setattr(logs, "read", one_batch)
    tier = follower(logs, topic)
    assert tier.advance()
    assert asked == [0, 10, 20]
    assert tier.behind
    assert tier.advance()
    assert asked[3:] == [30, 40]
    assert not tier.behind
    assert [(event.from_offset, event.to_offset) for event in topic.events] == [(0, 30), (30, 50)]


def test_a_leader_epoch_that_begins_within_a_pass_loses_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_tier, "PIECE", 1)
    monkeypatch.setattr(broker_tier, "CHUNK", 4)
    logs, topic = MemoryLogs(), AuditTopic()
    for _ in range(3):
        logs.append([0] * 10)
    read = logs.read

    def one_batch(partition: TopicPartition, offset: int, max_bytes: int, _: IsolationLevel) -> ServiceRead:
        found = read(partition, offset, max_bytes)
        if offset:
            logs.leader_epoch = 1  # this broker goes on leading, under another epoch
        return found._replace(
            data=found.data[: BatchHeader.parse(found.data).size] if found.data else b"", leader_epoch=logs.leader_epoch
        )

    monkeypatch.setattr(logs, "read", one_batch)
    monkeypatch.setattr(logs, "epoch_end", lambda partition, epoch: 30)
    tier = follower(logs, topic)
    while tier.advance() and tier.behind:
        pass
    assert [(event.from_offset, event.to_offset, event.epoch) for event in topic.events] == [(0, 20, 1), (20, 30, 1)]
    assert counted(topic) == ({0: 30}, [])


def test_a_range_is_lossy_where_the_log_was_cut_below_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention deleted the records of the new leader before the tier's first pass there."""
    logs, topic = MemoryLogs(), AuditTopic()
    for _ in range(2):
        logs.append([0] * 5, producer="p")
        follower(logs, topic).advance()
    logs.cut(5)
    logs.append([WINDOW_MS] * 2, producer="p")
    logs.delete_before(7)
    monkeypatch.setattr(logs, "epoch_end", lambda partition, epoch: 7)
    tier = follower(logs, topic)
    for _ in range(3):
        tier.advance()
        logs.append([2 * WINDOW_MS] * 3, producer="p")
    told = [(event.from_offset, event.to_offset, event.lossy) for event in topic.events]
    assert told == [(0, 5, False), (5, 10, False), (7, 7, True), (7, 10, True), (10, 13, False)]


def keeping_its_position(patch: pytest.MonkeyPatch) -> None:
    """As it was: a leader that leads again continues where it stopped before."""
    original = Follower._read_piece

    def read_piece(self: Follower, partition: TopicPartition) -> bool:
        self._followed[partition].epoch = None
        return original(self, partition)

    patch.setattr(Follower, "_read_piece", read_piece)


@guarantee("C9", "a leader that leads again counts on from where the others stopped", plant=keeping_its_position)
def test_a_leader_that_leads_again_within_a_pass_continues_where_the_other_stopped() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    logs.append([0] * 10, producer="p")
    first, second = follower(logs, topic), follower(logs, topic)
    first.advance()
    for _ in range(2):
        logs.leader_epoch += 1
        logs.append([WINDOW_MS] * 10, producer="p")
        second.advance()
    logs.leader_epoch += 1  # the first leader leads again, and has made no pass in between
    logs.append([WINDOW_MS] * 10, producer="p")
    first.advance()
    assert [(event.from_offset, event.to_offset) for event in topic.events] == [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert counted(topic) == ({0: 10, WINDOW_MS: 30}, [])


class CutOff(MemoryLogs):
    """The logs of a leader that does not know yet that another broker leads, in the next epoch."""

    def __init__(self, leader: MemoryLogs) -> None:
        super().__init__()
        self.leader, self.offsets, self.batches[FLIGHTS] = leader, leader.offsets, list(leader.batches[FLIGHTS])
        self.ends[FLIGHTS] = leader.ends[FLIGHTS]
        leader.leader_epoch += 1

    def fence(self) -> tuple[int, UUID | None]:
        return self.leader.fence()


def unguarded(patch: pytest.MonkeyPatch) -> None:
    """As it was: the tier commits whatever the coordination says."""
    patch.setattr(CutOff, "fence", MemoryLogs.fence)


@guarantee("C9", "a leader that was cut off does not set the audit's own offset back", plant=unguarded)
def test_a_leader_that_was_cut_off_does_not_set_the_offset_back() -> None:
    """A leader counts 10 records and cannot commit; its successor counts them and 20 more. The former leader makes two
    passes, and learns in between that another broker leads."""
    logs, topic = MemoryLogs(), AuditTopic()
    logs.append([0] * 10, producer="p")
    former = CutOff(logs)
    tier = follower(former, topic)
    logs.offsets.fail = 1
    with pytest.raises(CoordinationError):
        tier.advance()
    for _ in range(2):
        logs.append([0] * 10, producer="p")
    follower(logs, topic).advance()
    tier.advance()
    former.batches.clear()
    tier.advance()
    assert logs.offsets.offsets[FLIGHTS].offset == 30
    logs.append([0] * 5, producer="p")
    follower(logs, topic).advance()  # the next process of the leader
    assert counted(topic) == ({0: 35}, [])


def test_a_leader_that_knows_that_it_was_deposed_publishes_nothing_more() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    logs.append([0] * 10, producer="p")
    former = CutOff(logs)
    tier = follower(former, topic)
    topic.fail = 1
    with pytest.raises(DeliveryError):
        tier.advance()
    former.batches.clear()
    assert not tier.advance()
    assert topic.events == []
    assert logs.offsets.offsets == {}


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_leader_that_was_cut_off_counts_nothing_again_when_it_starts(epoch: int) -> None:
    """Its log ends before the position of the audit, as a log does that was cut: another broker leads, and has counted
    further."""
    logs, topic = MemoryLogs(), AuditTopic()
    logs.leader_epoch = epoch
    logs.append([0] * 10, producer="p")
    former = CutOff(logs)
    former.leader_epoch = epoch
    logs.append([0] * 20, producer="p")
    follower(logs, topic).advance()
    before = list(topic.events)
    tier = follower(former, topic)
    assert not tier.advance()
    assert not tier.behind
    assert topic.events == before
    assert logs.offsets.offsets[FLIGHTS].offset == 30


MIRROR = TierKey("mirror")


def mirrored(topic: AuditTopic) -> tuple[dict[int, int], list[str], list[tuple[int, int]]]:
    """Returns the mirror's records by window start, what is wrong, and its ranges."""
    found = tier_counts("flights", topic.events, WINDOW_MS, 0)[MIRROR]
    [tiles] = found.tiles.values()
    ranges = [(event.from_offset, event.to_offset) for event in tiles]
    return {s: t.records for s, t in found.windows.items()}, [problem.kind for problem in found.problems], ranges


def test_a_mirror_is_counted_as_a_tier_of_its_own_that_names_the_topic_at_the_source() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    logs.source = MirrorSource(UUID(int=9))
    logs.append([0, WINDOW_MS])
    follower(logs, topic).advance()
    assert mirrored(topic) == ({0: 1, WINDOW_MS: 1}, [], [(0, 2)])
    assert {(event.origin, event.topic_id) for event in topic.events} == {(str(UUID(int=9)), str(logs.topic_id))}


def test_a_mirror_that_has_copied_nothing_begins_at_the_log_start_of_the_source() -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    logs.source = MirrorSource(UUID(int=9))
    logs.leader_epoch = 1
    tier = follower(logs, topic)
    tier.advance()
    logs.ends[FLIGHTS] = logs.starts[FLIGHTS] = 50
    tier.advance()
    logs.append([0] * 5)
    tier.advance()
    assert mirrored(topic) == ({0: 5}, [], [(50, 55)])


@pytest.mark.parametrize(("gaps", "problems"), [(((5, 20),), []), (((10, 20),), ["lossy"]), ((), ["lossy"])])
def test_what_was_deleted_below_the_log_start_is_without_records_if_it_is_a_gap(
    gaps: tuple[tuple[int, int], ...], problems: list[str]
) -> None:
    logs, topic = MemoryLogs(), AuditTopic()
    logs.source = MirrorSource(UUID(int=9), gaps)
    tier = follower(logs, topic)
    logs.append([0] * 5)
    tier.advance()
    logs.delete_before(20)
    logs.ends[FLIGHTS] = 20
    logs.append([0] * 3)
    while tier.advance():
        pass
    counts, found, ranges = mirrored(topic)
    assert (counts, found, ranges[-1][1]) == ({0: 8}, problems, 23)


class MirrorLogs(MemoryLogs):
    """A mirror's log: its batches have the source's epochs, and the partition the target's, from 5 on."""

    def __init__(self) -> None:
        super().__init__()
        self.source = MirrorSource(UUID(int=9))
        self.leader_epoch = 5

    def copy(self, source_epoch: int, *batches: dict[int, int]) -> None:
        """Appends batches of records by window."""
        here, self.leader_epoch = self.leader_epoch, source_epoch
        for windows in batches:
            self.append([start * WINDOW_MS for start, n in windows.items() for _ in range(n)], producer="p")
        self.leader_epoch = here

    def cut(self, offset: int) -> None:
        here = self.leader_epoch
        super().cut(offset)
        self.leader_epoch = here


def lost(topic: AuditTopic) -> dict[int, int]:
    """Returns what the mirror had counted and has lost, by window start."""
    found = tier_counts("flights", topic.events, WINDOW_MS, 0)[MIRROR]
    return {start: sum(sources.values()) for start, sources in found.lost.items()}


def spans(topic: AuditTopic) -> list[tuple[int, int, bool]]:
    return [(event.from_offset, event.to_offset, event.cut) for event in topic.events]


def not_reading_what_was_cut(patch: pytest.MonkeyPatch) -> None:
    """As it was: what was counted and cut is not known any more."""
    patch.setattr(MemoryLogs, "set_aside", lambda *_: None)


@guarantee("C11", "what a mirror has lost is known where its log was cut", plant=not_reading_what_was_cut)
@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_cut_from_a_mirror_is_reported_before_it_is_counted_again(restarted: bool) -> None:
    logs, topic = MirrorLogs(), AuditTopic()
    logs.copy(0, {0: 5}, {0: 3, 1: 2})
    tier = follower(logs, topic)
    tier.advance()
    logs.cut(5)
    logs.copy(1, {1: 8})
    if restarted:
        tier, logs.leader_epoch = follower(logs, topic), 6
    while tier.advance():
        pass
    assert spans(topic) == [(0, 10, False), (5, 10, True), (5, 13, False)]
    assert mirrored(topic) == ({0: 5, WINDOW_MS: 8}, [], [(0, 5), (5, 13)])
    assert lost(topic) == {0: 3, WINDOW_MS: 2}
    assert logs.offsets.offsets[FLIGHTS] == CommittedOffset(13, 1, topic_id=logs.topic_id)


@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_cut_from_a_mirror_is_reported_though_nothing_follows(restarted: bool) -> None:
    logs, topic = MirrorLogs(), AuditTopic()
    logs.copy(0, {0: 5}, {0: 3, 1: 2})
    tier = follower(logs, topic)
    tier.advance()
    logs.cut(5)
    if restarted:
        tier = follower(logs, topic)
    while tier.advance():
        pass
    assert (mirrored(topic)[:2], lost(topic)) == (({0: 5}, []), {0: 3, WINDOW_MS: 2})
    assert logs.offsets.offsets[FLIGHTS].offset == 5


def test_what_was_cut_from_a_mirror_and_is_not_here_is_unknown() -> None:
    logs, topic = MirrorLogs(), AuditTopic()
    logs.copy(0, {0: 5}, {0: 3, 1: 2})
    tier = follower(logs, topic)
    tier.advance()
    logs.cut(5)
    logs.aside = []
    logs.copy(1, {2: 8})
    while tier.advance():
        pass
    counts, problems, ranges = mirrored(topic)
    assert (counts[2 * WINDOW_MS], set(problems), ranges) == (8, {"lossy"}, [(0, 5), (5, 13)])


@pytest.mark.parametrize("damage", ["crc", "cut off", "inside a batch"])
def test_what_was_cut_from_a_mirror_and_cannot_be_counted_is_unknown(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, topic = MirrorLogs(), AuditTopic()
    logs.copy(0, {0: 5}, {0: 3, 1: 2})
    tier = follower(logs, topic)
    tier.advance()
    logs.cut(5)
    if damage == "crc":
        logs.aside[0][-1] ^= 1
    elif damage == "cut off":
        monkeypatch.setattr(logs, "set_aside", lambda *_: b"\1" * 100)
    else:
        logs.offsets.offsets[FLIGHTS] = replace(logs.offsets.offsets[FLIGHTS], offset=9)
    while tier.advance():
        pass
    assert set(mirrored(topic)[1]) == {"lossy"}
    assert logs.offsets.offsets[FLIGHTS].offset == 5


def test_a_crash_after_a_cut_was_published_reports_it_twice_and_counts_it_once() -> None:
    logs, topic = MirrorLogs(), AuditTopic()
    logs.copy(0, {0: 5}, {0: 3, 1: 2})
    tier = follower(logs, topic)
    tier.advance()
    logs.cut(5)
    logs.copy(1, {1: 8})
    logs.offsets.fail = 1
    with pytest.raises(CoordinationError):
        tier.advance()
    assert spans(topic)[-1] == (5, 10, True)
    tier, logs.leader_epoch = follower(logs, topic), 6
    while tier.advance():
        pass
    assert spans(topic)[1:] == [(5, 10, True), (5, 10, True), (5, 13, False)]
    assert (mirrored(topic), lost(topic)) == (
        ({0: 5, WINDOW_MS: 8}, [], [(0, 5), (5, 13)]),
        {0: 3, WINDOW_MS: 2},
    )


def test_a_cut_that_could_not_be_published_is_published_before_anything_is_counted() -> None:
    logs, topic = MirrorLogs(), AuditTopic()
    logs.copy(0, {0: 5}, {0: 3, 1: 2})
    tier = follower(logs, topic)
    tier.advance()
    logs.cut(5)
    logs.copy(1, {1: 8})
    topic.fail = 2
    for _ in range(2):
        with pytest.raises(DeliveryError):
            tier.advance()
    while tier.advance():
        pass
    assert spans(topic) == [(0, 10, False), (5, 10, True), (5, 13, False)]


def test_a_mirror_that_is_cut_again_below_has_lost_both() -> None:
    logs, topic = MirrorLogs(), AuditTopic()
    logs.copy(0, {0: 5}, {1: 5}, {2: 5})
    tier = follower(logs, topic)
    tier.advance()
    logs.cut(10)
    logs.copy(1, {3: 2})
    while tier.advance():
        pass
    logs.cut(5)
    logs.copy(2, {4: 4})
    while tier.advance():
        pass
    counts, problems, _ = mirrored(topic)
    assert ({start: n for start, n in counts.items() if n}, problems) == ({0: 5, 4 * WINDOW_MS: 4}, [])
    assert lost(topic) == {n * WINDOW_MS: records for n, records in {1: 5, 2: 5, 3: 2}.items()}


@pytest.mark.parametrize("end", [12, 8])
def test_a_cut_that_a_gap_hides_is_found(end: int) -> None:
    """The epoch that was counted last seems to end behind the gap."""
    logs, topic = MirrorLogs(), AuditTopic()
    logs.copy(0, {0: 5}, {1: 5})
    tier = follower(logs, topic)
    tier.advance()
    logs.cut(5)
    logs.source = MirrorSource(UUID(int=9), ((5, end),))
    logs.ends[FLIGHTS] = end
    logs.copy(1, {2: 3})
    while tier.advance():
        pass
    assert mirrored(topic) == ({0: 5, 2 * WINDOW_MS: 3}, [], [(0, 5), (5, end + 3)])
    assert lost(topic) == {WINDOW_MS: 5}


def test_two_cuts_between_two_passes_are_unknown() -> None:
    """The second one is below the first, so no file has all that was counted."""
    logs, topic = MirrorLogs(), AuditTopic()
    logs.copy(0, {0: 5}, {1: 5}, {2: 5})
    tier = follower(logs, topic)
    tier.advance()
    logs.cut(10)
    logs.copy(1, {3: 2})
    logs.cut(5)
    while tier.advance():
        pass
    assert set(mirrored(topic)[1]) == {"lossy"}


def test_what_was_counted_and_not_committed_before_a_cut_is_counted_again() -> None:
    logs, topic = MirrorLogs(), AuditTopic()
    logs.copy(0, {0: 5})
    tier = follower(logs, topic)
    tier.advance()
    logs.copy(0, {1: 5})
    logs.offsets.fail = 1
    with pytest.raises(CoordinationError):
        tier.advance()
    logs.cut(5)
    tier, logs.leader_epoch = follower(logs, topic), 6
    while tier.advance():
        pass
    assert mirrored(topic)[:2] == ({0: 5}, [])


def test_a_mirror_that_is_cut_while_it_is_read_counts_no_other_history(monkeypatch: pytest.MonkeyPatch) -> None:
    logs, topic = MirrorLogs(), AuditTopic()
    logs.copy(0, {0: 5}, {1: 5})
    tier = follower(logs, topic)
    tier.advance()
    logs.copy(0, {2: 5})
    original = logs.read

    def read(partition: TopicPartition, offset: int, max_bytes: int, isolation: IsolationLevel) -> ServiceRead:
        if max_bytes == broker_tier.PIECE:
            monkeypatch.setattr(logs, "read", original)
            logs.cut(5)
            logs.copy(1, {3: 10})
        return original(partition, offset, max_bytes, isolation)

    monkeypatch.setattr(logs, "read", read)
    tier.advance()
    while tier.advance():
        pass
    assert mirrored(topic) == ({0: 5, 3 * WINDOW_MS: 10}, [], [(0, 5), (5, 15)])
    assert lost(topic) == {WINDOW_MS: 5}


def test_a_mirror_whose_source_is_not_stored_is_counted_later() -> None:
    class NotStored(MemoryLogs):
        stored = False

        def mirrored(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, MirrorSource | None]:
            return super().mirrored(partitions) if self.stored else dict.fromkeys(partitions)

    logs, topic = NotStored(), AuditTopic()
    logs.source = MirrorSource(UUID(int=9))
    logs.append([0])
    tier = follower(logs, topic)
    assert not tier.advance()
    logs.stored = True
    tier.advance()
    assert mirrored(topic)[0] == {0: 1}
