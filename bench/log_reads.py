"""Measures the cost of `log.verify.on.read`: a log in the page cache is read from end to end, alternately with and
without.

`python bench/log_reads.py --mib 256` prints a line for each size of record: MB per CPU second of the log's own read (no
broker, no network) without and with the check of every CRC, as medians of the rounds, and how much longer it takes.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from klamm.core.config.sections.topic import TopicConfig
from klamm.core.log.manager import LogManager
from klamm.core.log.partition_log import PartitionLog
from klamm.core.records import native
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition

SHAPES = ((100, 600), (1_000, 64), (16_000, 4), (100, 1))
"""(bytes of a record, records of a batch)."""
FETCH_BYTES = 1 << 20


def fill(folder: Path, size: int, record: int, records: int) -> PartitionLog:
    logs = LogManager(folder, broker_id=0, cluster_id="bench", codecs=CodecTable())
    log = logs.create(TopicPartition("bench", 0), UUID(int=1), TopicConfig())
    batch = bytearray(encode_batch([(1_700_000_000_000, None, os.urandom(record), ())] * records))
    for _ in range(min(size // len(batch), 200_000)):
        log.append_as_leader(batch, 0)
    log.advance_high_watermark(log.log_end_offset)
    return log


def read(log: PartitionLog, records: int, *, verify: bool) -> float:
    """Returns the MB per CPU second of one pass over the log."""
    log.verify_on_read = verify
    batch = log.size // (log.log_end_offset // records)
    at, size, began = 0, 0, time.thread_time()
    while at < log.log_end_offset:
        data = log.read(at, FETCH_BYTES).data
        size += len(data)
        at += len(data) // batch * records
    return size / (time.thread_time() - began) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    module = f"{native.IMPLEMENTATION} module"
    print(f"{platform.node()}, {os.cpu_count()} cores, Python {platform.python_version()}, {module}, "
          f"{datetime.now(UTC):%Y-%m-%d}")  # fmt: skip
    for record, records in SHAPES:
        with tempfile.TemporaryDirectory(prefix="klamm-reads-") as folder:
            log = fill(Path(folder), options.mib << 20, record, records)
            rates: dict[bool, list[float]] = {False: [], True: []}
            for turn in range(2 * options.rounds):
                rates[bool(turn % 2)].append(read(log, records, verify=bool(turn % 2)))
            plain, verified = (statistics.median(rates[verify]) for verify in (False, True))
            print(f"{records} records of {record} bytes a batch: {plain:.0f} MB a CPU second, with log.verify.on.read "
                  f"{verified:.0f} ({100 * (plain / verified - 1):.0f} % more time)", flush=True)  # fmt: skip
            log.close(clean=False)


if __name__ == "__main__":
    main()
