"""`python -m klammbench.mirror`: a mirror of Klamm beside MirrorMaker 2, from one Apache Kafka.

The source is one Kafka broker with a topic that is full before the copy begins. Klamm's target is one broker of Klamm,
which copies the topic itself; MirrorMaker's target is one broker of Kafka, and its worker is a process of its own. CPU
and memory are those of the copying processes: Klamm's broker (with its embedded coordination) on one side, the worker
and Kafka's broker on the other. The source's CPU is printed beside them.

Rate and CPU are measured from when the target has a fifth of the topic until it has all of it, so that neither the
start nor the JVM's first compilations count. Memory is the largest proportional set size of a sample, every 0.3 s,
until the end. Then the source gets records at half of MirrorMaker's rate, for both, and records with the time of their
production in a topic of their own: their lag is the time until a consumer at the target has read them.

`DATA=/dev/shm` keeps all logs in memory, so that the disk decides nothing.

Prints a line for each target and writes, with `--report`, the figures into `docs/mirror.md`. Exits with 1 if a target
is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import confluent_kafka

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.config.settings import load_settings
from klamm.core.errors import KlammError
from klamm.core.records.partition import TopicPartition
from klammbench.drivers.raw import Batch, Load, drive, encoded
from klammbench.drivers.topics import make_topic
from klammbench.figures import write_figures
from klammbench.harness import BusyError, alone, end_on_signals
from klammbench.paths import DOCS, SYSTEM_DATA
from klammbench.process import cpu_seconds, pss_bytes
from klammbench.systems.base import System, remove
from klammbench.systems.kafka import TUNED, Kafka, kafka_version
from klammbench.systems.klamm import Klamm
from klammbench.systems.mirrormaker import MirrorMaker, version
from klammbench.targets import Target, figure

PARTITIONS: Final = 8
CODECS: Final = ("none", "lz4")
MESSAGE_BYTES: Final = 1000
BATCH_BYTES: Final = 16_384
"""Kafka's default `batch.size`, before compression."""
LIVE, PROBE = "live", "probe"
PROBES_PER_S: Final = 50
PATIENCE_S: Final = 120.0
SAMPLE_S: Final = 0.3


class Copier(Protocol):
    """A target broker, and what copies to it."""

    name: str

    @property
    def bootstrap(self) -> str: ...

    def start(self, topics: list[str], codec: str) -> None:
        """Starts the target and the copy."""
        ...

    def stop(self) -> None: ...

    def pids(self) -> list[int]: ...


class _KlammTarget(Klamm):
    """A broker with a link to the source."""

    def __init__(self, folder: Path, source: str, topics: list[str]) -> None:
        super().__init__("klamm-mirror", folder, zookeeper=False)
        self._link = {"bootstrap.servers": source, "topics": topics, "metadata.interval.ms": 5000}

    def _config(self) -> dict[str, object]:
        return super()._config() | {"mirrors": {"source": self._link}}

    def create_link(self) -> None:
        command = [str(self._command), "mirror", "create", "source", "--config", str(self._folder / "klamm.yaml")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"klamm mirror create: {done.stdout}{done.stderr}")


class KlammCopier:
    name = "klamm"

    def __init__(self, folder: Path, source: str) -> None:
        self._folder, self._source = folder, source
        self._target: _KlammTarget | None = None

    @property
    def bootstrap(self) -> str:
        return self._target.bootstrap if self._target else ""

    def start(self, topics: list[str], codec: str) -> None:  # noqa: ARG002 - batches stay as they are
        self._target = _KlammTarget(self._folder, self._source, topics)
        self._target.start()
        self._target.create_link()

    def stop(self) -> None:
        if self._target is not None:
            self._target.stop()
        remove(self._folder)

    def pids(self) -> list[int]:
        return self._target.pids() if self._target else []


class MirrorMakerCopier:
    name = "mirrormaker"

    def __init__(self, folder: Path, source: str) -> None:
        self._folder, self._source = folder, source
        self._target = Kafka("kafka-target", folder / "target", TUNED)
        self._worker: MirrorMaker | None = None

    @property
    def bootstrap(self) -> str:
        return self._target.bootstrap

    def start(self, topics: list[str], codec: str) -> None:
        self._target.start()
        self._worker = MirrorMaker(self._folder / "worker", self._source, self._target.bootstrap, topics, codec)
        self._worker.start()

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()
        self._target.stop()
        remove(self._folder)

    def pids(self) -> list[int]:
        return [*(self._worker.pids() if self._worker else []), *self._target.pids()]


@dataclass
class Figures:
    """Of one copier and codec, one value per round. GB and MB are of the source's log, as compressed there."""

    mb_per_s: list[float] = field(default_factory=list)
    cpu_s_per_gb: list[float] = field(default_factory=list)
    source_cpu_s_per_gb: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    lag_p50_ms: list[float] = field(default_factory=list)
    lag_p99_ms: list[float] = field(default_factory=list)
    half_mb_per_s: list[float] = field(default_factory=list)
    half_cores: list[float] = field(default_factory=list)


class Memory:
    """A context manager that samples the memory of the processes; `peak_mb` is the largest sum."""

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.peak_mb = 0.0

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self.peak_mb = max(self.peak_mb, pss_bytes(self._copier.pids()) / 1e6)


@contextlib.contextmanager
def client_of(bootstrap: str) -> Iterator[ClusterClient]:
    with ClusterClient(bootstrap, codecs=load_settings({}).codec_table()) as client:
        yield client


def stored(client: ClusterClient, topic: str, partitions: int) -> int:
    """Returns the number of records; 0 while the topic does not exist yet."""
    ends = {TopicPartition(topic, number): -1 for number in range(partitions)}
    try:
        return sum(offset for offset, _ in client.list_offsets(ends, timeout_s=5).values())
    except KlammError:
        return 0


def copy(source: System, copier: Copier, topic: str, total: int, record_bytes: float, found: Figures) -> None:
    """Waits until the target has the topic; notes rate and CPU from a fifth of it on."""
    with client_of(copier.bootstrap) as client:
        begin = spent = at_source = 0.0
        first, deadline = -1, time.monotonic() + PATIENCE_S
        while (here := stored(client, topic, PARTITIONS)) < total:
            now = time.monotonic()
            if first < 0 and here >= total / 5:
                first, begin, spent, at_source = here, now, cpu_seconds(copier.pids()), cpu_seconds(source.pids())
            if now > deadline:
                raise RuntimeError(f"{copier.name} has copied {here} of {total} records within {PATIENCE_S:g} s")
            time.sleep(0.02)
        seconds = time.monotonic() - begin
        spent, at_source = cpu_seconds(copier.pids()) - spent, cpu_seconds(source.pids()) - at_source
    if first < 0:
        raise RuntimeError(f"{copier.name} has copied {total} records at once: the topic is too small")
    size = (total - first) * record_bytes
    found.mb_per_s.append(size / 1e6 / seconds)
    found.cpu_s_per_gb.append(spent / (size / 1e9))
    found.source_cpu_s_per_gb.append(at_source / (size / 1e9))


def lags(source: str, target: str, stop: threading.Event) -> list[float]:
    """Writes probes to the source until `stop`; returns the seconds until each was read at the target."""
    quiet = {"log_level": 0}
    reader = confluent_kafka.Consumer(
        {"bootstrap.servers": target, "group.id": "probe", "fetch.wait.max.ms": 100, **quiet}
    )
    position = confluent_kafka.OFFSET_BEGINNING
    reader.assign([confluent_kafka.TopicPartition(PROBE, 0, position)])
    writer = confluent_kafka.Producer({"bootstrap.servers": source, "linger.ms": 0, **quiet})
    sent, found = 0, []

    def read(seconds: float) -> bool:
        message = reader.poll(seconds)
        if message is None or message.error() is not None:
            return False
        found.append((time.time_ns() - int(message.value() or b"0")) / 1e9)
        return True

    writer.produce(PROBE, str(time.time_ns()), partition=0)
    writer.flush(10)
    deadline = time.monotonic() + PATIENCE_S
    while not read(0.1):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the first record of {PROBE} was not copied within {PATIENCE_S:g} s")
    found.clear()
    due = time.monotonic()
    while not stop.is_set():
        writer.produce(PROBE, str(time.time_ns()), partition=0)
        writer.poll(0)
        sent, due = sent + 1, due + 1 / PROBES_PER_S
        while (left := due - time.monotonic()) > 0:
            read(left)
    writer.flush(10)
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < sent and time.monotonic() < deadline:
        read(0.1)
    reader.close()
    if len(found) < sent:
        raise RuntimeError(f"{sent - len(found)} of {sent} probes were not copied")
    return sorted(found)


def half_load(source: System, copier: Copier, codec: str, mb_per_s: float, seconds: float, found: Figures) -> None:
    """Notes the lag while the source gets that many MB per second, and the CPU of it."""
    batch, stop = batch_of(codec), threading.Event()
    rate = mb_per_s * 1e6 / len(encoded(batch))
    load = Load(8, rate=rate, warm_s=1.0, measure_s=seconds)  # Kafka handles one request of a connection at a time
    with ThreadPoolExecutor(1) as beside:
        probes = beside.submit(lags, source.bootstrap, copier.bootstrap, stop)
        try:
            before, begin = cpu_seconds(copier.pids()), time.monotonic()
            outcome = drive(source.bootstrap, LIVE, PARTITIONS, batch, load)
            spent = cpu_seconds(copier.pids()) - before
            found.half_cores.append(spent / (time.monotonic() - begin))
            found.half_mb_per_s.append(outcome.bytes / outcome.seconds / 1e6)
        finally:
            stop.set()
        sample = probes.result()
    found.lag_p50_ms.append(sample[len(sample) // 2] * 1000)
    found.lag_p99_ms.append(sample[len(sample) * 99 // 100] * 1000)


def batch_of(codec: str) -> Batch:
    return Batch.of_size(BATCH_BYTES, MESSAGE_BYTES, codec)


def fill(source: System, topic: str, codec: str, megabytes: float) -> tuple[int, float]:
    """Returns the number of records in the topic, and the bytes of each in the log."""
    make_topic(source, topic, PARTITIONS)
    batch = batch_of(codec)
    drive(source.bootstrap, topic, PARTITIONS, batch, Load(2, 4, 0.0, 60.0, megabytes * 1e6))
    with client_of(source.bootstrap) as client:
        return stored(client, topic, PARTITIONS), len(encoded(batch)) / batch.messages


def measured(data: Path, *, quick: bool) -> dict[str, dict[str, Figures]]:
    """Returns the figures by codec and by copier. `data`: the folder of all logs."""
    rounds, megabytes, seconds = (1, 600.0, 5.0) if quick else (3, 1500.0, 15.0)
    found = {codec: {name: Figures() for name in ("mirrormaker", "klamm")} for codec in CODECS}
    remove(data)
    source = Kafka("kafka-source", data / "source", TUNED)
    try:
        source.start()
        totals = {codec: fill(source, f"full-{codec}", codec, megabytes) for codec in CODECS}
        for _ in range(rounds):
            for codec, (total, record_bytes) in totals.items():
                for name in ("mirrormaker", "klamm"):  # the first decides the load of both
                    make_topic(source, LIVE, PARTITIONS)
                    make_topic(source, PROBE, 1)
                    of = found[codec][name]
                    kind = MirrorMakerCopier if name == "mirrormaker" else KlammCopier
                    copier: Copier = kind(data / name, source.bootstrap)
                    try:
                        copier.start([f"full-{codec}", LIVE, PROBE], codec)
                        with Memory(copier) as memory:
                            copy(source, copier, f"full-{codec}", total, record_bytes, of)
                            half = found[codec]["mirrormaker"].mb_per_s[-1] / 2
                            half_load(source, copier, codec, half, seconds, of)
                        of.memory_mb.append(memory.peak_mb)
                    finally:
                        copier.stop()
                        delete_topics(source, (LIVE, PROBE))
                    print(line(codec, name, of), flush=True)
    finally:
        source.stop()
        remove(data)
    return found


def delete_topics(source: System, names: tuple[str, ...]) -> None:
    with client_of(source.bootstrap) as client:
        client.delete_topics(names)
        deadline = time.monotonic() + 10
        while set(names) & set(client.metadata().topics) and time.monotonic() < deadline:
            time.sleep(0.1)


def line(codec: str, name: str, found: Figures) -> str:
    """Returns the medians as a line."""

    def middle(values: list[float]) -> str:
        return figure(statistics.median(values))

    return (
        f"{codec:>5} {name:>11}: {middle(found.mb_per_s):>5} MB/s, {middle(found.cpu_s_per_gb):>5} s CPU per GB "
        f"(source {middle(found.source_cpu_s_per_gb)}), {middle(found.memory_mb):>5} MB; at "
        f"{middle(found.half_mb_per_s)} MB/s: lag p50 {middle(found.lag_p50_ms)} ms, p99 "
        f"{middle(found.lag_p99_ms)} ms, {middle(found.half_cores)} cores"
    )


def targets(found: Mapping[str, Mapping[str, Figures]]) -> list[Target]:
    """Returns the targets; the ratios are those of the worst codec, each the median of the rounds' ratios."""

    def ratios(of: str) -> dict[str, float]:
        return {
            codec: statistics.median(
                ours / theirs
                for ours, theirs in zip(getattr(each["klamm"], of), getattr(each["mirrormaker"], of), strict=True)
            )
            for codec, each in found.items()
        }

    def target(name: str, of: str, wanted: float, *, at_least: bool = False) -> Target:
        values = ratios(of)
        worst = min(values.values()) if at_least else max(values.values())
        each = ", ".join(f"{codec} {figure(value)}" for codec, value in values.items())
        return Target(name, worst, wanted, at_least, remarks=[f"Klamm's to MirrorMaker's: {each}"])

    lag = max(statistics.median(each["klamm"].lag_p99_ms) for each in found.values())
    theirs = max(statistics.median(each["mirrormaker"].lag_p99_ms) for each in found.values())
    return [
        target("mirror-rate", "mb_per_s", 3, at_least=True),
        target("mirror-cpu-per-gb", "cpu_s_per_gb", 0.3),
        target("mirror-memory", "memory_mb", 0.3),
        Target("mirror-lag-p99-ms", lag, 200, at_least=False, remarks=[f"MirrorMaker's: {figure(theirs)} ms"]),
    ]


def lines(found: Mapping[str, Mapping[str, Figures]]) -> list[str]:
    return [
        f"Apache Kafka {kafka_version()} as the source, {PARTITIONS} partitions, records of {MESSAGE_BYTES:,} bytes in "
        f"batches of {BATCH_BYTES:,} bytes before compression; MirrorMaker 2 {version()}",
        *(line(codec, name, of) for codec, each in found.items() for name, of in each.items()),
        *(text for target in targets(found) for text in target.lines()),
        f"load average {os.getloadavg()[0]:.1f}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="klammbench.mirror", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, under three minutes")
    parser.add_argument("--report", action="store_true", help="write the figures into docs/mirror.md")
    parser.add_argument(
        "--data", type=Path, default=SYSTEM_DATA, help="where the folder `mirror`, of all logs, is made anew"
    )
    given = parser.parse_args()
    end_on_signals()
    try:
        with alone():
            found = measured(given.data / "mirror", quick=given.quick)
    except BusyError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(lines(found)), flush=True)
    if given.report:
        write_figures(DOCS / "mirror.md", "mirror", lines(found))
    return 0 if all(target.met for target in targets(found)) else 1


if __name__ == "__main__":
    sys.exit(main())
