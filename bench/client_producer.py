"""How many records a second the producer takes and delivers, beside the other Python clients, on a broker of its own.

    python bench/client_producer.py [--records 200000] [--size 100] [--codec none] [--bootstrap HOST:PORT]

`send` is the time of the calls alone, µs for each (the record path of one thread); `delivered` is until the last
acknowledgement. Without --bootstrap a broker is started in a folder that is thrown away.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import pstats
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import klamm
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.config.settings import load_settings
from klammtest.broker import running_broker

TOPIC = "bench-producer"
PARTITIONS = 6
Run = Callable[["argparse.Namespace", str], tuple[float, float]]


def ours(given: argparse.Namespace, bootstrap: str, *, keyed: bool) -> tuple[float, float]:
    config = {
        "producer": {
            "bootstrap.servers": bootstrap,
            "linger.ms": 5,
            "batch.size": 65536,
            "compression.type": given.codec,
            "buffer.memory": 256 * 1024 * 1024,
        }
    }
    value, keys = b"x" * given.size, [b"key-%d" % n for n in range(1000)]
    with klamm.Producer(config) as producer:
        producer.send(TOPIC, value).result(30)
        begin = time.perf_counter()
        for n in range(given.records):
            producer.send(TOPIC, value, key=keys[n % 1000] if keyed else None)
        sent = time.perf_counter() - begin
        producer.flush()
        done = time.perf_counter() - begin
        assert producer.metrics()["acknowledged"] == given.records + 1
    return sent, done


def confluent(given: argparse.Namespace, bootstrap: str) -> tuple[float, float]:
    from confluent_kafka import Producer

    value, keys = b"x" * given.size, [b"key-%d" % n for n in range(1000)]
    options = {"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True}
    producer = Producer({**options, "compression.type": given.codec, "queue.buffering.max.messages": 2_000_000})
    producer.produce(TOPIC, value)
    producer.flush(30)
    acknowledged = [0]

    def done(error: object, _: object) -> None:
        assert error is None
        acknowledged[0] += 1

    begin = time.perf_counter()
    for n in range(given.records):
        producer.produce(TOPIC, value, key=keys[n % 1000], on_delivery=done)
        producer.poll(0)
    sent = time.perf_counter() - begin
    producer.flush(60)
    assert acknowledged[0] == given.records
    return sent, time.perf_counter() - begin


def kafka_python(given: argparse.Namespace, bootstrap: str) -> tuple[float, float]:
    from kafka import KafkaProducer

    value, keys = b"x" * given.size, [b"key-%d" % n for n in range(1000)]
    codec = None if given.codec == "none" else given.codec
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, linger_ms=5, batch_size=65536, compression_type=codec, enable_idempotence=True
    )
    producer.send(TOPIC, value).get(30)
    begin = time.perf_counter()
    for n in range(given.records):
        producer.send(TOPIC, value, key=keys[n % 1000])
    sent = time.perf_counter() - begin
    producer.flush(120)
    done = time.perf_counter() - begin
    producer.close()
    return sent, done


CLIENTS: dict[str, Run] = {
    "klamm, keys": lambda given, bootstrap: ours(given, bootstrap, keyed=True),
    "klamm, no key": lambda given, bootstrap: ours(given, bootstrap, keyed=False),
    "confluent-kafka (C)": confluent,
    "kafka-python": kafka_python,
}


@contextlib.contextmanager
def cluster(bootstrap: str | None) -> Iterator[str]:
    if bootstrap:
        yield bootstrap
        return
    with tempfile.TemporaryDirectory() as folder, running_broker(Path(folder)) as broker:
        yield broker.bootstrap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--codec", default="none")
    parser.add_argument("--bootstrap", help="an existing cluster; a broker is started without it")
    parser.add_argument("--only", choices=list(CLIENTS), help="one client")
    parser.add_argument("--profile", action="store_true", help="where the calling thread's time goes")
    given = parser.parse_args()
    codecs = load_settings({}).codec_table()
    with cluster(given.bootstrap) as bootstrap:
        with ClusterClient(bootstrap, codecs=codecs) as client:
            client.create_topics({TOPIC: NewTopic(PARTITIONS)}, exists_ok=True)
        print(f"{given.records} records of {given.size} bytes, codec {given.codec}, {PARTITIONS} partitions")
        for name in [given.only] if given.only else CLIENTS:
            profile = cProfile.Profile()
            if given.profile:
                profile.enable()
            sent, done = CLIENTS[name](given, bootstrap)
            profile.disable()
            print(
                f"{name:20} send {sent / given.records * 1e6:6.2f} µs each, {given.records / sent:9,.0f}/s   "
                f"delivered {given.records / done:9,.0f} records/s   "
                f"{given.records * given.size / done / 1e6:6.1f} MB/s"
            )
            if given.profile:
                pstats.Stats(profile).sort_stats("tottime").print_stats(15)


if __name__ == "__main__":
    main()
