"""kafka-python: pure Python, threads."""

from __future__ import annotations

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from klammbench.clients.job import TIMEOUT_S, Job, Stopwatch, Took, count_received


def produce(job: Job) -> Took:
    producer = KafkaProducer(
        bootstrap_servers=job.bootstrap,
        acks=job.acks,
        linger_ms=job.linger_ms,
        batch_size=job.batch_bytes,
        enable_idempotence=False,
    )
    value, topic = job.value, job.topic
    producer.send(topic, value).get(TIMEOUT_S)
    watch = Stopwatch()
    for _ in range(job.records - 1):
        producer.send(topic, value)
    watch.called()
    producer.flush(TIMEOUT_S)
    took = watch.took(job.records - 1)
    producer.close()
    return took


def consume(job: Job) -> Took:
    consumer = KafkaConsumer(
        bootstrap_servers=job.bootstrap, group_id=None, enable_auto_commit=False, auto_offset_reset="earliest",
        max_partition_fetch_bytes=job.fetch_bytes, max_poll_records=job.poll_records,
    )  # fmt: skip
    consumer.assign([TopicPartition(job.topic, n) for n in range(job.partitions)])
    took = count_received(lambda: sum(map(len, consumer.poll(1000).values())), job.records)
    consumer.close()
    return took
