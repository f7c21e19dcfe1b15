"""Profiles the broker's CPU time: a broker in this process under load, sampled each ms of CPU that it uses.

    python bench/profile_broker.py [--batch 65536] [--connections 8] [--depth 5] [--seconds 5] [--lines 25]

`--batch 0` sends requests of one 100-byte message (shape c), a size in bytes fills batches of that many (shape b). The
load comes from another process. A sample counts for the Python function that was running or had called into C or the
kernel: `self` is the function alone, `with callees` includes all that it called. Above the table: requests per second,
CPU per request, and the kernel's share of it.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import uvloop

import klamm
from klamm.core.broker.server import Broker
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.config.settings import Settings, load_settings
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import request_frame
from klamm.core.records.encode import encode_batch
from klammtest.ports import free_port

TOPIC, PARTITIONS, VERSION = "profile", 12, 9
SAMPLE_S = 0.001
WARM_UP_S = 1.0
ROOT = str(Path(klamm.__file__).resolve().parents[2])


def frames(batch_bytes: int) -> list[bytes]:
    """Returns a ready-made Produce request for each partition."""
    schema = messages.request(ApiKey.PRODUCE, VERSION)
    now = int(time.time() * 1000)
    made = []
    for partition in range(PARTITIONS):
        batch = bytes(encode_batch([(now, None, os.urandom(100), ())] * max(1, batch_bytes // 107)))
        part = schema.part("PartitionProduceData", index=partition, records=batch)
        topic = schema.part("TopicProduceData", name=TOPIC, partition_data=(part,))
        body = schema.encode(
            schema.build(transactional_id=None, acks=1, timeout=timedelta(seconds=30), topic_data=(topic,))
        )
        made.append(request_frame(ApiKey.PRODUCE, VERSION, partition, "profile", body))
    return made


def load(port: int, options: argparse.Namespace) -> None:
    """Sends the load until this process is ended: `depth` requests in flight on each connection. Runs in its own
    process.
    """
    ready = frames(options.batch)
    selector = selectors.DefaultSelector()
    for number in range(options.connections):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(b"".join(ready[(number + i) % PARTITIONS] for i in range(options.depth)))
        selector.register(connection, selectors.EVENT_READ, [number + options.depth, b""])
    while True:
        for key, _ in selector.select():
            state, connection = key.data, key.fileobj
            data = state[1] + connection.recv(65536)
            answered = 0
            while len(data) >= 4 and len(data) >= 4 + (size := int.from_bytes(data[:4], "big")):
                data, answered = data[4 + size :], answered + 1
            connection.sendall(b"".join(ready[(state[0] + i) % PARTITIONS] for i in range(answered)))
            state[0], state[1] = state[0] + answered, data


class Sampler:
    """Counts, each ms of this process's CPU, the functions on the main thread's stack."""

    def __init__(self) -> None:
        self.alone: Counter[str] = Counter()
        self.below: Counter[str] = Counter()
        self.samples = 0

    def __call__(self, _: int, frame: FrameType | None) -> None:
        self.samples += 1
        names = []
        while frame is not None:
            names.append(f"{frame.f_code.co_qualname} ({frame.f_code.co_filename.removeprefix(ROOT)})")
            frame = frame.f_back
        self.alone[names[0]] += 1
        self.below.update(set(names))

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def table(self, lines: int) -> str:
        rows = ["   self  with callees"]
        for name, count in self.alone.most_common(lines):
            rows.append(f"{count / self.samples:7.1%} {self.below[name] / self.samples:13.1%}  {name}")
        return "\n".join(rows)


def settings(folder: str, port: int) -> Settings:
    return load_settings(
        {
            "broker": {"listeners": f"PLAINTEXT://127.0.0.1:{port}", "log.dirs": f"{folder}/data"},
            "coordination": {"plugin": "embedded", "path": f"{folder}/coordination.db"},
        }
    )


def create_topic(chosen: Settings, port: int) -> None:
    with ClusterClient(f"127.0.0.1:{port}", codecs=chosen.codec_table()) as client:
        client.create_topics({TOPIC: NewTopic(PARTITIONS, 1)})


async def measured(port: int, chosen: Settings, options: argparse.Namespace) -> None:
    broker = Broker(chosen)
    await broker.start()
    await asyncio.to_thread(create_topic, chosen, port)
    driver = multiprocessing.get_context("spawn").Process(target=load, args=(port, options), daemon=True)
    driver.start()
    log = Path(chosen.broker.log_dirs) / f"{TOPIC}-0"
    sampler = Sampler()
    size = len(frames(options.batch)[0])
    while not any(path.stat().st_size for path in log.glob("*.log")):
        await asyncio.sleep(0.05)
    await asyncio.sleep(WARM_UP_S)
    before, begun, stored = os.times(), time.monotonic(), stored_bytes(log.parent)
    sampler.start()
    await asyncio.sleep(options.seconds)
    sampler.stop()
    after, seconds = os.times(), time.monotonic() - begun
    requests = (stored_bytes(log.parent) - stored) / size
    driver.kill()
    user, system = after.user - before.user, after.system - before.system
    cpu = user + system
    print(
        f"{requests / seconds:,.0f} requests/s of {size:,} bytes, {cpu / requests * 1e6:.1f} us of CPU each, "
        f"{system / cpu:.0%} of it in the kernel"
    )
    print(sampler.table(options.lines))
    await broker.stop()


def stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob(f"{TOPIC}-*/*.log"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=65536)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--lines", type=int, default=25)
    options = parser.parse_args()
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(measured(port, settings(folder, port), options))


if __name__ == "__main__":
    main()
