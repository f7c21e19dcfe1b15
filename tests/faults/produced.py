"""Numbers sent to a real broker one by one and read back, with confluent-kafka."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from harness import Result

TIMEOUT_S = 60.0
Became = dict[int, str]


def send(
    bootstrap: str, topic: str, values: Iterable[int], *, size: int = 20, timeout_ms: int = 60_000
) -> dict[int, str]:
    """Sends values; returns for each "" if it was acknowledged, else the error's name."""
    became: Became = {}
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": False, "retries": 0, "linger.ms": 0,
         "message.timeout.ms": timeout_ms, "log_level": 2}
    )  # fmt: skip
    for value in values:

        def delivered(error: KafkaError | None, _: object, value: int = value) -> None:
            became[value] = error.name() if error else ""

        producer.produce(topic, b"%09d" % value + b"." * size, partition=0, on_delivery=delivered)
        producer.flush(TIMEOUT_S)
    return became


def append_values(
    bootstrap: str, topic: str, values: Iterable[int], result: Result, at: object, *, size: int = 20
) -> int:
    """Sends values; returns how many were acknowledged. Counts a refused one as wrong."""
    became = send(bootstrap, topic, values, size=size)
    refused = {error for error in became.values() if error}
    if refused:
        result.wrong(at, f"the broker refuses records: {refused}")
    return sum(not error for error in became.values())


def values_in(bootstrap: str, topic: str) -> list[int]:
    """Returns the values of partition 0, in order."""
    return [value for value, _ in _read(bootstrap, topic)]


def stamped_values(bootstrap: str, topic: str) -> dict[int, int]:
    """Returns the values of partition 0 with their timestamps in milliseconds."""
    return dict(_read(bootstrap, topic))


def _read(bootstrap: str, topic: str) -> list[tuple[int, int]]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "faults", "enable.auto.commit": False, "log_level": 2}
    )
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S)
        consumer.assign([TopicPartition(topic, 0, low)])
        found: list[tuple[int, int]] = []
        at = low
        while at < high:
            messages = consumer.consume(10_000, TIMEOUT_S / 10)
            if not messages:
                break
            for message in messages:
                if message.error():
                    raise RuntimeError(str(message.error()))
                found.append((int(message.value()[:9]), message.timestamp()[1]))
                at = message.offset() + 1
        return found
    finally:
        consumer.close()
