"""Measures the cost of `verify.payload`: a broker under the raw driver of `make bench`, each codec alternately with and
without.

    python bench/verify_payload.py [--rounds 5] [--batch 65536] [--message 100] [--codecs none,lz4]

Prints a line for each codec: MB/s of message values and broker CPU seconds per GB of them, without and with the records
read, as medians of the rounds, and the median of the ratios within rounds. `--batch 0` sends requests of one message,
with one in flight on each of eight connections.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.records import native
from klamm.core.records.codecs import CodecTable
from klammbench.drivers.raw import Batch, Load, drive
from klammbench.process import cpu_seconds
from klammtest.broker import RunningBroker, running_broker

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 12


def measure(broker: RunningBroker, topic: str, batch: Batch, load: Load) -> tuple[float, float]:
    """Returns MB/s and broker CPU seconds per GB."""
    before = cpu_seconds([broker.pid])
    got = drive(broker.bootstrap, topic, PARTITIONS, batch, load)
    spent = cpu_seconds([broker.pid]) - before
    payload = got.requests * batch.messages * batch.message_bytes
    return payload / got.seconds / 1e6, spent / (payload * got.all_bytes / got.bytes) * 1e9


def rounds_of(
    broker: RunningBroker, codec: str, options: argparse.Namespace
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Returns the figures without and with `verify.payload`, round by round."""
    if options.batch:
        batch, load = Batch.of_size(options.batch, options.message, codec), Load(4, depth=5, measure_s=1.0)
    else:
        batch, load = Batch(1, options.message, codec), Load(8, measure_s=1.0)
    found: dict[str, list[tuple[float, float]]] = {"none": [], "all": []}
    for number in range(options.rounds):
        for verified in ("none", "all") if number % 2 else ("all", "none"):
            topic = f"{codec}-{verified}-{number}"
            with ClusterClient(broker.bootstrap, codecs=CodecTable()) as client:
                configs = {"verify.payload": verified, "file.delete.delay.ms": "0"}
                client.create_topics({topic: NewTopic(PARTITIONS, configs=configs)})
                found[verified].append(measure(broker, topic, batch, load))
                client.delete_topics([topic])
    return found["none"], found["all"]


def line(codec: str, without: Sequence[tuple[float, float]], verified: Sequence[tuple[float, float]]) -> str:
    columns = [f"{codec:7}"]
    for index, digits in ((0, 0), (1, 2)):
        off, on = ([one[index] for one in each] for each in (without, verified))
        ratio = statistics.median(b / a for a, b in zip(off, on, strict=True))
        columns.append(f"{statistics.median(off):8.{digits}f} {statistics.median(on):8.{digits}f} {ratio:6.2f}")
    return " | ".join(columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--message", type=int, default=100)
    parser.add_argument("--codecs", default=",".join(CODECS))
    options = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {platform.python_version()}, {native.IMPLEMENTATION}, {options}")
    print("codec   | MB/s off, on, on/off     | broker CPU s/GB off, on, on/off")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, running_broker(Path(folder)) as broker:
        for codec in options.codecs.split(","):
            print(line(codec, *rounds_of(broker, codec, options)), flush=True)


if __name__ == "__main__":
    main()
