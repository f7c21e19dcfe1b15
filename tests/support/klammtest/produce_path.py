"""Measures the broker's own code for a Produce request of one message with one replica, without sockets.

    PYTHONPATH=tests/support python -m klammtest.produce_path [--turns 1500] [--version 9]

Frames are split, read, appended to a log in /dev/shm and answered, 200 in a turn; the figures are the fastest turn
and the fastest twentieth, so that other work on the machine hardly matters. Run it with the interpreters of two
trees' `var/bench/venv` in turns to compare them.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

from klamm.core.broker.access import AccessControl
from klamm.core.broker.append_placement import AppendPlacement
from klamm.core.broker.handlers.dispatch import Dispatcher
from klamm.core.broker.handlers.produce import produce_fast
from klamm.core.broker.handlers.table import APIS
from klamm.core.broker.metrics.counters import BrokerMetrics
from klamm.core.broker.network.connections import Connections
from klamm.core.broker.network.limits import Limits
from klamm.core.broker.refused_batches import RefusedBatches
from klamm.core.broker.replication.partitions import Partitions
from klamm.core.broker.replication.replica import Replica
from klamm.core.broker.request import ConnectionContext
from klamm.core.broker.services import Services
from klamm.core.broker.validation import Validation
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.config.settings import load_settings
from klamm.core.log.partition_log import PartitionLog
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.frames import FrameSplitter
from klamm.core.protocol.headers import request_frame
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.leader import ReplicationSettings
from klamm.core.replication.partition_state import PartitionState
from klamm.core.replication.registrations import BrokerRegistration

TOPIC = TopicPartition("cost", 0)
TOPIC_ID = UUID(int=7)
TOGETHER, ROUNDS = 5, 40


def frame(version: int) -> bytes:
    schema = messages.request(ApiKey.PRODUCE, version)
    batch = bytes(encode_batch([(int(time.time() * 1000), None, bytes(100), ())]))
    part = schema.part("PartitionProduceData", index=TOPIC.partition, records=batch)
    topic = schema.part("TopicProduceData", name=TOPIC.topic, topic_id=TOPIC_ID, partition_data=(part,))
    fields = schema.build(transactional_id=None, acks=1, timeout=timedelta(seconds=30), topic_data=(topic,))
    return request_frame(ApiKey.PRODUCE, version, 5, "bench", schema.encode(fields))


def made(folder: Path) -> Dispatcher:
    """Returns the path of a request in a broker that has nothing but one partition, which it leads."""
    metrics, codecs = BrokerMetrics(), load_settings({}).codec_table()
    partitions, settings = Partitions(metrics), ReplicationSettings(1, 30_000)
    log = PartitionLog.open(folder / "cost-0", TOPIC, TOPIC_ID, TopicConfig(), codecs=codecs)
    replica = Replica(0, TOPIC, log, metrics.traffic(TOPIC.topic), (0,), settings)
    leading, own = PartitionState(0, 3, 1, (0,), (), {0: "data"}, 0), BrokerRegistration(0, 1, "here", ("data",))
    replica.on_metadata(leading, 1, own, (0,), settings)
    partitions.put(replica)
    services = object.__new__(Services)
    vars(services).update(
        metrics=metrics,
        lease=SimpleNamespace(deadline_ns=2**63),
        access=AccessControl(None),
        partitions=partitions,
        refused_batches=RefusedBatches(),
        validation=Validation([], codecs, 1 << 20),
        workers=SimpleNamespace(appends=AppendPlacement(asyncio.get_running_loop().call_later)),
    )
    return Dispatcher(services, APIS, produce_fast)


async def measured(turns: int, version: int) -> list[float]:
    """Returns the microseconds of a request in each turn, the fastest first."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        dispatch, connections = made(Path(folder)), Connections(Limits())
        splitter = FrameSplitter(1 << 30, connections.frame_limit, connections.chunk)
        context = ConnectionContext(1, "PLAINTEXT", "192.0.2.1:1", "User:ANONYMOUS")
        arrived = frame(version) * TOGETHER
        found = []
        for _ in range(turns):
            begun = time.perf_counter_ns()
            for _ in range(ROUNDS):
                splitter.get_buffer()[: len(arrived)] = arrived
                for request in splitter.received(len(arrived)):
                    dispatch(context, request)
            found.append((time.perf_counter_ns() - begun) / ROUNDS / TOGETHER / 1000)
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=1500)
    parser.add_argument("--version", type=int, default=9)
    asked = parser.parse_args()
    found = asyncio.run(measured(asked.turns, asked.version))
    print(f"{found[0]:.2f} us a request in the fastest turn, {found[len(found) // 20]:.2f} in the fastest twentieth")


if __name__ == "__main__":
    main()
