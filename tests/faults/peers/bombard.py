"""Sends invalid frames to real brokers: each must be answered or close its connection, and nothing else."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import Result
from klammtest.broker import RunningBroker
from klammtest.requests import batch, produce
from klammtest.wire import WireClient
from peers.swarm import Shot, Swarm

MOST_MEMORY = 400 * 2**20
"""Peak memory that a broker may have, in bytes; it has about 70 MB when it has started."""
_UNEXPECTED = re.compile(rb" ERROR |Traceback|unexpected ")
_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


@dataclass
class Bombardment:
    """Sends frames to several brokers of one kind and counts into `result`."""

    brokers: Sequence[RunningBroker]
    result: Result
    most_memory: int = MOST_MEMORY

    def send(self, shots: Iterable[Shot], limit_s: float) -> None:
        """Sends all shots, or as many as this time allows while the brokers live."""
        for broker in self.brokers:
            Path(f"/proc/{broker.pid}/clear_refs").write_text(
                "5"
            )  # starting needs more memory: the peak is measured from here
        ends = time.monotonic() + limit_s
        swarm = Swarm([("127.0.0.1", broker.port) for broker in self.brokers], self._hear)
        try:
            swarm.send(shots, lambda: time.monotonic() < ends and all(map(_lives, self.brokers)))
        except OSError as error:
            self.result.wrong("all", f"a broker accepts no connection: {error}")

    def _hear(self, _: Shot, outcome: str) -> None:
        self.result.injected += 1
        self.result.count(outcome)

    def finish(self) -> None:
        """Checks that each broker is alive, serves, has logged nothing but refusals, and kept its memory limit."""
        for broker in self.brokers:
            if not _lives(broker):
                self.result.wrong("the end", f"the broker has died: {broker.log()[-1_000:]}")
            else:
                self._serves(broker)
                self._held(broker)
            self._said(broker)

    def _serves(self, broker: RunningBroker) -> None:
        try:
            with WireClient(broker.bootstrap) as wire:
                outcome = produce(wire, "control", batch(b"after"))
        except (OSError, AssertionError) as error:
            self.result.wrong("the end", f"the broker does not serve: {error}")
            return
        if outcome.error_code != 0:
            self.result.wrong("the end", f"the broker answers {outcome.error_code.name}")
        else:
            self.result.acknowledged += 1

    def _said(self, broker: RunningBroker) -> None:
        with broker.output.open("rb") as out:
            said = [line for line in out if _UNEXPECTED.search(line)]
        for line in said[:5]:
            self.result.wrong("all", f"the broker logged: {line.decode(errors='replace').strip()}")
        if len(said) > 5:
            self.result.wrong("all", f"and {len(said) - 5} lines more of that kind")

    def _held(self, broker: RunningBroker) -> None:
        peak = _PEAK.search(Path(f"/proc/{broker.pid}/status").read_text())
        memory = int(peak[1]) << 10 if peak else 0
        self.result.figures["peak-mb"] = max(memory >> 20, self.result.figures.get("peak-mb", 0))
        if not 0 < memory <= self.most_memory:
            self.result.wrong("all", f"the broker held {memory >> 20} MB")


def _lives(broker: RunningBroker) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{broker.pid}/status").read_text()
    except FileNotFoundError:
        return False
