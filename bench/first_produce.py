"""What the first Produce to a topic is answered that a Metadata request, or CreateTopics, has just created.

`python bench/first_produce.py` starts three brokers on one coordination. Each of several clients creates topics of its
own in turn, asks one broker for their leaders until it names all of them, and at once sends a batch to each leader. It
prints how many first batches were stored, and what the others were answered; and how long Metadata took to name them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klammtest.replicated.cluster import BrokerCluster, running_cluster
from klammtest.requests import batch, create_topic, produce
from klammtest.wire import WireClient, part

PARTITIONS: Final = 3
PAUSE_S: Final = 0.1
"""The `retry.backoff.ms` of Kafka's clients."""


def leaders(wire: WireClient, topic: str) -> dict[int, int] | None:
    """Asks once; returns None while a leader is missing."""
    asked = (part(ApiKey.METADATA, 9, "MetadataRequestTopic", name=topic),)
    answer = wire.call(
        ApiKey.METADATA, 9, topics=asked, allow_auto_topic_creation=True,
        include_cluster_authorized_operations=False, include_topic_authorized_operations=False,
    )  # fmt: skip
    (found,) = answer.topics
    named = {p.partition_index: p.leader_id for p in found.partitions if p.error_code is ErrorCode.none}
    return named if found.error_code is ErrorCode.none and len(named) == PARTITIONS else None


def first_answers(cluster: BrokerCluster, client: int, topics: int, *, created: bool) -> Iterator[tuple[str, float]]:
    """Yields (error of the first Produce, seconds until the leader was named) of each partition."""
    wires = [WireClient(address) for address in cluster.advertised]
    for number in range(topics):
        topic, wire = f"first-{created}-{client}-{number}", random.choice(wires)
        if created:
            create_topic(wires[cluster.controller()], topic, PARTITIONS, {}, replication_factor=len(wires))
        started = time.perf_counter()
        while (found := leaders(wire, topic)) is None:
            time.sleep(PAUSE_S)
        named_s = time.perf_counter() - started
        for partition, leader in found.items():
            yield produce(wires[leader], topic, batch(b"first"), partition).error_code.name, named_s


def main() -> int:
    asked = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asked.add_argument("--topics", type=int, default=15)
    asked.add_argument("--clients", type=int, default=4)
    options = asked.parse_args()
    keys = {"auto.create.topics.enable": True, "num.partitions": PARTITIONS, "default.replication.factor": 3}
    with tempfile.TemporaryDirectory() as folder:
        tree = {"plugin": "embedded", "path": f"{folder}/tree.db", "session.timeout.ms": 20_000}
        with running_cluster(Path(folder), tree, broker=keys) as cluster:
            for created in (False, True):
                with ThreadPoolExecutor(options.clients) as pool:
                    each = [
                        pool.submit(lambda n=n, c=created: [*first_answers(cluster, n, options.topics, created=c)])
                        for n in range(options.clients)
                    ]
                    rows = [row for answers in each for row in answers.result()]
                errors = Counter(error for error, _ in rows)
                median_ms = statistics.median(seconds for _, seconds in rows) * 1000
                what = "CreateTopics" if created else "Metadata"
                counts = ", ".join(f"{error} {count}" for error, count in errors.most_common())
                print(f"created by {what}: {len(rows)} first batches: {counts}; leaders named in {median_ms:.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
