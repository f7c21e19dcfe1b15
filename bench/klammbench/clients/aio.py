"""aiokafka: asyncio. It consumes with `getmany`, its faster method."""

from __future__ import annotations

import asyncio
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from klammbench.clients.job import TIMEOUT_S, Job, Stopwatch, Took


def produce(job: Job) -> Took:
    return asyncio.run(_produce(job))


def consume(job: Job) -> Took:
    return asyncio.run(_consume(job))


async def _produce(job: Job) -> Took:
    producer = AIOKafkaProducer(
        bootstrap_servers=job.bootstrap, acks=job.acks, linger_ms=job.linger_ms, max_batch_size=job.batch_bytes
    )
    await producer.start()
    value, topic = job.value, job.topic
    await producer.send_and_wait(topic, value)
    watch = Stopwatch()
    for _ in range(job.records - 1):
        await producer.send(topic, value)
    watch.called()
    await asyncio.wait_for(producer.flush(), TIMEOUT_S)
    took = watch.took(job.records - 1)
    await producer.stop()
    return took


async def _consume(job: Job) -> Took:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=job.bootstrap, group_id=None, enable_auto_commit=False, auto_offset_reset="earliest",
        max_partition_fetch_bytes=job.fetch_bytes, max_poll_records=job.poll_records,
    )  # fmt: skip
    await consumer.start()
    consumer.assign([TopicPartition(job.topic, n) for n in range(job.partitions)])
    deadline = time.monotonic() + TIMEOUT_S
    received, first = 0, 0
    watch = Stopwatch()
    while received < job.records:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{received} of {job.records} records arrived within {TIMEOUT_S:g} s")
        got = await consumer.getmany(timeout_ms=1000)
        received += sum(map(len, got.values()))
        if received and not first:
            first, watch = received, Stopwatch()  # the first result is not counted, as in `count_received`
    took = watch.took(received - first)
    await consumer.stop()
    return took
