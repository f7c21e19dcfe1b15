"""One producer process of the demo: sends its share of the flights, and records the keys of the acknowledged ones.

    python -m klamm.plugins.demo.producing CONFIG NUMBER PRODUCERS LIMIT PLANT FILE

It sends a month for each line on stdin, after the twelfth (producer 0) the late day; the end of stdin ends it. Before
the first line it only reads the data: the topic may not be there yet. With PLANT=lost the first flight is left to the
plant.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pyarrow as pa

from klamm import Producer

from .flights import TOPIC, flight_keys, load_flights, months, share, split_late

TABLE_ROWS = 5000


def parts(number: int, producers: int, limit: int, plant: str) -> Iterator[pa.Table]:
    """The flights to send for each line: a share of each month, then the late day."""
    in_time, late = split_late(load_flights(limit))
    if plant == "lost":
        in_time = in_time.slice(1)
    yield from months(share(in_time, number, producers))
    if number == 0:
        yield late


def send(producer: Producer, flights: pa.Table, acknowledged: TextIO) -> None:
    """Sends flights as tables, and waits until all are settled; raises the error of a refused one."""
    keys = flight_keys(flights)
    rows = pa.table({"key": keys, "value": flights.to_struct_array(), "timestamp": flights["time_hour"]})
    tables = [rows.slice(start, TABLE_ROWS) for start in range(0, rows.num_rows, TABLE_ROWS)]
    sent = [(table, producer.send_arrow(TOPIC, table)) for table in tables]
    for table, future in sent:
        future.result()
        acknowledged.write("".join(f"{key}\n" for key in table["key"].to_pylist()))


def main() -> None:
    """Runs the producer; see the module."""
    config, number, producers, limit, plant, file = sys.argv[1:]
    due = list(parts(int(number), int(producers), int(limit), plant))
    if not sys.stdin.readline():
        return
    with Path(file).open("a", buffering=1) as acknowledged, Producer(Path(config)) as producer:
        send(producer, due[0], acknowledged)
        for flights, _ in zip(due[1:], sys.stdin, strict=False):
            send(producer, flights, acknowledged)
        sys.stdin.read()


if __name__ == "__main__":
    main()
