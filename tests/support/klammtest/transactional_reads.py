"""Reads a partition with transactions by each of Klamm's clients, and compares with what Apache Kafka's log shows."""

from __future__ import annotations

from collections.abc import Iterator

from klamm import Consumer
from klamm.core.broker.server import Broker
from klamm.core.client.cluster_client import ClusterClient
from klamm.core.client.reader.range_reader import OffsetRange, RangeReader
from klamm.core.records.decode import decode_batch
from klamm.core.records.header import BatchHeader
from klamm.core.records.isolation import IsolationLevel
from klamm.core.records.partition import TopicPartition
from klammtest.kafka_transactions import Partition, Row, by_librdkafka, fetch, latest, led
from klammtest.logs import codec_table
from klammtest.wire import WireClient

LEVELS = ("read_uncommitted", "read_committed")


def row(offset: int, key: bytes | None, value: bytes | None) -> Row:
    return offset, (key or b"").decode(), (value or b"").decode()


def consumed(bootstrap: str, tp: TopicPartition, isolation: str, how: str, end: int) -> list[Row]:
    """Returns what `klamm.Consumer` reads up to `end`: by `poll`, `poll_arrow` or `poll_batches`."""
    rows: list[Row] = []
    config = {"bootstrap.servers": bootstrap, "group.id": "judge", "isolation.level": isolation}
    more = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "group.protocol": "classic"}
    with Consumer({"consumer": {**config, **more}}) as consumer:
        consumer.assign([tp])
        while (consumer.position(tp) or 0) < end:
            if how == "arrow":
                for one in consumer.poll_arrow(timeout_s=0.2).to_pylist():
                    rows.append(row(one["offset"], one["key"], one["value"]))
            elif how == "batches":
                for batch in consumer.poll_batches(timeout_s=0.2):
                    header = BatchHeader.parse(batch.data)
                    for record in decode_batch(batch.data, 0, header, codec_table()):
                        rows.append(row(record.offset, record.key, record.value))
            else:
                for polled in consumer.poll(timeout_s=0.2):
                    rows.append(row(polled.offset, polled.key, polled.value))
        assert consumer.metrics()["lag"] == 0
    return rows


def ranged(bootstrap: str, tp: TopicPartition, level: IsolationLevel, end: int, *, arrow: bool) -> Iterator[Row]:
    """Yields what the reader of a Spark task or of a load reads."""
    with ClusterClient(bootstrap, codecs=codec_table()) as client:
        start = client.list_offsets({tp: -2})[tp][0]
        wanted = OffsetRange(tp, start, end)
        reader = RangeReader(client, wanted, fail_on_data_loss=True, poll_timeout_s=60.0, isolation=level)
        for read in reader.arrow_batches() if arrow else reader.batches():
            columns = read.columns
            yield from map(row, columns.offsets, columns.keys, columns.values)


def differences(bootstrap: str, log: Partition, broker: Broker | None = None) -> list[str]:
    """Returns a line for each difference between what the brokers and clients show and what `log` states; with
    `broker`, a broker of Klamm that serves the log, also its answers and its transaction indexes."""
    tp, found = log.tp, []
    expected = dict(zip(LEVELS, (log.uncommitted, log.committed), strict=True))
    for level, end in zip(LEVELS, log.ends, strict=True):
        isolation = IsolationLevel[level.upper()]
        reads = {how: consumed(bootstrap, tp, level, how, end) for how in ("records", "arrow", "batches")}
        reads["range"] = list(ranged(bootstrap, tp, isolation, end, arrow=False))
        reads["range as arrow"] = list(ranged(bootstrap, tp, isolation, end, arrow=True))
        if broker is not None:
            reads["librdkafka"] = by_librdkafka(bootstrap, tp, level)
        for name, rows in reads.items():
            if rows != expected[level]:
                missing, more = set(expected[level]) - set(rows), set(rows) - set(expected[level])
                found.append(f"{tp} {level} {name}: missing {sorted(missing)[:3]}, more {sorted(more)[:3]}")
    if broker is None:
        return found
    entries = [list(entry) for segment in led(broker, tp).log._segments for entry in segment.aborted()]
    if entries != log.index and not log.is_compacted:
        found.append(f"{tp} transaction index: Kafka {log.index}, Klamm {entries}")
    with WireClient(bootstrap) as wire:
        ends = [latest(wire, tp, isolation) for isolation in (0, 1)]
        if ends != log.ends:
            found.append(f"{tp} ListOffsets: Kafka {log.ends}, Klamm {ends}")
        for answer in log.fetches:
            own = fetch(wire, tp, answer.offset, answer.max_bytes)
            # An answer of Kafka ends with a segment, and its list is for an estimate of that end. Compaction in Kafka
            # may have removed the records of an entry, or the entry.
            end = min(own.end, answer.end)
            listed = own.begun_before(end) == answer.begun_before(end) or log.is_compacted
            bounds = (own.high_watermark, own.last_stable_offset)
            if not listed or bounds != (answer.high_watermark, answer.last_stable_offset):
                found.append(f"{tp} Fetch: Kafka {answer}, Klamm {own}")
    return found
