"""One member of the demo's consumer group: records the partition and offset of every record that it gets.

    python -m klamm.plugins.demo.consuming CONFIG GROUP FILE TAKEN

It stops on SIGTERM, with a last commit. FILE holds 12 bytes a record: partition and offset. TAKEN has a line for each
rebalance that gave it partitions: the seconds since the epoch, and their numbers.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path

from klamm import Consumer
from klamm.plugin import TopicPartition

from .flights import TOPIC
from .workspace import POSITION

POLL_S = 0.5


class _Taken:
    """`klamm.core.client.consumer.commits.RebalanceListener`."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def on_assigned(self, partitions: Collection[TopicPartition]) -> None:
        if partitions:
            numbers = " ".join(str(each.partition) for each in sorted(partitions))
            with self._file.open("a") as out:
                out.write(f"{time.time():.3f} {numbers}\n")

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        pass

    def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        pass


def main() -> None:
    """Runs the member; see the module."""
    config, group, file, taken = sys.argv[1:]
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    with (
        Path(file).open("ab") as seen,
        Consumer(Path(config), group=group, topics=[TOPIC], listener=_Taken(Path(taken))) as consumer,
    ):
        while not told.is_set():
            table = consumer.poll_arrow(POLL_S, 5000)
            places = zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
            seen.write(b"".join(POSITION.pack(partition, offset) for partition, offset in places))
            seen.flush()


if __name__ == "__main__":
    main()
