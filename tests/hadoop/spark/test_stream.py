"""`spark.readStream.format("klamm")` on a real broker: the reader by itself, and with a real Spark."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable

from klamm.core.broker.handlers import dispatch
from klamm.core.broker.request import Request
from klamm.core.client.errors import DataLossError, UnknownTopicError
from klamm.core.errors import ConfigError
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.options import Reading, parse_options
from klamm.hadoop.source import KlammDataSource
from klamm.hadoop.spark.columns import source_columns
from klamm.hadoop.spark.stream import KlammStreamReader, StreamOffsets
from klammtest.brokers.served import T0, Served, served
from klammtest.clients.numbered import START_MS, WAIT_S, Topics, number_topics
from klammtest.guarantees import guarantee


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with number_topics(tmp_path_factory.mktemp("stream")) as made:
        yield made


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def open_reader(topics: Topics) -> Iterator[Callable[..., KlammStreamReader]]:
    opened: list[KlammStreamReader] = []

    def make(clock: Callable[[], float] = time.monotonic, **options: str) -> KlammStreamReader:
        said = parse_options({"kafka.bootstrap.servers": topics.bootstrap, **options}, Reading.STREAM)
        opened.append(KlammStreamReader(said, source_columns(headers=False, quarantine=False), clock))
        return opened[-1]

    yield make
    for reader in opened:
        reader.stop()


def values_of(reader: KlammStreamReader, start: dict[str, Any]) -> tuple[list[bytes], dict[str, Any]]:
    """One micro-batch: what was read, and where it ended."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    found = [
        value
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for value in batch.column("value").to_pylist()
    ]
    return found, end


def step(reader: KlammStreamReader, start: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    found, end = values_of(reader, start)
    return [int(value) for value in found], end


def test_each_record_is_read_once_and_offsets_know_their_topic(
    topics: Topics, open_reader: Callable[..., KlammStreamReader]
) -> None:
    topics.create("once", 2)
    topics.produce("once", 0, range(10))
    reader = open_reader(subscribe="once", startingOffsets="earliest")
    start = reader.initialOffset()
    assert start["once"]["offsets"] == {"0": 0, "1": 0}
    assert start["once"]["id"] == str(topics.client.topic_ids(["once"])["once"])
    found, end = step(reader, start)
    assert sorted(found) == list(range(10))
    topics.produce("once", 1, range(10, 15))
    found, end = step(open_reader(subscribe="once"), end)  # as after a restart
    assert found == list(range(10, 15))
    assert step(reader, end) == ([], end)
    reported = reader.reportLatestOffset()
    assert reported is not None
    assert reported["once"]["offsets"] == end["once"]["offsets"]


def test_a_stream_begins_at_the_end_unless_told_otherwise(
    topics: Topics, open_reader: Callable[..., KlammStreamReader]
) -> None:
    topics.create("begin", 1)
    topics.produce("begin", 0, range(10))

    def first(**options: str) -> Any:
        return open_reader(subscribe="begin", **options).initialOffset()["begin"]["offsets"]["0"]

    assert first() == 10
    assert first(startingOffsets='{"begin":{"0":4}}') == 4
    assert first(startingTimestamp=str(START_MS + 3)) == 3
    assert first(startingOffsetsByTimestamp=f'{{"begin":{{"0":{START_MS + 7}}}}}') == 7
    late = str(START_MS + 1000)
    assert first(startingTimestamp=late, startingOffsetsByTimestampStrategy="latest") == 10
    with pytest.raises(ConfigError, match="begin-0 has no record at or after its starting time"):
        first(startingTimestamp=late)
    with pytest.raises(DataLossError, match="offset 99 was requested, but the log has 0 to 10"):
        first(startingOffsets='{"begin":{"0":99}}')
    assert first(startingOffsets='{"begin":{"0":99}}', failOnDataLoss="false") == 10


def test_new_partitions_and_new_topics_of_a_pattern_are_read_from_their_beginning(
    topics: Topics, open_reader: Callable[..., KlammStreamReader]
) -> None:
    topics.create("grow-a", 1)
    reader = open_reader(subscribePattern="grow-.*")
    found, end = step(reader, reader.initialOffset())
    topics.client.create_partitions("grow-a", 2)
    topics.create("grow-b", 1)
    topics.produce("grow-a", 1, range(5))
    topics.produce("grow-b", 0, range(5, 8))
    found, end = step(reader, end)
    assert sorted(found) == list(range(8))
    assert {topic: said["offsets"] for topic, said in end.items()} == {"grow-a": {"0": 0, "1": 5}, "grow-b": {"0": 3}}


def test_a_micro_batch_has_at_most_so_many_offsets_and_waits_for_at_least_so_many(
    topics: Topics, open_reader: Callable[..., KlammStreamReader]
) -> None:
    topics.create("paced", 2)
    topics.produce("paced", 0, range(7))
    topics.produce("paced", 1, range(7, 10))
    clock = Clock()
    options = {"maxOffsetsPerTrigger": "4", "minOffsetsPerTrigger": "3", "maxTriggerDelay": "10s"}
    reader = open_reader(clock, subscribe="paced", startingOffsets="earliest", **options)
    start = reader.initialOffset()
    sizes = []
    for _ in range(3):
        found, start = step(reader, start)
        sizes.append(len(found))
    assert sizes == [4, 4, 0]  # two are left, and three make a micro-batch
    clock.now = 11.0
    assert len(step(reader, start)[0]) == 2
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["paced"]["offsets"] == {"0": 7, "1": 3}


def test_all_that_is_available_now_ends_where_the_log_ended_then(
    topics: Topics, open_reader: Callable[..., KlammStreamReader]
) -> None:
    topics.create("now", 1)
    topics.produce("now", 0, range(5))
    options = {"maxOffsetsPerTrigger": "3", "minOffsetsPerTrigger": "3"}
    reader = open_reader(subscribe="now", startingOffsets="earliest", **options)
    reader.prepareForTriggerAvailableNow()
    topics.produce("now", 0, range(5, 9))
    topics.client.create_partitions("now", 2)
    start = reader.initialOffset()
    found, start = step(reader, {"now": {"id": start["now"]["id"], "offsets": {"0": 0}}})
    more, end = step(reader, start)
    assert found + more == list(range(5))
    assert step(reader, end) == ([], end)


def test_a_topic_that_was_deleted_and_created_again_is_refused(
    topics: Topics, open_reader: Callable[..., KlammStreamReader]
) -> None:
    topics.create("again", 1)
    topics.produce("again", 0, range(3))
    strict, lenient = open_reader(subscribe="again"), open_reader(subscribe="again", failOnDataLoss="false")
    end = strict.initialOffset()
    before = strict.partitions({"again": {**end["again"], "offsets": {"0": 0}}}, without_batches(end))
    topics.replace("again")
    topics.produce("again", 0, range(100, 105))
    with pytest.raises(DataLossError, match="'again' was deleted"):
        strict.latestOffset(end, ReadAllAvailable())
    with pytest.raises(DataLossError, match="'again' was deleted"):
        strict.partitions(end, end)
    with pytest.raises(DataLossError, match="'again' was deleted"):  # planned before, read after
        list(strict.read(before[0]))
    assert step(lenient, end)[0] == list(range(100, 105))


def without_batches(end: dict[str, Any]) -> dict[str, Any]:
    """Returns the offsets without what shows the log's history."""
    return {topic: {"id": said["id"], "offsets": said["offsets"]} for topic, said in end.items()}


def ignore_history(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StreamOffsets, "from_json", classmethod(lambda cls, said: plain(without_batches(said))))


plain = StreamOffsets.from_json


def reader_of(at: Served, **options: str) -> KlammStreamReader:
    said = {"kafka.bootstrap.servers": at.bootstrap, "subscribe": "t", "startingOffsets": "earliest", **options}
    return KlammStreamReader(parse_options(said, Reading.STREAM), source_columns(headers=False, quarantine=False))


def restored(folder: Path, *, with_coordination: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """70 records, a backup, 50 more, and a micro-batch of all; then the backup instead of the log. Returns the offsets
    at which the micro-batch began and ended."""
    with served(folder) as at:
        at.produce(range(70))
    shutil.copytree(folder / "broker", folder / "backup")
    with served(folder) as at, closing_reader(reader_of(at)) as reader:
        at.produce(range(70, 120))
        begin = reader.initialOffset()
        found, end = values_of(reader, begin)
        assert len(found) == 120
    gone = folder / "broker" if with_coordination else folder / "broker" / "data"
    shutil.rmtree(gone)
    shutil.copytree(folder / "backup" / gone.relative_to(folder / "broker"), gone)
    return begin, end


@contextmanager
def closing_reader(reader: KlammStreamReader) -> Iterator[KlammStreamReader]:
    try:
        yield reader
    finally:
        reader.stop()


@guarantee("A1", "a stream refuses a log that was restored from an older backup", plant=ignore_history)
@pytest.mark.parametrize("with_coordination", [False, True])
def test_a_restored_log_that_has_grown_again_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_coordination: bool
) -> None:
    monkeypatch.setattr("klamm.core.cluster.clock_floors.leader_epoch_floor", lambda _: 0)  # epochs come a second time
    begin, end = restored(tmp_path, with_coordination=with_coordination)
    with served(tmp_path) as at, closing_reader(reader_of(at)) as reader:
        at.produce(range(1000, 1100))
        with pytest.raises(DataLossError, match="t-0: read up to offset 120, but the log was cut below it") as caught:
            reader.latestOffset(end, ReadAllAvailable())
        assert "\n" not in str(caught.value)
        with pytest.raises(DataLossError, match="t-0: read up to offset 120"):  # planned before, run again after
            reader.partitions(begin, end)


def test_a_restored_log_is_read_from_where_it_is_the_same_when_loss_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin, end = restored(tmp_path, with_coordination=False)
    with served(tmp_path) as at, closing_reader(reader_of(at, failOnDataLoss="false")) as reader:
        at.produce(range(1000, 1030))  # up to offset 100: below what was read
        assert sum(task.value.size for task in reader.partitions(begin, end)) == 70
        found, end = values_of(reader, end)
        assert found == [b"v%d" % n for n in range(1000, 1030)]
        assert "t-0: read up to offset 120, but the log was cut below it" in caplog.text
        assert "continues at offset 70" in caplog.text
        caplog.clear()
        at.produce(range(1030, 1050))
        assert values_of(reader, end)[0] == [b"v%d" % n for n in range(1030, 1050)]
        assert "cut below" not in caplog.text


def test_a_restart_of_the_broker_changes_no_history(tmp_path: Path) -> None:
    with served(tmp_path) as at, closing_reader(reader_of(at)) as reader:
        at.produce(range(30))
        _, end = values_of(reader, reader.initialOffset())
    with served(tmp_path) as at, closing_reader(reader_of(at)) as reader:
        assert values_of(reader, end) == ([], end)
        at.client.delete_records({T0: 30})
        at.produce(range(30, 40))
        assert len(values_of(reader, end)[0]) == 10


def test_a_query_that_ends_before_its_first_micro_batch_is_done_begins_where_it_began(
    topics: Topics, open_reader: Callable[..., KlammStreamReader]
) -> None:
    """Spark asks for the initial offset again, which is the end of the log by now."""
    topics.create("first", 2)
    topics.produce("first", 0, range(5))
    before = open_reader(subscribe="first")
    start = before.initialOffset()
    topics.produce("first", 0, range(5, 8))
    end = before.latestOffset(start, ReadAllAvailable())
    topics.produce("first", 1, range(8, 10))
    after = open_reader(subscribe="first")
    (task,) = after.partitions(after.initialOffset(), end)
    assert (task.value.start, task.value.end) == (5, 8)
    found, later = step(after, end)
    assert found == [8, 9]
    assert "begin" not in later["first"]
    assert step(after, later) == ([], later)


def test_a_topic_that_is_gone_is_data_loss(topics: Topics, open_reader: Callable[..., KlammStreamReader]) -> None:
    topics.create("gone", 1)
    topics.produce("gone", 0, range(3))
    strict, lenient = open_reader(subscribe="gone"), open_reader(subscribe="gone", failOnDataLoss="false")
    end = strict.initialOffset()
    topics.client.delete_topics(["gone"])
    with pytest.raises(UnknownTopicError, match="gone"):
        strict.latestOffset(end, ReadAllAvailable())
    assert step(lenient, end) == ([], end)


@pytest.mark.parametrize("named", [{"subscribe": "left,stays"}, {"assign": '{"left": [0], "stays": [0]}'}])
def test_a_topic_that_is_gone_does_not_hold_up_the_others(
    topics: Topics, open_reader: Callable[..., KlammStreamReader], named: dict[str, str]
) -> None:
    """With failOnDataLoss=false. The topic that was made again has other offsets."""
    for topic in ("left", "stays"):
        topics.create(topic, 1)
    topics.produce("left", 0, range(5))
    reader = open_reader(**named, failOnDataLoss="false", startingOffsets="earliest")
    found, end = step(reader, reader.initialOffset())
    assert found == [*range(5)]
    topics.client.delete_topics(["left"])
    topics.produce("stays", 0, range(100, 110))
    assert list(reader.reportLatestOffset() or {}) == ["stays"]
    found, end = step(reader, end)
    assert found == [*range(100, 110)]
    topics.create_again("left")
    topics.produce("left", 0, range(200, 203))
    topics.produce("stays", 0, range(110, 112))
    found, end = step(reader, end)
    assert sorted(found) == [110, 111, 200, 201, 202]
    topics.client.delete_topics(["left", "stays"])


def test_a_topic_that_goes_while_all_that_is_available_now_is_read(
    topics: Topics, open_reader: Callable[..., KlammStreamReader]
) -> None:
    for name in ("going", "staying"):
        topics.create(name, 1)
        topics.produce(name, 0, range(3))
    options = {"subscribe": "going,staying", "startingOffsets": "earliest"}
    lenient = open_reader(failOnDataLoss="false", **options)
    lenient.prepareForTriggerAvailableNow()
    start = lenient.initialOffset()
    topics.client.delete_topics(["going"])
    found, end = step(lenient, start)
    assert found == [0, 1, 2]
    assert "batches" not in end["going"]
    with pytest.raises(UnknownTopicError, match="going"):
        open_reader(**options).latestOffset(start, ReadAllAvailable())


def test_offsets_that_retention_took_are_data_loss(
    topics: Topics, open_reader: Callable[..., KlammStreamReader]
) -> None:
    topics.create("short", 1)
    topics.produce("short", 0, range(6))
    strict = open_reader(subscribe="short", startingOffsets="earliest")
    start = strict.initialOffset()
    topics.client.delete_records({TopicPartition("short", 0): 6})
    topics.produce("short", 0, range(6, 8))
    with pytest.raises(DataLossError, match="the offsets 0 to 6 were deleted"):
        step(strict, start)
    assert step(open_reader(subscribe="short", failOnDataLoss="false"), start)[0] == [6, 7]


@pytest.mark.parametrize("start", [{"t": {"0": 5}}, {"t": 5}, {"t": {"id": "x", "offsets": {"0": 1}}}])
def test_a_checkpoint_of_another_source_is_refused_in_one_line(
    open_reader: Callable[..., KlammStreamReader], start: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="no offsets of this source"):
        open_reader(subscribe="t").latestOffset(start, ReadAllAvailable())


def stream(spark: SparkSession, topics: Topics, **options: str) -> DataFrame:
    spark.dataSource.register(KlammDataSource)
    reader = spark.readStream.format("klamm").option("kafka.bootstrap.servers", topics.bootstrap)
    return reader.options(**options).load()


def test_a_query_goes_on_from_its_checkpoint(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topics.create("query", 2)
    topics.produce("query", 0, range(20))
    sizes: list[int] = []
    found: list[int] = []

    def keep(frame: DataFrame, _: int) -> None:
        rows = [int(row["value"]) for row in frame.select("value").collect()]
        sizes.append(len(rows))
        found.extend(rows)

    def run() -> None:
        frame = stream(spark, topics, subscribe="query", startingOffsets="earliest", maxOffsetsPerTrigger="8")
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(int(WAIT_S))

    run()
    assert (sorted(found), [size for size in sizes if size]) == (list(range(20)), [8, 8, 4])
    topics.produce("query", 1, range(20, 25))
    run()
    run()
    assert sorted(found) == list(range(25))


def test_brokers_see_the_client_id_that_group_id_prefix_gives(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source has no consumer group. ListOffsets is the driver's request, Fetch a task's."""
    topics.create("named", 1)
    topics.produce("named", 0, range(5))
    asked: dict[ApiKey, set[str]] = {}

    class SeenRequest(Request):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            asked.setdefault(self.api, set()).add(self.client_id)

    monkeypatch.setattr(dispatch, "Request", SeenRequest)
    frame = stream(spark, topics, subscribe="named", startingOffsets="earliest", groupIdPrefix="nightly")
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(int(WAIT_S))
    found = {*asked[ApiKey.LIST_OFFSETS], *asked[ApiKey.FETCH]}
    assert found
    assert all(name.startswith("nightly") for name in found), found


def test_a_query_waits_for_so_many_offsets_but_no_longer_than_the_delay(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """Two queries of one topic, which differ in `maxTriggerDelay` alone."""
    topics.create("delayed", 1)
    topics.produce("delayed", 0, range(3))
    sizes: dict[str, list[int]] = {"1s": [], "1h": []}  # of the micro-batches, by the delay

    def start(delay: str) -> StreamingQuery:
        def keep(frame: DataFrame, _: int) -> None:
            sizes[delay].append(frame.count())

        options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "10", "maxTriggerDelay": delay}
        writer = stream(spark, topics, subscribe="delayed", **options).writeStream.foreachBatch(keep)
        return writer.option("checkpointLocation", str(tmp_path / delay)).start()

    queries: list[StreamingQuery] = []

    def until(impatient: list[int], patient: list[int]) -> None:
        deadline = time.monotonic() + WAIT_S
        while sizes != {"1s": impatient, "1h": patient}:
            for query in queries:
                assert query.exception() is None
            assert time.monotonic() < deadline, sizes
            time.sleep(0.1)

    try:
        queries.append(start("1s"))  # one after the other: Spark gives each Python process that starts 10 s
        until([3], [])  # the first micro-batch does not wait
        queries.append(start("1h"))
        until([3], [3])
        topics.produce("delayed", 0, range(3, 6))
        until([3, 3], [3])
        topics.produce("delayed", 0, range(6, 16))
        until([3, 3, 10], [3, 13])
    finally:
        for query in queries:
            query.stop()


def test_a_partition_that_is_new_while_the_query_runs_is_read(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.create("running", 1)
    topics.produce("running", 0, range(3))
    frame = stream(spark, topics, subscribe="running", startingOffsets="earliest")
    writer = frame.selectExpr("cast(value as string) value").writeStream.format("memory").queryName("running")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def values() -> list[int]:
        return sorted(int(row["value"]) for row in spark.sql("select value from running").collect())

    def until(count: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while len(values()) < count:
            assert query.exception() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)

    try:
        until(3)
        topics.client.create_partitions("running", 2)
        topics.produce("running", 1, range(3, 6))
        until(6)
    finally:
        query.stop()
    assert values() == list(range(6))


def test_a_query_that_dies_in_its_first_micro_batch_begins_where_it_began(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """`latest` is another offset when it is started again."""
    topics.create("dies", 1)
    topics.produce("dies", 0, range(5))
    found: list[int] = []

    def die(frame: DataFrame, _: int) -> None:
        raise RuntimeError("in the first micro-batch")

    def keep(frame: DataFrame, _: int) -> None:
        found.extend(int(row["value"]) for row in frame.select("value").collect())

    def start(with_each: Callable[[DataFrame, int], None]) -> StreamingQuery:
        writer = stream(spark, topics, subscribe="dies").writeStream.foreachBatch(with_each)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    with pytest.raises(StreamingQueryException, match="in the first micro-batch"):
        start(die).awaitTermination(int(WAIT_S))
    topics.produce("dies", 0, range(5, 8))
    query = start(keep)
    try:
        deadline = time.monotonic() + WAIT_S
        while len(found) < 3:
            assert query.exception() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        query.stop()
    assert found == [5, 6, 7]
