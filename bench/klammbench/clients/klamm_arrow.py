"""Klamm's own client with Arrow tables: `Producer.send_arrow` and `Consumer.poll_arrow`."""

from __future__ import annotations

import pyarrow as pa

import klamm
from klamm.core.records.partition import TopicPartition
from klammbench.clients.job import TIMEOUT_S, Job, Stopwatch, Took, count_received
from klammbench.clients.klamm_records import consumer_config, producer_config

ROWS = 50_000
"""Rows of a table sent, and most rows of a poll."""


def produce(job: Job) -> Took:
    table = pa.table({"value": pa.array([job.value] * ROWS, pa.binary())})
    with klamm.Producer(producer_config(job)) as producer:
        producer.send(job.topic, job.value).result(TIMEOUT_S)
        watch = Stopwatch()
        left = job.records - 1
        while left:
            rows = min(left, ROWS)
            producer.send_arrow(job.topic, table if rows == ROWS else table.slice(0, rows))
            left -= rows
        watch.called()
        producer.flush(TIMEOUT_S)
        return watch.took(job.records - 1)


def consume(job: Job) -> Took:
    with klamm.Consumer(consumer_config(job)) as consumer:
        consumer.assign([TopicPartition(job.topic, n) for n in range(job.partitions)])
        return count_received(lambda: consumer.poll_arrow(1.0, ROWS).num_rows, job.records)
