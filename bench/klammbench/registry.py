"""`python -m klammbench.registry`: the schema registry with 50,000 schemas: start, reads by id, registrations, memory.

The registry is a process of its own beside a broker (`klamm registry`), on one core if the machine has two; the load
comes from another process on the other core. Prints a line for each target, and with `--report` writes the figures
into `docs/registry.md`. Exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klamm.schemas.names import SCHEMA_TOPIC
from klamm.schemas.registry.log import TOPIC_CONFIGS
from klamm.schemas.store.records import SchemaRecord, encode
from klamm.schemas.store.schema import SchemaText
from klammbench.figures import write_figures
from klammbench.paths import DOCS
from klammbench.process import cpu_seconds, pss_bytes
from klammbench.targets import Target, figure
from klammtest.broker import KLAMM, RunningBroker, running_broker
from klammtest.ports import free_port
from klammtest.replicated.cluster import running_cluster

SCHEMAS: Final = 50_000
VERSIONS: Final = 10
"""Of each subject."""
RATE: Final = 2000
CONNECTIONS: Final = 16
WRITERS: Final = 8


@dataclass
class Found:
    start_s: list[float] = field(default_factory=list)
    """From the start of the process to the first answer that it is ready."""
    load_cpu_s: list[float] = field(default_factory=list)
    """CPU time of that, less what it takes without schemas."""
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    get_us: list[float] = field(default_factory=list)
    """CPU time of the registry for each GET."""
    memory_mb: float = 0.0
    empty_mb: float = 0.0
    one: list[float] = field(default_factory=list)
    """Registrations per second."""
    register_ms: float = 0.0
    """CPU time of the registry for each registration."""
    three: list[float] = field(default_factory=list)


def text_of(number: int) -> str:
    """A schema of some 400 characters, with a name of its own."""
    fields = ",".join(f'{{"name":"field_{index}","type":["null","string"],"default":null}}' for index in range(6))
    return f'{{"type":"record","name":"Event{number}","namespace":"bench.registry","fields":[{fields}]}}'


def fill(broker: RunningBroker, total: int) -> None:
    """Writes the records of `total` schemas."""
    with ClusterClient(broker.bootstrap, codecs=CodecTable()) as client:
        client.create_topics({SCHEMA_TOPIC: NewTopic(1, configs=TOPIC_CONFIGS)})
        for first in range(0, total, 500):
            rows = []
            for number in range(first, min(first + 500, total)):
                record = SchemaRecord(
                    f"subject-{number // VERSIONS}-value",
                    number % VERSIONS + 1,
                    number + 1,
                    SchemaText(text_of(number)),
                )
                rows.append((1_700_000_000_000, *encode(record), ()))
            client.produce({TopicPartition(SCHEMA_TOPIC, 0): encode_batch(rows)})


def pinned(cpu: int) -> list[str]:
    """Returns the command that binds another one to a core, if there are two."""
    return ["taskset", "-c", str(cpu)] if len(os.sched_getaffinity(0)) > 1 else []


@contextmanager
def registry(folder: Path, broker: RunningBroker) -> Iterator[tuple[subprocess.Popen[bytes], int, float]]:
    """Runs a registry; yields the process, its port and the seconds until it was ready."""
    port = free_port()
    command = [*pinned(0), KLAMM, "registry", "-c", str(broker.config_path), "--bootstrap", broker.bootstrap]
    command += ["--listener", f"http://127.0.0.1:{port}"]
    begin = time.perf_counter()
    with (folder / f"registry-{port}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        while not ready(port):
            if process.poll() is not None:
                raise RuntimeError(f"the registry has ended: {(folder / f'registry-{port}.log').read_text()[-500:]}")
            time.sleep(0.005)
        yield process, port, time.perf_counter() - begin
    finally:
        process.terminate()
        process.wait(30)


def ready(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


async def read_by_id(port: int, total: int, seconds: float, rate: int) -> list[float]:
    """Sends GETs of random ids at a fixed rate; returns their latencies in seconds, each from when it was due."""
    requests, found, chance = asyncio.Queue[float](), list[float](), random.Random(7)
    headers = f"Host: 127.0.0.1:{port}\r\nAccept: application/vnd.schemaregistry.v1+json\r\n\r\n"

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while (due := await requests.get()) >= 0:
                target = f"GET /schemas/ids/{chance.randint(1, total)}?subject= HTTP/1.1\r\n"
                writer.write((target + headers).encode())
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 "), head
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                await reader.readexactly(size)
                found.append(time.perf_counter() - due)
        finally:
            writer.close()

    running = [asyncio.create_task(connection()) for _ in range(CONNECTIONS)]
    begin = time.perf_counter()
    for number in range(int(seconds * rate)):
        due = begin + number / rate
        if (left := due - time.perf_counter()) > 0:
            await asyncio.sleep(left)
        requests.put_nowait(due)
    for _ in running:
        requests.put_nowait(-1.0)
    await asyncio.gather(*running)
    return found


def registrations(ports: list[int], seconds: float) -> float:
    """Registers new schemas through these registries at once; returns how many a second."""
    done, stop = [0] * WRITERS, time.perf_counter() + seconds

    def register(writer: int) -> None:
        connection = HTTPConnection("127.0.0.1", ports[writer % len(ports)], timeout=60)
        number = 0
        while time.perf_counter() < stop:
            number += 1
            text = text_of(10_000_000 * (writer + 1) + number)
            connection.request(
                "POST", f"/subjects/w{writer}-{number}/versions", json.dumps({"schema": text}).encode(),
                {"Content-Type": "application/vnd.schemaregistry.v1+json"},
            )  # fmt: skip
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, body
            done[writer] = number
        connection.close()

    begin = time.perf_counter()
    threads = [threading.Thread(target=register, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - begin)


def load_process(port: int, total: int, seconds: float) -> list[float]:
    """Runs `read_by_id` in a process of its own, on the other core."""
    command = [*pinned(1), sys.executable, "-m", "klammbench.registry", "--drive", f"{port},{total},{seconds}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    return [float(word) for word in done.stdout.split()]


def measured(*, quick: bool) -> Found:
    found, total = Found(), SCHEMAS
    rounds, seconds = (1, 4.0) if quick else (3, 10.0)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        with running_broker(folder / "one") as broker, registry(folder, broker) as (process, port, _):
            base_s = cpu_seconds([process.pid])
            found.empty_mb = pss_bytes([process.pid]) / 1e6
            found.one = [registrations([port], seconds / 2) for _ in range(rounds)]
            spent = cpu_seconds([process.pid]) - base_s
            found.register_ms = spent / (statistics.mean(found.one) * rounds * seconds / 2) * 1000
        with running_broker(folder / "full") as broker:
            fill(broker, total)
            for _ in range(rounds):
                with registry(folder, broker) as (process, port, start_s):
                    found.start_s.append(start_s)
                    found.load_cpu_s.append(cpu_seconds([process.pid]) - base_s)
                    found.memory_mb = pss_bytes([process.pid]) / 1e6
                    load_process(port, total, 1.0)  # warm
                    before = cpu_seconds([process.pid])
                    latencies = sorted(load_process(port, total, seconds))
                    spent = cpu_seconds([process.pid]) - before
                    found.get_us.append(spent / len(latencies) * 1e6)
                    found.p50_ms.append(latencies[len(latencies) // 2] * 1000)
                    found.p99_ms.append(latencies[len(latencies) * 99 // 100] * 1000)
        with ExitStack() as stack:
            coordination = {"plugin": "embedded", "path": str(folder / "coordination.db")}
            cluster = stack.enter_context(running_cluster(folder / "three", coordination))
            cluster.create_topic(SCHEMA_TOPIC, 1, TOPIC_CONFIGS)
            cluster.await_in_sync(SCHEMA_TOPIC, 1)
            ports = [stack.enter_context(registry(folder, node))[1] for node in cluster.brokers]
            found.three = [registrations(ports, seconds / 2) for _ in range(rounds)]
    return found


def targets(found: Found) -> list[Target]:
    def middle(values: list[float]) -> float:
        return statistics.median(values)

    busy = middle(found.get_us) * RATE / 1e6
    return [
        Target("registry-start-s", middle(found.start_s), 5, at_least=False,
               remarks=[f"{SCHEMAS:,} schemas; {middle(found.load_cpu_s):.2f} s of CPU more than without any"]),
        Target("registry-get-p99-ms", middle(found.p99_ms), 2, at_least=False,
               remarks=[f"{RATE:,} GET /schemas/ids/ID a second; median {middle(found.p50_ms):.2f} ms; load average "
                        f"{os.getloadavg()[0]:.1f}"]),
        Target("registry-get-per-core", 1e6 / middle(found.get_us), RATE,
               remarks=[f"{middle(found.get_us):.0f} us of CPU for each; {busy:.0%} of a core at {RATE:,}/s"]),
    ]  # fmt: skip


def lines(found: Found) -> list[str]:
    shown = [line for target in targets(found) for line in target.lines()]
    return [
        *shown,
        f"registrations: {statistics.median(found.one):.0f}/s by one registry beside one broker, "
        f"{statistics.median(found.three):.0f}/s by three beside three brokers (acks=all), {WRITERS} writers; "
        f"{found.register_ms:.1f} ms of the registry's CPU for each",
        f"memory: {figure(found.memory_mb)} MB with {SCHEMAS:,} schemas, {figure(found.empty_mb)} MB without any (PSS)",
        "another registry beside it: none, PyPI has no `karapace`",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="klammbench.registry", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, under a minute")
    parser.add_argument("--report", action="store_true", help="write the figures into docs/registry.md")
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        port, total, seconds = given.drive.split(",")
        print(*asyncio.run(read_by_id(int(port), int(total), float(seconds), RATE)))
        return 0
    found = measured(quick=given.quick)
    print("\n".join(lines(found)), flush=True)
    if given.report:
        write_figures(DOCS / "registry.md", "registry", lines(found))
    return 0 if all(target.met for target in targets(found)) else 1


if __name__ == "__main__":
    sys.exit(main())
