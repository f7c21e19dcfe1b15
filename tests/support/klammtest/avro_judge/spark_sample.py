"""Cases through Spark itself: `klamm.typed` reads a broker's topic into a DataFrame and writes the DataFrame to another
topic. `SparkTask` of `klamm_avro` calls what the tasks call, for every case; this is the rest of the way.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.session import start_session
from klamm.hadoop.source import KlammDataSource
from klamm.schemas.registry.log import TopicSchemaLog
from klammtest.clients.numbered import START_MS, Topics, number_topics
from klammtest.hadoop.hdfs_client import SPARK
from klammtest.schemas import add, stored

from .cases import Case
from .comparison import Difference, Judged
from .klamm_avro import PREFIX, Refused, SparkTask, attempt
from .schemas import definitions
from .values_as import ColumnReading

Json = Any
_TYPED: Final = {"klamm.typed": "true"}


def suits(case: Case, java: dict[str, Any]) -> bool:
    """Returns True for records that can be read and written without an error: one error ends a whole job."""
    if any(case.foreign) or "read" not in java or any("error" in one for one in java["read"]):
        return False
    for schema in (case.writer, case.reader):
        if not isinstance(schema, dict) or schema["type"] != "record" or not schema["fields"]:
            return False  # other values are columns too, but a table's rows are records with fields
    payloads = [bytes.fromhex(raw) for raw in java["bytes"]]
    for reader in (case.reader_text, case.writer_text):
        task = attempt(partial(SparkTask, case.writer_text, reader))
        if isinstance(task, Refused) or any(isinstance(one, Refused) for one in task.read(payloads)):
            return False
    return True


class SparkSample:
    def __init__(self, spark: SparkSession, topics: Topics, log: TopicSchemaLog) -> None:
        self._spark = spark
        self._topics = topics
        self._log = log
        self._ids = 0

    def judge(self, case: Case, java: dict[str, Any]) -> Judged:
        """Reads the case with the reader's schema, then with the writer's, and writes what it read."""
        judged = Judged(case)
        payloads = [bytes.fromhex(raw) for raw in java["bytes"]]
        name = f"c{self._ids}"
        self._topic(f"{name}r", [case.writer_text, case.reader_text], payloads)
        reading = ColumnReading(definitions(case.reader))
        for theirs, ours in zip(java["read"], self._collected(f"{name}r"), strict=True):
            judged.checked("spark sample read")
            for part in reading.compare(case.reader, theirs["value"], ours):
                one = Difference("spark sample read", part.where, part.java, part.klamm, part.rule)
                judged.add(one, java)
        self._topic(f"{name}w", [case.writer_text], payloads)
        written_id = self._topic(f"{name}again", [case.writer_text], [])
        self._write(self._frame(f"{name}w").select("value"), f"{name}again")
        found = [(record.value or b"") for _, record in self._topics.records(f"{name}again")]
        prefix = PREFIX[:1] + written_id.to_bytes(4, "big")
        for raw, mine in zip(payloads, found, strict=True):
            judged.checked("spark sample write")
            if mine != prefix + raw:
                judged.add(Difference("spark sample write", "", raw.hex(), mine.hex()), java)
        return judged

    def _topic(self, name: str, versions: Sequence[str], payloads: Sequence[bytes]) -> int:
        """Makes a topic with these versions of its schema and payloads of the first; returns the first's id."""
        self._topics.create(name)
        first = self._ids + 1
        for version, text in enumerate(versions, start=1):
            self._ids += 1
            add(self._log, stored(f"{name}-value", version, self._ids, text))
        if payloads:
            prefix = PREFIX[:1] + first.to_bytes(4, "big")
            rows = [(START_MS, None, prefix + raw, ()) for raw in payloads]
            self._topics.client.produce({TopicPartition(name, 0): encode_batch(rows)})
        return first

    def _frame(self, topic: str) -> DataFrame:
        given = {"kafka.bootstrap.servers": self._topics.bootstrap, "subscribe": topic}
        return self._spark.read.format("klamm").options(**given, **_TYPED).load()

    def _collected(self, topic: str) -> list[pa.Scalar]:
        frame = self._frame(topic).select("offset", "value").sort("offset").coalesce(1)
        parts = [pa.ipc.open_stream(row["part"]) for row in frame.mapInArrow(_streams(), "part binary").collect()]
        batches = [batch for part in parts for batch in part]
        for batch in batches:
            batch.validate(full=True)
        return [value for batch in batches for value in batch.column("value")]

    def _write(self, frame: DataFrame, topic: str) -> None:
        given = {"kafka.bootstrap.servers": self._topics.bootstrap, "topic": topic}
        frame.write.format("klamm").options(**given, **_TYPED).mode("append").save()


def _streams() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function for `mapInArrow` that returns each batch as it is, in Arrow's stream format.

    `DataFrame.toArrow` casts the collected batches to the type that they have already, and pyarrow's `cast` loses nulls
    in lists and maps (apache/arrow#43838): `pa.array([[None, None]], pa.list_(pa.null()))`, cast to its own type, has
    one item.
    """

    def streamed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            yield pa.record_batch([pa.array([sink.getvalue().to_pybytes()], pa.binary())], names=["part"])

    return streamed  # Spark pickles a local function by value: its workers do not import this module


@contextmanager
def spark_sample() -> Iterator[SparkSample]:
    """Starts a broker and Spark."""
    with tempfile.TemporaryDirectory() as folder, number_topics(Path(folder)) as topics:
        spark = start_session(SPARK)
        spark.dataSource.register(KlammDataSource)
        try:
            with closing(TopicSchemaLog(ClusterClient(topics.bootstrap, codecs=CodecTable()))) as log:
                yield SparkSample(spark, topics, log)
        finally:
            spark.stop()
