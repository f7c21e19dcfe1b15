"""Frames that nobody should send, at real brokers: each is answered or closes its connection, nothing else."""

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
"""Bytes that a broker may have held at any time; it has about 70 MB when it has started."""
_UNEXPECTED = re.compile(rb" ERROR |Traceback|unexpected ")
_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


@dataclass
class Bombardment:
    """Sends frames to brokers of one kind, which share them, and counts into `result`."""

    brokers: Sequence[RunningBroker]
    result: Result
    most_memory: int = MOST_MEMORY

    def send(self, shots: Iterable[Shot], limit_s: float) -> None:
        """All of them, or as many as can be sent in this time while the brokers live."""
        for broker in self.brokers:
            Path(f"/proc/{broker.pid}/clear_refs").write_text("5")  # its peak is counted from here: starting takes more
        ends = time.monotonic() + limit_s
        swarm = Swarm([("127.0.0.1", broker.port) for broker in self.brokers], self._hear)
        try:
            swarm.send(shots, lambda: time.monotonic() < ends and all(map(_lives, self.brokers)))
        except OSError as error:
            self.result.wrong("all", f"a broker takes no connection: {error}")

    def _hear(self, _: Shot, outcome: str) -> None:
        self.result.injected += 1
        self.result.count(outcome)

    def finish(self) -> None:
        """Each broker lives, serves, has said nothing but refusals and never held more memory than it may."""
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
            self.result.wrong("all", f"the broker said: {line.decode(errors='replace').strip()}")
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
