"""The rows that a task of the sink stores, on a real broker: each once, whatever happened to its earlier attempts."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from klamm.core import faults
from klamm.core.client.cluster_client import ClusterClient
from klamm.core.errors import BrokerError, ConfigError, ErrorCode, SchemaError
from klamm.core.faults import VARIABLE
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.log.state.producer_state import ProducerState
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import Headers
from klamm.hadoop.session import reason_of
from klamm.hadoop.source import KlammDataSource
from klamm.hadoop.spark import stored, writing
from klamm.hadoop.spark.attempt import Attempt
from klamm.hadoop.spark.claims import CLAIM_PARTITIONS, CLAIMS_TOPIC, ClaimError, TaskIdentity, TaskProducer
from klamm.hadoop.spark.cluster import edges
from klamm.hadoop.spark.sink import SinkOptions, TaskWritten, parse_sink_options, sink_options, write_task
from klammtest.clients.numbered import START_MS, WAIT_S, Topics, number_topics
from klammtest.guarantees import guarantee

NUMBERS = itertools.count()
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
GIVEN = {"kafka.bootstrap.servers": "h:1", "topic": "t"}


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with number_topics(tmp_path_factory.mktemp("sink")) as made:
        yield made


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that some rows make several batches."""
    monkeypatch.setattr(writing, "BATCH_BYTES", 400)
    monkeypatch.setattr(writing, "PENDING_BYTES", 200)
    monkeypatch.setattr(writing, "IN_TURN", 10)
    yield
    faults.install(None)


class StoppedError(Exception):
    """The attempt's end."""


def stop_at(point: str, nth: int) -> None:
    passed = 0

    def hook(name: str) -> None:
        nonlocal passed
        passed += name == point
        if name == point and passed == nth:
            raise StoppedError

    faults.install(hook)


def rows(numbers: list[int], **columns: Any) -> pa.RecordBatch:
    values = pa.array([str(number) for number in numbers])
    return pa.RecordBatch.from_pydict({"value": values, **columns})


def tables(numbers: list[int], size: int = 50) -> Iterator[pa.RecordBatch]:
    """Every third row without a key."""
    for first in range(0, len(numbers), size):
        part = numbers[first : first + size]
        yield rows(part, key=pa.array([None if n % 3 == 0 else b"k%d" % n for n in part], pa.binary()))


def write(
    topics: Topics,
    topic: str | None,
    batches: Iterator[pa.RecordBatch],
    batch: int = 0,
    *,
    query: str = "",
    run: str = "",
    task: int = 3,
) -> TaskWritten:
    options = SinkOptions(topics.bootstrap, topic, "test", "none", 60.0, ())
    return write_task(options, TaskIdentity(query or f"query-{topic}", batch, task, run), batches)


def test_a_row_is_a_record(topics: Topics) -> None:
    topics.create("record", 4)
    pairs = [[{"key": "h", "value": b"\x01"}, {"key": "n", "value": None}], None, []]
    batch = rows(
        [1, 2, 3],
        key=pa.array(["a", None, "c"]),
        partition=pa.array([3, 2, None], pa.int32()),
        headers=pa.array(pairs, HEADERS),
        timestamp=pa.array([START_MS * 1000 + i for i in range(3)], pa.timestamp("us", tz="UTC")),
    )
    assert write(topics, "record", iter([batch])) == TaskWritten(3, 0)
    found = {record.value: (partition, record) for partition, record in topics.records("record")}
    assert (found[b"1"][0], found[b"2"][0]) == (3, 2)
    no_headers: Headers = ()
    assert [found[value][1].headers for value in (b"1", b"2", b"3")] == [
        (("h", b"\x01"), ("n", None)), no_headers, no_headers,
    ]  # fmt: skip
    assert [found[value][1].key for value in (b"1", b"2", b"3")] == [b"a", None, b"c"]
    assert {record.timestamp_ms for _, record in found.values()} == {START_MS}


def test_rows_go_to_the_topics_and_keys_partitions(topics: Topics) -> None:
    topics.create("one", 2)
    topics.create("two", 1)
    numbers = list(range(60))
    names = pa.array(["two" if n % 5 == 0 else "one" for n in numbers])
    write(topics, None, iter([rows(numbers, topic=names)]), query="by-column")
    assert sorted(topics.numbers("one")) == [n for n in numbers if n % 5]
    assert topics.numbers("two") == list(range(0, 60, 5))
    assert {partition for partition, _ in topics.records("one")} == {0, 1}


@pytest.mark.parametrize(
    ("point", "nth"),
    [("sink.claimed", 1), *(("sink.produced", n) for n in (1, 2, 4)), ("sink.written", 1)],
)
@pytest.mark.parametrize("order", ["same", "other"])
def test_an_attempt_that_ended_anywhere_is_completed_by_the_next(
    topics: Topics, point: str, nth: int, order: str
) -> None:
    topic = f"ended-{point}-{nth}-{order}"
    topics.create(topic, 3)
    write(topics, topic, tables(list(range(1000, 1020))))  # the batch before
    numbers = list(range(200))
    stop_at(point, nth)
    with pytest.raises(StoppedError):
        write(topics, topic, tables(numbers), batch=1)
    faults.install(None)
    stored = len(topics.numbers(topic)) - 20
    assert (stored > 0) == (point != "sink.claimed")
    # Rows without a key go to partitions by their order among themselves.
    keyed, keyless = [n for n in numbers if n % 3], [n for n in numbers if n % 3 == 0]
    again = numbers if order == "same" else [*keyed[::-1], *keyless]
    done = write(topics, topic, tables(again), batch=1)
    assert (done.written, done.found) == (200 - stored, stored)
    assert write(topics, topic, tables(numbers), batch=1) == TaskWritten(0, 200)
    assert sorted(topics.numbers(topic)) == [*numbers, *range(1000, 1020)]
    assert write(topics, topic, tables([5000]), batch=2) == TaskWritten(1, 0)


class Attempts:
    """Attempts of one task that run at the same time, each up to a place in its rows or a fault point."""

    def __init__(self, topics: Topics, topic: str, numbers: list[int]) -> None:
        self._topics = topics
        self._topic = topic
        self._numbers = numbers
        self.outcomes: dict[str, TaskWritten | BaseException] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._awake: dict[str, threading.Event] = {}

    def start(self, name: str, pause_before: int, *, numbers: list[int] | None = None, run: str = "") -> None:
        """Starts an attempt; returns when it waits before its table of this number."""
        asleep, self._awake[name] = threading.Event(), threading.Event()

        def slow() -> Iterator[pa.RecordBatch]:
            for place, table in enumerate(tables(self._numbers if numbers is None else numbers)):
                if place == pause_before:
                    asleep.set()
                    assert self._awake[name].wait(WAIT_S)
                yield table

        def run_it() -> None:
            try:
                self.outcomes[name] = write(self._topics, self._topic, slow(), run=run)
            except BaseException as error:
                self.outcomes[name] = error
            asleep.set()

        self._threads[name] = threading.Thread(target=run_it)
        self._threads[name].start()
        assert asleep.wait(WAIT_S)

    def end(self, name: str) -> TaskWritten | BaseException:
        """Lets the attempt run to its end; returns what it returned or raised."""
        self._awake[name].set()
        self._threads[name].join(WAIT_S)
        return self.outcomes[name]


def own_producers(patch: pytest.MonkeyPatch) -> None:
    """Each attempt has a producer of its own, as one of `init_producer_id`."""
    numbers = itertools.count(1)
    producer = TaskIdentity.producer

    def own(self: TaskIdentity, topic: str, topic_id: UUID | None) -> TaskProducer:
        found = producer(self, topic, topic_id)
        return replace(found, producer_id=found.producer_id ^ next(numbers) << 20)

    patch.setattr(TaskIdentity, "producer", own)


def wait_for_no_task(patch: pytest.MonkeyPatch) -> None:
    tasks = Attempt.tasks
    patch.setattr(Attempt, "tasks", lambda attempt, _stored, _found: tasks(attempt, set(), set()))


@guarantee("E32", "attempts of the Spark sink that run at the same time store each row once", plant=own_producers)
@pytest.mark.parametrize("pause", [0, 1, 3])
def test_two_attempts_at_once_store_each_row_once(topics: Topics, pause: int) -> None:
    """The earlier one sleeps before its first row (0) or later while the other one writes all, and then goes on: all
    its rows are stored, in more batches than the broker remembers. Each counts what the broker acknowledged to it.
    """
    topic, numbers = f"both-{pause}-{next(NUMBERS)}", list(range(300))
    topics.create(topic, 2)
    attempts = Attempts(topics, topic, numbers)
    attempts.start("earlier", pause)
    assert bool(topics.numbers(topic)) == (pause > 0)
    later = write(topics, topic, tables(numbers))
    earlier = attempts.end("earlier")
    assert isinstance(earlier, TaskWritten), earlier
    assert earlier.written + earlier.found == later.written + later.found == 300
    assert sorted(topics.numbers(topic)) == numbers


def test_two_attempts_that_both_begin_before_their_first_row_write_once(topics: Topics) -> None:
    """Each reads the register and the claim when it has a row; the second adopts the first one's claim."""
    topics.create("first", 2)
    numbers = list(range(300))
    attempts = Attempts(topics, "first", numbers)
    attempts.start("one", 0)
    attempts.start("two", 0)
    assert attempts.end("one") == TaskWritten(300, 0)
    assert attempts.end("two") == TaskWritten(0, 300)
    assert sorted(topics.numbers("first")) == numbers


def test_an_attempt_of_an_earlier_batch_is_refused(topics: Topics) -> None:
    topics.create("zombie", 2)
    numbers = list(range(300))
    attempts = Attempts(topics, "zombie", numbers)
    attempts.start("earlier", 3)
    write(topics, "zombie", tables(numbers))
    assert write(topics, "zombie", tables([1]), batch=1) == TaskWritten(1, 0)
    refused = attempts.end("earlier")
    assert isinstance(refused, ClaimError)
    assert "is written, and so is a later batch" in str(refused)
    assert sorted(topics.numbers("zombie")) == sorted([*numbers, 1])


def test_an_attempt_that_was_not_alone_and_has_another_order_reports_no_success(topics: Topics) -> None:
    """The broker takes its batches for those of the other attempt, which have other rows."""
    topics.create("unordered", 1)
    numbers = [number for number in range(300) if number % 3]
    attempts = Attempts(topics, "unordered", numbers)
    attempts.start("first", 1)
    attempts.start("second", 2, numbers=numbers[::-1])
    first, second = attempts.end("first"), attempts.end("second")
    found = sorted(topics.numbers("unordered"))
    for outcome in (first, second):
        assert found == numbers if isinstance(outcome, TaskWritten) else isinstance(outcome, ClaimError)
    assert write_or_error(topics, "unordered", numbers) == (found == numbers)


def write_or_error(topics: Topics, topic: str, numbers: list[int]) -> bool:
    try:
        write(topics, topic, tables(numbers))
    except ClaimError:
        return False
    return True


def test_a_repeated_micro_batch_of_any_size_is_completed(topics: Topics) -> None:
    """By the driver's next run, with more batches in each partition than the broker remembers; twice."""
    topics.create("again", 2)
    numbers = list(range(2000))
    stop_at("sink.produced", 30)
    with pytest.raises(StoppedError):
        write(topics, "again", tables(numbers), run="first")
    faults.install(None)
    stored = len(topics.numbers("again"))
    assert write(topics, "again", tables(numbers), run="second") == TaskWritten(2000 - stored, stored)
    assert write(topics, "again", tables(numbers), run="third") == TaskWritten(0, 2000)
    assert sorted(topics.numbers("again")) == numbers


@guarantee("E33", "a micro-batch repeated with another number of tasks stores no row", plant=wait_for_no_task)
def test_a_run_with_another_number_of_tasks_stores_nothing_and_is_refused(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks became three: task 2 has rows that task 1 stored. The first number of tasks completes the batch."""
    monkeypatch.setattr(writing, "FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(writing, "LONGEST_DELAY_S", 0.001)
    topic, numbers = f"tasks-{next(NUMBERS)}", list(range(300))
    topics.create(topic, 2)

    def run(name: str, tasks: int, task: int) -> TaskWritten:
        mine = numbers[task * 300 // tasks : (task + 1) * 300 // tasks]
        return write(topics, topic, tables(mine), run=name, task=task)

    run("first", 2, 1)
    stop_at("sink.produced", 2)
    with pytest.raises(StoppedError):
        run("first", 2, 0)
    faults.install(None)
    stored = sorted(topics.numbers(topic))
    with pytest.raises(ClaimError, match=r"tasks 0, 1, .* the number of tasks has changed \(minPartitions"):
        run("second", 3, 2)
    with pytest.raises(ClaimError, match="rows that this one does not have"):
        run("second", 3, 1)
    with pytest.raises(ClaimError, match="tasks 1, "):
        run("second", 3, 0)
    assert sorted(topics.numbers(topic)) == stored
    assert run("third", 2, 1) == TaskWritten(0, 150)
    assert run("third", 2, 0).written == 300 - len(stored)
    assert sorted(topics.numbers(topic)) == numbers


def test_a_batch_that_is_repeated_when_brokers_have_forgotten_its_producer_is_found(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `producer.id.expiration.ms`: the register is older than the new claim, and the rows are in the log."""
    topics.create("forgotten", 2)
    numbers = list(range(300))
    stop_at("sink.produced", 7)
    with pytest.raises(StoppedError):
        write(topics, "forgotten", tables(numbers), run="first")
    faults.install(None)
    stored = len(topics.numbers("forgotten"))
    topics.replace(CLAIMS_TOPIC, partitions=CLAIM_PARTITIONS)  # the claims are gone too
    assert write(topics, "forgotten", tables(numbers), run="second") == TaskWritten(300 - stored, stored)
    assert sorted(topics.numbers("forgotten")) == numbers


def test_a_task_that_a_live_driver_repeats_when_brokers_have_forgotten_its_producer_is_found(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker stores a second claim; the first one in the log counts."""
    topics.create("idle", 2)
    numbers = list(range(300))
    stop_at("sink.produced", 7)
    with pytest.raises(StoppedError):
        write(topics, "idle", tables(numbers), run="first")
    faults.install(None)
    stored = len(topics.numbers("idle"))
    monkeypatch.setattr(ProducerState, "check", lambda _state, _header: None)
    assert write(topics, "idle", tables(numbers), run="first") == TaskWritten(300 - stored, stored)
    assert sorted(topics.numbers("idle")) == numbers


@pytest.mark.parametrize("order", ["same", "other"])
def test_a_batch_of_an_earlier_attempt_that_becomes_visible_late_is_not_taken_for_this_ones(
    topics: Topics, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """The earlier attempt's rows are not yet below the high watermark when the later one looks for them: the broker
    takes the later one's first batch for a duplicate of the stored one. It looks again.
    """
    topic, numbers = f"late-{order}", list(range(100, 200))
    topics.create(topic, 1)
    stop_at("sink.produced", 1)
    with pytest.raises(StoppedError):
        write(topics, topic, iter([rows(numbers, key=pa.array(map(str, numbers)))]))
    faults.install(None)
    hidden = iter((True, True))

    def late(client: ClusterClient, partitions: Iterable[TopicPartition], edge: int) -> dict[TopicPartition, int]:
        ends = edges(client, partitions, edge)
        return dict.fromkeys(ends, 0) if next(hidden, False) else ends

    monkeypatch.setattr(stored, "edges", late)
    again = numbers if order == "same" else numbers[::-1]
    found = write(topics, topic, iter([rows(again, key=pa.array(map(str, again)))]))
    assert found.written + found.found == 100
    assert sorted(topics.numbers(topic)) == numbers


def test_a_claim_that_was_stored_in_part_is_made_again(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker did not know an added partition yet: keys would go to fewer partitions than there are."""
    topics.create("half", 2)
    commit = ClusterClient.commit_offsets

    def without_the_last(client: ClusterClient, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        commit(client, group, {tp: offset for tp, offset in offsets.items() if tp.partition == 0})
        raise BrokerError(ErrorCode.unknown_topic_or_partition, "half-1")

    with monkeypatch.context() as patched:
        patched.setattr(ClusterClient, "commit_offsets", without_the_last)
        with pytest.raises(BrokerError):
            write(topics, "half", tables([*range(50)]))
    assert write(topics, "half", tables([*range(50)])) == TaskWritten(50, 0)
    assert {partition for partition, _ in topics.records("half")} == {0, 1}


def test_a_batch_that_comes_with_other_rows_is_refused(topics: Topics) -> None:
    topics.create("others", 1)
    write(topics, "others", tables([1, 2, 3]))
    with pytest.raises(ClaimError, match="stored 1 rows that this one does not have"):
        write(topics, "others", tables([1, 2]))
    with pytest.raises(ClaimError, match="stored 3 rows that this one does not have"):
        write(topics, "others", iter(()))


def test_a_batch_from_before_is_refused(topics: Topics) -> None:
    topics.create("before", 1)
    for batch in (0, 1):
        write(topics, "before", tables([batch]), batch=batch)
    with pytest.raises(ClaimError, match="so is batch 1; was an older checkpoint restored"):
        write(topics, "before", tables([0]), batch=0)
    assert topics.numbers("before") == [0, 1]


def test_a_topic_that_was_created_again_has_nothing_of_an_earlier_attempt(topics: Topics) -> None:
    topics.create("renewed", 1)
    write(topics, "renewed", tables([1, 2]))
    topics.replace("renewed")
    assert write(topics, "renewed", tables([1, 2])) == TaskWritten(2, 0)
    assert topics.numbers("renewed") == [1, 2]


def test_rows_with_headers_and_times_of_their_own_are_known_again(topics: Topics) -> None:
    topics.create("known", 1)

    def batch() -> pa.RecordBatch:
        stamps = pa.array([START_MS * 1000 + 1000 * i for i in range(40)], pa.timestamp("us", tz="UTC"))
        pairs = pa.array([[{"key": "n", "value": b"%d" % i}] for i in range(40)], HEADERS)
        return rows([7] * 40, headers=pairs, timestamp=stamps)

    stop_at("sink.produced", 2)
    with pytest.raises(StoppedError):
        write(topics, "known", iter([batch()]))
    faults.install(None)
    assert write(topics, "known", iter([batch()])).found
    found = [(record.timestamp_ms, record.headers) for _, record in topics.records("known")]
    assert found == [(START_MS + i, (("n", b"%d" % i),)) for i in range(40)]


def test_a_row_that_cannot_be_stored_is_one_line(topics: Topics) -> None:
    topics.create("lines", 2)
    with pytest.raises(SchemaError, match="topic lines has 2 partitions; there is no partition 5"):
        write(topics, "lines", iter([rows([1], partition=pa.array([5], pa.int32()))]))
    for pairs in ([{"key": None, "value": b"v"}], [None]):
        with pytest.raises(SchemaError, match="topic lines: a header of the batch's row 2 has no name"):
            write(topics, "lines", iter([rows([1, 2, 3], headers=pa.array([[], None, pairs], HEADERS))]))
    with pytest.raises(SchemaError, match="a row has no topic"):
        write(topics, None, iter([rows([1], topic=pa.array([None], pa.string()))]))


@pytest.mark.parametrize(
    ("given", "columns", "why"),
    [
        ({"topic": "t"}, {"value": StringType()}, "needs the option kafka.bootstrap.servers"),
        ({**GIVEN, "topics": "t"}, {"value": StringType()}, "unknown option 'topics'; did you mean 'topic'"),
        (GIVEN, {"key": StringType()}, "needs a column value; there are key"),
        (GIVEN, {"value": LongType()}, "column value is bigint; it takes bytes or text"),
        (GIVEN, {"value": StringType(), "offset": LongType()}, "there is no column 'offset' to write"),
        (GIVEN, {"value": StringType(), "headers": IntegerType()}, "column headers is int; it takes array<struct"),
        ({**GIVEN, "kafka.delivery.timeout.ms": "no"}, {"value": StringType()}, "expected a whole number from 1"),
        ({"kafka.bootstrap.servers": "h:1"}, {"value": StringType()}, "needs the option topic, or a column topic"),
    ],
)
def test_what_cannot_be_written_is_said_before_it_is(given: dict[str, str], columns: dict[str, Any], why: str) -> None:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    with pytest.raises(ConfigError) as caught:
        sink_options(given, schema)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_have_kafkas_names() -> None:
    options = parse_sink_options({**GIVEN, "kafka.compression.type": "ZSTD", "checkpointlocation": "/x"})
    assert (options.topic, options.compression, options.delivery_timeout_s) == ("t", "zstd", 120.0)


def test_a_write_and_a_query_of_spark_store_each_row(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """By Spark itself: a batch with a column of topics, and a stream from one topic to another."""
    spark.dataSource.register(KlammDataSource)
    for topic in ("batch-a", "batch-b", "copied"):
        topics.create(topic, 2)
    # Spark looks for a sink in the active session, which this makes of the one that the source is registered in.
    frame = spark.createDataFrame([(number,) for number in range(100)], "id long").selectExpr(
        "if(id % 2 = 0, 'batch-a', 'batch-b') topic", "cast(id as string) key", "cast(id as string) value"
    )
    frame.write.format("klamm").option("kafka.bootstrap.servers", topics.bootstrap).mode("append").save()
    assert sorted(topics.numbers("batch-a")) == list(range(0, 100, 2))
    assert sorted(topics.numbers("batch-b")) == list(range(1, 100, 2))
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark has several kinds for a failing Python source
        frame.write.format("klamm").option("kafka.bootstrap.servers", topics.bootstrap).mode("overwrite").save()
    assert 'use mode("append")' in reason_of(caught.value)
    read = spark.readStream.format("klamm").option("kafka.bootstrap.servers", topics.bootstrap)
    source = read.options(subscribe="batch-a", startingOffsets="earliest", includeHeaders="true").load()
    writer = source.select("key", "value", "headers", "timestamp").writeStream.format("klamm")
    writer = writer.option("kafka.bootstrap.servers", topics.bootstrap).option("topic", "copied")
    for _ in range(2):
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(int(WAIT_S))
    assert sorted(topics.numbers("copied")) == list(range(0, 100, 2))


@contextmanager
def faults_of_workers(spark: SparkSession, rules: str) -> Iterator[None]:
    """Gives these rules, as in `KLAMM_FAULTS`, to Spark's Python workers of the source and the sink."""
    environment = spark.sparkContext.environment
    environment[VARIABLE] = rules
    spark.dataSource.register(KlammDataSource)  # with the environment of its workers
    try:
        yield
    finally:
        del environment[VARIABLE]
        spark.dataSource.register(KlammDataSource)


@pytest.mark.parametrize("point", ["sink.claimed", "sink.written"])
def test_a_query_whose_workers_are_killed_is_completed_from_its_checkpoint(
    spark: SparkSession, topics: Topics, tmp_path: Path, point: str
) -> None:
    """Each worker of the micro-batch gets SIGKILL. tests/docs/test_example_jobs.py kills the driver when a part
    is sent."""
    source, sink = f"from-{point}", f"to-{point}"
    for topic in (source, sink):
        topics.create(topic, 2)
    for partition in range(2):
        topics.produce(source, partition, range(30 * partition, 30 * partition + 30))

    def run() -> None:
        reader = spark.readStream.format("klamm").option("kafka.bootstrap.servers", topics.bootstrap)
        frame = reader.options(subscribe=source, startingOffsets="earliest").load().select("value")
        writer = frame.writeStream.format("klamm").option("kafka.bootstrap.servers", topics.bootstrap)
        writer = writer.option("topic", sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(int(WAIT_S))

    with (
        faults_of_workers(spark, f"{point}=kill"),
        pytest.raises(StreamingQueryException, match="Python worker exited unexpectedly"),
    ):
        run()
    assert bool(topics.numbers(sink)) == (point != "sink.claimed")
    topics.produce(source, 0, range(60, 70))  # for the micro-batch after the one that is done again
    run()
    assert sorted(topics.numbers(sink)) == list(range(70))
