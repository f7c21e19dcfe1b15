"""Measures the cost of a load per record, step by step, on one thread, without Spark, broker and lake.

`python bench/load_steps.py` prints CPU microseconds per record (the minimum over the rounds) for flights in batches of
zstd: reading them into columns, decoding Avro, separating rows on disk by directory, and writing, reading back and
counting Parquet.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from klamm.core.client.reader.range_reader import OffsetRange
from klamm.core.config.settings import load_settings
from klamm.core.interfaces.envelope import SchemaKey
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.columnar import chunks as chunks_module
from klamm.hadoop.columnar.chunks import ReadRanges
from klamm.hadoop.columnar.files import WriteFiles
from klamm.hadoop.columnar.job import pieces_of
from klamm.hadoop.load.reading import RECORDS
from klamm.hadoop.load.rows import RowFormat, RowMaker
from klamm.hadoop.options import ReadOptions
from klamm.hadoop.spark.arrow import spark_batches
from klamm.plugins.demo.flights import load_flights
from klamm.schemas.avro.parsing import parse_type
from klamm.schemas.columns.arrowtype import arrow_type
from klamm.schemas.columns.writer import ColumnWriter
from klammbench.stored_answers import StoredAnswers

PARTITION = TopicPartition("flights", 0)
BATCH_RECORDS = 600
ANSWER_BATCHES = 100
SCHEMA = Path(__file__).resolve().parents[1] / "plugins" / "demo" / "flights.avsc"
PREFIX = b"\x00\x00\x00\x00\x01"
STEPS = ("read", "decode", "chunks", "files")


def stored_flights(records: int, codecs: CodecTable) -> StoredAnswers:
    """Returns answers of `ANSWER_BATCHES` batches of flights each, as Avro in Confluent's envelope."""
    text = SCHEMA.read_text()
    flights = load_flights().slice(0, records).combine_chunks()
    rows = pa.StructArray.from_arrays([c.combine_chunks() for c in flights.columns], names=flights.column_names)
    payloads = ColumnWriter(parse_type(text))(rows.cast(arrow_type(parse_type(text))))
    assert payloads is not None
    made = [(1_700_000_000_000 + n, None, PREFIX + value, ()) for n, value in enumerate(payloads.to_pylist())]
    answers: dict[int, bytes] = {}
    step = BATCH_RECORDS * ANSWER_BATCHES
    for base in range(0, records, step):
        answer = made[base : base + step]
        parts = [
            encode_batch(answer[at : at + BATCH_RECORDS], base_offset=base + at, codec=codecs.by_name("zstd"))
            for at in range(0, len(answer), BATCH_RECORDS)
        ]
        answers[base] = b"".join(map(bytes, parts))
    return StoredAnswers(answers, records, codecs)


def measure(log: StoredAnswers, folder: Path) -> dict[str, float]:
    """Returns the CPU seconds of each step."""
    text = SCHEMA.read_text()
    writers = {SchemaKey(schema_id=1): text}
    format_ = RowFormat("flights", ("dt", "hr"), text, writers, "confluent", (), 0, 10**16, quarantine=False)
    maker = RowMaker(format_)
    if spare := next(iter(spark_batches(log.reader(PARTITION).arrow_batches(), PARTITION, pa.schema(RECORDS))), None):
        maker.placed(spare)  # builds the decoder, outside the measurement
    reader = log.reader(PARTITION)
    clock = [time.process_time()]
    read = list(spark_batches(reader.arrow_batches(), PARTITION, pa.schema(RECORDS)))
    clock.append(time.process_time())
    for batch in read:
        maker.placed(batch)
    clock.append(time.process_time())
    chunks_module.read_records = lambda *_, **__: iter(read)  # type: ignore[assignment]
    options = ReadOptions("", (), fail_on_data_loss=True, quarantine=False)
    (found,) = ReadRanges(options, [OffsetRange(PARTITION, 0, log.end)], format_, str(folder))([0])
    clock.append(time.process_time())
    list(WriteFiles(str(folder / "lake"), "snappy", 1 << 27, 600_000)(pieces_of(found.chunks, 1 << 27)))
    clock.append(time.process_time())
    spent = dict(zip(STEPS, (after - before for before, after in pairwise(clock)), strict=True))
    spent["chunks"] -= spent["decode"]  # this step includes decoding
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=300_000)
    args = parser.parse_args()
    log = stored_flights(args.records, load_settings({}).codec_table())
    found: list[dict[str, float]] = []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(log, Path(folder)))
    least = {step: min(spent[step] for spent in found) / args.records * 1e6 for step in STEPS}
    print(f"{args.records} flights: {', '.join(f'{step} {cost:.2f}' for step, cost in least.items())} us a record")


if __name__ == "__main__":
    main()
