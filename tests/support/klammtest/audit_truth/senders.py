"""Producers in processes of their own, which can be killed or stopped at any time, or have a wrong clock.

A fork server that has imported their modules starts them, so each costs some milliseconds.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import klamm
from klammtest.waiting import freeze

WAIT_S = 300.0
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["klammtest.audit_truth.preloaded"])


class Sender:
    """A process that sends records whose numbers begin at `first`; `acknowledged` are those that it has reported."""

    def __init__(self, config: Mapping[str, Any], topic: str, first: int, **plan: Any) -> None:
        self.acknowledged: list[int] = []
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_send, args=(theirs, dict(config), topic, first, plan), daemon=True)
        self._process.start()
        theirs.close()

    def until(self, records: int, limit_s: float = WAIT_S) -> None:
        """Waits until `records` are acknowledged, or all records of the sender's plan."""
        deadline = time.monotonic() + limit_s
        while len(self.acknowledged) < records and self._process.is_alive():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the sender has {len(self.acknowledged)} records acknowledged after {limit_s:.0f} s"
                )
            self.hear(0.05)

    def hear(self, timeout_s: float = 0.0) -> None:
        with suppress(EOFError, OSError):
            while self._pipe.poll(timeout_s):
                self.acknowledged.append(self._pipe.recv())
                timeout_s = 0.0

    def stop(self) -> None:
        """Stops the process (SIGSTOP): it is alive, but silent."""
        assert self._process.pid is not None
        freeze(self._process.pid)
        self.hear()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self.hear()

    def end(self) -> None:
        """Waits until the process has sent all records and closed its producer."""
        self._process.join(WAIT_S)
        self.hear()
        if self._process.exitcode != 0:
            raise RuntimeError(f"the sender ended with {self._process.exitcode}")


@contextmanager
def sender(config: Mapping[str, Any], topic: str, first: int, **plan: Any) -> Iterator[Sender]:
    """Starts a sender and kills it at the end.

    `plan`: `seed`; `records` to send; `ahead_ms` of its clock; `pause_s`, the longest pause between two records;
    `idle`: the sender does not close its producer after the last record and waits to be killed; `late_ms`: the age of
    some records.
    """
    process = Sender(config, topic, first, **plan)
    try:
        yield process
    finally:
        process.kill()


def _send(pipe: Connection, config: Mapping[str, Any], topic: str, first: int, plan: Mapping[str, Any]) -> None:
    chance = random.Random(plan["seed"])
    ahead_ns, now_ns, now = plan.get("ahead_ms", 0) * 1_000_000, time.time_ns, time.time

    def wrong_ns() -> int:
        return int(now_ns() + ahead_ns)

    def wrong() -> float:
        return float(now() + ahead_ns / 1e9)

    with (
        mock.patch.object(time, "time_ns", wrong_ns),
        mock.patch.object(time, "time", wrong),
        klamm.Producer(config) as producer,
    ):
        for number in range(first, first + plan["records"]):
            stamp = time.time_ns() // 1_000_000 - chance.choice((0, 0, 0, plan.get("late_ms", 0)))
            value = b"%d" % number
            producer.send(topic, value, key=value, timestamp_ms=stamp).result(60)
            pipe.send(number)
            time.sleep(chance.random() * plan.get("pause_s", 0.0))
        if plan.get("idle"):
            time.sleep(3600)
