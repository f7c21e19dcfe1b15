"""One member of the demo's consumer group: writes down the partition and offset of every record that it is handed.

    python -m klamm.plugins.demo.consuming CONFIG GROUP FILE

It stops on SIGTERM, with a last commit. FILE holds 12 bytes a record: partition and offset.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from klamm import Consumer
from klamm.plugins.demo.flights import TOPIC
from klamm.plugins.demo.workspace import POSITION

POLL_S = 0.5


def main() -> None:
    """See the module."""
    config, group, file = sys.argv[1:]
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    with Path(file).open("ab") as seen, Consumer(Path(config), group=group, topics=[TOPIC]) as consumer:
        while not told.is_set():
            records = consumer.poll(POLL_S, 5000)
            seen.write(b"".join(POSITION.pack(record.partition, record.offset) for record in records))
            seen.flush()


if __name__ == "__main__":
    main()
