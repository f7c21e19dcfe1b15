"""confluent-kafka: librdkafka, in C.

The producer has no callback per record, which is fastest; the caller checks the topic's end offsets.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from klammbench.clients.job import TIMEOUT_S, Job, Stopwatch, Took, count_received


def produce(job: Job) -> Took:
    options: dict[str, Any] = {
        "bootstrap.servers": job.bootstrap,
        "acks": job.acks,
        "linger.ms": job.linger_ms,
        "batch.size": job.batch_bytes,
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 262_144,
    }
    if job.batch_records:
        options["batch.num.messages"] = job.batch_records
    producer = Producer(options)
    producer.produce(job.topic, job.value)
    producer.flush(TIMEOUT_S)  # returns once the client is connected and knows the topic
    value, topic = job.value, job.topic
    watch = Stopwatch()
    for _ in range(job.records - 1):
        try:
            producer.produce(topic, value)
        except BufferError:
            producer.poll(0.01)
            producer.produce(topic, value)
    watch.called()
    if producer.flush(TIMEOUT_S):
        raise RuntimeError("not all records were delivered in time")
    return watch.took(job.records - 1)


def consume(job: Job) -> Took:
    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "max.partition.fetch.bytes": job.fetch_bytes,
            "queued.min.messages": job.queued_records,
        }
    )
    consumer.assign([TopicPartition(job.topic, n, 0) for n in range(job.partitions)])

    def receive() -> int:
        messages = consumer.consume(job.poll_records, 1.0)
        for message in (messages[0], messages[-1]) if messages else ():
            if message.error():
                raise RuntimeError(str(message.error()))
        return len(messages)

    took = count_received(receive, job.records)
    consumer.close()
    return took
