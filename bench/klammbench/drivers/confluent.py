"""Runs confluent-kafka (librdkafka) as the client program, the same for every broker that speaks Kafka's protocol.

Each run is a process of its own (`python -m klammbench.drivers.confluent`), which takes its task as JSON on the command
line and prints its figures as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from klammbench.drivers.raw import some_values
from klammbench.paths import PYTHON

_TIMEOUT_S = 60.0
_POLL_EVERY = 1000
_TAKE = 10_000


@dataclass(frozen=True, slots=True)
class Task:
    """A task. `messages`: how many to produce; a consumer reads the topic from its beginning to the end that it has
    when the consumer starts.
    """

    kind: Literal["produce", "consume"]
    bootstrap: str
    topic: str
    partitions: int
    messages: int = 0
    message_bytes: int = 100
    batch_bytes: int = 65_536
    codec: str = "none"
    acks: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a task.

    `seconds` last until the last acknowledgement, or from the first messages to the last; `messages` were counted in
    that time, `all_messages` includes those of a consumer's first call. CPU seconds are the client's.
    """

    messages: int
    all_messages: int
    seconds: float
    cpu_s: float


def run(task: Task) -> Outcome:
    """Runs the task in its own process. Raises `RuntimeError` with the end of its output if it fails."""
    command = [str(PYTHON), "-m", "klammbench.drivers.confluent", json.dumps(asdict(task))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S + 10, check=False)
    if done.returncode:
        raise RuntimeError(f"confluent-kafka's {task.kind} failed: {done.stderr.strip()[-500:]}")
    return Outcome(**json.loads(done.stdout))


def produce(task: Task) -> Outcome:
    failed: list[str] = []

    def report(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": task.bootstrap,
            "acks": task.acks,
            "compression.type": task.codec,
            "linger.ms": 5,
            "batch.size": task.batch_bytes,
            "batch.num.messages": 1_000_000,  # so that only the size ends a batch
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
            "delivery.report.only.error": True,
            "message.timeout.ms": int(_TIMEOUT_S * 1000),
            "on_delivery": report,
            "log_level": 3,
        }
    )
    values = some_values(task.message_bytes, 1000)
    producer.produce(task.topic, values[0], partition=0)
    producer.flush(_TIMEOUT_S)
    cpu, begin = time.process_time(), time.perf_counter()
    send, topic, count = producer.produce, task.topic, task.messages
    for n in range(count):
        send(topic, values[n % 1000])
        if not n % _POLL_EVERY:
            producer.poll(0)
    left = producer.flush(_TIMEOUT_S)
    seconds = time.perf_counter() - begin
    if left or failed:
        raise RuntimeError(f"{left} messages not acknowledged, {len(failed)} failed: {failed[:1]}")
    return Outcome(count, count, seconds, time.process_time() - cpu)


def consume(task: Task) -> Outcome:
    consumer = Consumer(
        {
            "bootstrap.servers": task.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "queued.min.messages": 1_000_000,
            "log_level": 3,
        }
    )
    places = [TopicPartition(task.topic, number, OFFSET_BEGINNING) for number in range(task.partitions)]
    wanted = 0
    for place in places:
        low, high = consumer.get_watermark_offsets(place, timeout=_TIMEOUT_S)
        wanted += high - low
    consumer.assign(places)
    got = first = 0
    begin = cpu = 0.0
    deadline = time.monotonic() + _TIMEOUT_S
    while got < wanted:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{got} of {wanted} messages within {_TIMEOUT_S:g} s")
        messages = consumer.consume(_TAKE, 1.0)
        if bad := next((m.error() for m in messages if m.error() is not None), None):
            raise RuntimeError(str(bad))
        if messages and not got:
            first, begin, cpu = len(messages), time.perf_counter(), time.process_time()
        got += len(messages)
    seconds = time.perf_counter() - begin
    spent = time.process_time() - cpu
    consumer.close()
    return Outcome(got - first, got, seconds, spent)


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    task = Task(**given)
    print(json.dumps(asdict(produce(task) if task.kind == "produce" else consume(task))))


if __name__ == "__main__":
    main()
