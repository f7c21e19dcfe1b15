"""Klamm's own client, record by record: `Producer.send` and `Consumer.poll`."""

from __future__ import annotations

import klamm
from klamm.core.records.partition import TopicPartition
from klammbench.clients.job import TIMEOUT_S, Job, Stopwatch, Took, count_received


def producer_config(job: Job) -> dict[str, object]:
    return {
        **audit_config(job),
        "producer": {
            "bootstrap.servers": job.bootstrap,
            "acks": job.acks,
            "linger.ms": job.linger_ms,
            "batch.size": job.batch_bytes,
            "buffer.memory": 268_435_456,
        },
    }


def audit_config(job: Job) -> dict[str, object]:
    """Returns the audit settings of the job, after importing what the first audit event of a process would import, so
    that no import is measured.
    """
    if not job.audit:
        return {}
    import fastavro  # noqa: F401

    return {"audit": {"plugin": "klamm"}}


def consumer_config(job: Job) -> dict[str, object]:
    group = {"group.id": job.group, "auto.commit.interval.ms": 500} if job.group else {}
    return {
        **audit_config(job),
        "consumer": {
            **group,
            "bootstrap.servers": job.bootstrap,
            "auto.offset.reset": "earliest",
            "max.partition.fetch.bytes": job.fetch_bytes,
        },
    }


def produce(job: Job) -> Took:
    value, topic = job.value, job.topic
    with klamm.Producer(producer_config(job)) as producer:
        producer.send(topic, value).result(TIMEOUT_S)
        watch = Stopwatch()
        for _ in range(job.records - 1):
            producer.send(topic, value)
        watch.called()
        producer.flush(TIMEOUT_S)
        took = watch.took(job.records - 1)
        if producer.metrics()["acknowledged"] != job.records:
            raise RuntimeError(f"not all records were acknowledged: {producer.metrics()}")
    return took


def consume(job: Job) -> Took:
    with klamm.Consumer(consumer_config(job)) as consumer:
        consumer.assign([TopicPartition(job.topic, n) for n in range(job.partitions)])
        return count_received(lambda: len(consumer.poll(1.0, job.poll_records)), job.records)
