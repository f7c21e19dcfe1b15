"""(a) The Kafka paper's own experiment (section 5): 200-byte messages, one producer, one consumer.

As in the paper, producers do not wait for acknowledgements (acks=0, persistent messages without publisher confirms,
asynchronous sends), and brokers do not flush to disk before they continue. A producer's clock stops when the *broker*
has all messages. Kafka's and Klamm's batches have 1 or 50 messages (`batch.num.messages`), with the same client program
(confluent-kafka); RabbitMQ's and ActiveMQ's messages are sent one by one, in the second cell 50 per system call; a
frame of RabbitMQ's streams has 1 or 50. The consumer prefetches about 200 KB, or 1,000 messages, with automatic
acknowledgement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from klammbench.clients.job import Job, run_client
from klammbench.drivers.arrival import Arrival
from klammbench.drivers.topics import topic_on
from klammbench.foreign.amqp import AmqpChannel
from klammbench.foreign.rabbit_stream import StreamConnection
from klammbench.foreign.stomp import StompConnection
from klammbench.metric import Metric
from klammbench.systems.base import System
from klammbench.table import Table
from klammbench.targets import Target

NAME = "a"
TITLE = "The Kafka paper's own: 200-byte messages, one producer, one consumer"
SYSTEMS: Sequence[str] = ("klamm", "kafka", "kafka-tuned", "rabbitmq", "rabbitmq-streams", "activemq")
METRICS: Mapping[str, Metric] = {
    "produced": Metric("messages/s produced"),
    "consumed": Metric("messages/s consumed"),
}
MANAGED = False
"""A quick run leaves some systems out, so each is started when it is first needed and runs until the end."""

_VALUE = b"x" * 200
_FETCH_BYTES = 200_000
_KAFKAS = ("klamm", "kafka", "kafka-tuned")
BATCH = "batch 50"


@dataclass(frozen=True, slots=True)
class PaperCell:
    """`client` drives Klamm and Kafka; each of the others has one driver. `thousands` of messages by system."""

    name: str
    batch: int
    thousands: Mapping[str, int]
    client: str = "confluent-kafka"
    batch_bytes: int = 65_536


_ONE_BY_ONE = {"rabbitmq": 40, "activemq": 30}


def cells(quick: bool) -> Sequence[PaperCell]:
    if quick:
        return [PaperCell(BATCH, 50, {"klamm": 400, "kafka-tuned": 400, **_ONE_BY_ONE})]
    single = dict.fromkeys(_KAFKAS, 30) | _ONE_BY_ONE | {"rabbitmq-streams": 300}
    fifty = dict.fromkeys(_KAFKAS, 500) | _ONE_BY_ONE | {"rabbitmq-streams": 500}
    return [
        PaperCell("batch 1", 1, single),
        PaperCell(BATCH, 50, fifty),
        PaperCell("batch 50, Klamm's client", 0, dict.fromkeys(_KAFKAS, 250), "klamm", 10_600),
        PaperCell("64 KB, Klamm's client, tables", 0, dict.fromkeys(_KAFKAS, 1000), "klamm-arrow"),
    ]


def warm(system: System) -> None:
    """Warms up mostly the just-in-time compilers of the Java systems. Not called by the harness, since `run` starts
    systems.
    """
    first = cells(quick=True)[0]
    thousands = first.thousands.get(system.name, 400)
    for turn in range(2 if "mq" in system.name else 3):
        cell = replace(first, thousands={system.name: thousands})
        _measure(cell, system, f"warm-{turn}")


def run(cell: PaperCell, system: System, number: int) -> Mapping[str, float]:
    if system.name not in cell.thousands:
        return {}
    if not system.pids():
        system.start()
        warm(system)
    return _measure(cell, system, f"paper-{number}")


def _measure(cell: PaperCell, system: System, name: str) -> Mapping[str, float]:
    return _DRIVERS.get(system.name, _kafka_protocol)(cell, system, name, 1000 * cell.thousands[system.name])


def _kafka_protocol(cell: PaperCell, system: System, topic: str, messages: int) -> Mapping[str, float]:
    job = Job(
        system.bootstrap, topic, 1, messages, len(_VALUE),
        acks=0, batch_bytes=cell.batch_bytes, batch_records=cell.batch, linger_ms=1, fetch_bytes=_FETCH_BYTES,
    )  # fmt: skip
    with topic_on(system, topic, 1):
        there: list[float] = []
        with Arrival(system, topic, 1) as arrival:
            produced = run_client(cell.client, "produce", job, lambda: there.append(arrival.wait(job.records)))
        consumed = run_client(cell.client, "consume", job)
    return {"produced": produced.records / (there[0] - produced.began), "consumed": consumed.rate}


def _rabbitmq(cell: PaperCell, system: System, queue: str, messages: int) -> Mapping[str, float]:
    with AmqpChannel(_port(system)) as producer, AmqpChannel(_port(system)) as consumer:
        producer.declare(queue)
        with _measured() as produced:
            producer.publish(queue, _VALUE, messages, per_send=cell.batch)
        _settle(lambda: producer.depth(queue), messages)
        with _measured() as consumed:
            consumer.consume(queue, len(_VALUE), messages)
        producer.delete(queue)
    return {"produced": messages / produced[0], "consumed": messages / consumed[0]}


def _streams(cell: PaperCell, system: System, stream: str, messages: int) -> Mapping[str, float]:
    with StreamConnection(_port(system)) as producer, StreamConnection(_port(system)) as consumer:
        producer.create(stream)
        with _measured() as produced:
            producer.publish(stream, _VALUE, messages, batch=cell.batch)
        with _measured() as consumed:
            consumer.consume(stream, messages)
    with StreamConnection(_port(system)) as other:  # publications of the first two may still be under way
        other.delete(stream)
    return {"produced": messages / produced[0], "consumed": messages / consumed[0]}


def _activemq(cell: PaperCell, system: System, queue: str, messages: int) -> Mapping[str, float]:
    with StompConnection(_port(system)) as producer, StompConnection(_port(system)) as consumer:
        with _measured() as produced:
            producer.publish(queue, _VALUE, messages, per_send=cell.batch)
        with _measured() as consumed:
            consumer.consume(queue, messages)
    return {"produced": messages / produced[0], "consumed": messages / consumed[0]}


_DRIVERS: Mapping[str, Callable[[PaperCell, System, str, int], Mapping[str, float]]] = {
    "rabbitmq": _rabbitmq,
    "rabbitmq-streams": _streams,
    "activemq": _activemq,
}


def _port(system: System) -> int:
    return int(system.bootstrap.rpartition(":")[2])


@contextmanager
def _measured() -> Iterator[list[float]]:
    """Yields one list, to which the seconds of the block are appended at its end."""
    seconds: list[float] = []
    begin = time.perf_counter()
    yield seconds
    seconds.append(time.perf_counter() - begin)


def _settle(depth: Callable[[], int], messages: int) -> None:
    """Waits until the queue has all messages: RabbitMQ answers on the channel a little earlier."""
    deadline = time.monotonic() + 30
    while (there := depth()) != messages:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the queue has {there} of {messages} messages")
        time.sleep(0.005)


def targets(table: Table) -> Sequence[Target]:
    """Returns Klamm's rate at batches of 50 against the better of each other system's two cells."""
    found = []
    for other in ("rabbitmq", "activemq"):
        for metric, wanted in (("produced", 10.0), ("consumed", 4.0)):
            word = {"produced": "producer", "consumed": "consumer"}[metric]
            best = max((s.median for cell in table.cells() if (s := table.spread(cell, other, metric))), default=None)
            ours = table.spread(BATCH, "klamm", metric)
            if best is None or ours is None:
                found.append(Target(f"a-{word}-vs-{other}", None, wanted, remarks=["not measured on both"]))
                continue
            remark = f"{ours.median:,.0f} messages/s against {best:,.0f}, medians of the rounds"
            found.append(Target(f"a-{word}-vs-{other}", ours.median / best, wanted, remarks=[remark]))
    return found
