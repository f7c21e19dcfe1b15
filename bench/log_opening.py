"""Measures how long a log directory takes to open: after a clean stop, and after a kill with all, most or none of it
flushed.

`python bench/log_opening.py --gib 10 --partitions 200` writes real batches (no holes in the files), opens them four
times, each in a process of its own, prints a line for each and removes them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from uuid import UUID

from klamm.core.config.sections.topic import TopicConfig
from klamm.core.log.manager import LogManager
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition

RECORD = 1_000
RECORDS = 64
STOPS = ("clean", "killed", "tail", "unflushed")
"""The ways in which the broker stopped: cleanly; killed when all was flushed, as
`log.flush.offset.checkpoint.interval.ms` ensures; killed with the last hundredth not flushed; killed with nothing
flushed.
"""


def manager(folder: Path) -> LogManager:
    return LogManager(folder, broker_id=0, cluster_id="bench", codecs=CodecTable())


def fill(folder: Path, size: int, partitions: int, stop: str) -> None:
    """Writes the log directory; `stop` is one of `STOPS`."""
    logs = manager(folder)
    value = os.urandom(RECORD)
    batch = bytearray(encode_batch([(1_700_000_000_000, None, value, ())] * RECORDS))
    for partition in range(partitions):
        log = logs.create(TopicPartition("bench", partition), UUID(int=1), TopicConfig())
        count = size // partitions // len(batch)
        for number in range(count):
            if number == count - count // 100 and stop == "tail":
                log.flush(snapshot=True)
            log.append_as_leader(batch, 0)
        log.advance_high_watermark(log.log_end_offset)
        if stop == "killed":
            log.flush(snapshot=True)
    logs.write_checkpoints()
    logs.close(clean=stop == "clean")


def open_once(folder: Path) -> None:
    began = time.perf_counter()
    logs = manager(folder)
    seconds = time.perf_counter() - began
    found = logs.logs().values()
    fds = len(list(Path("/proc/self/fd").iterdir()))
    ends = sum(log.log_end_offset for log in found)
    print(f"{seconds:.2f} s, {len(found)} partitions, {ends} records, {fds} files open", flush=True)
    logs.close(clean=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=10.0)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=None, help="where to write, instead of the temporary folder")
    parser.add_argument("--stop", choices=STOPS, help="only this one")
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open:
        open_once(options.open)
        return
    for stop in (options.stop,) if options.stop else STOPS:
        with tempfile.TemporaryDirectory(prefix="klamm-opening-", dir=options.folder) as folder:
            fill(Path(folder), int(options.gib * 2**30), options.partitions, stop)
            print(f"{options.gib:g} GiB, {stop}: ", end="", flush=True)
            subprocess.run([sys.executable, __file__, "--open", folder], check=True)


if __name__ == "__main__":
    main()
