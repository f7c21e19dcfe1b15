"""One producer process of the demo: sends its share of the flights, and writes down what it was acknowledged for.

    python -m klamm.plugins.demo.producing CONFIG NUMBER PRODUCERS LIMIT PLANT FILE

It sends a month for each line on stdin, after the twelfth (producer 0) the late day; the end of stdin ends it. With
PLANT=lost the first flight is left to the plant.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TextIO

import pyarrow as pa

from klamm import Producer
from klamm.core.records.record import RecordMetadata
from klamm.plugins.demo.flights import TOPIC, flight_key, load_flights, months, share, split_late, timestamp_ms


def parts(number: int, producers: int, limit: int, plant: str) -> Iterator[pa.Table]:
    """What is sent for each line: a share of each month, then the late day."""
    in_time, late = split_late(load_flights(limit))
    if plant == "lost":
        in_time = in_time.slice(1)
    yield from months(share(in_time, number, producers))
    if number == 0:
        yield late


def send(producer: Producer, flights: pa.Table, acknowledged: TextIO) -> None:
    """Send flights, and wait until all are settled; raises what one of them was refused for."""
    refused: list[BaseException] = []
    for flight in flights.to_pylist():
        key = flight_key(flight)

        def settled(future: Future[RecordMetadata], key: str = key) -> None:
            error = future.exception()
            if error is None:
                acknowledged.write(key + "\n")
            else:
                refused.append(error)

        sent = producer.send(TOPIC, flight, key=key.encode(), timestamp_ms=timestamp_ms(flight))
        sent.add_done_callback(settled)
    producer.flush()
    if refused:
        raise refused[0]


def main() -> None:
    """See the module."""
    config, number, producers, limit, plant, file = sys.argv[1:]
    with Path(file).open("a", buffering=1) as acknowledged, Producer(Path(config)) as producer:
        for flights, _ in zip(parts(int(number), int(producers), int(limit), plant), sys.stdin, strict=False):
            send(producer, flights, acknowledged)
        sys.stdin.read()


if __name__ == "__main__":
    main()
