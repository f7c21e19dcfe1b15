"""The wall clock of a real broker jumps by a day, ahead and back; its monotonic clock goes on."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import count

from confluent_kafka import Consumer, TopicPartition

from harness import Result, Run
from klammtest.broker import RunningBroker, running_broker
from produced import append_values, values_in
from skewed_clock import TOOLS, SkewedClock

TOPIC = "jumping"
DAY_MS = 86_400_000
DAY_S = 86_400
CHECK_MS = 300
CHECKS = 5
JUMPS = (DAY_S, -DAY_S, 0)
TOPICS = {
    TOPIC: {
        "partitions": 1,
        "config": {"retention.ms": str(2 * DAY_MS), "segment.ms": str(DAY_MS // 4), "segment.bytes": "16384",
                   "file.delete.delay.ms": "0", "message.timestamp.after.max.ms": str(2 * DAY_MS)},
    }
}  # fmt: skip


class ClockJumpProcess:
    name = "clock-jump-process"
    injects = (
        "the wall clock of a running broker set a day ahead, a day back and right again, at random; retention is 2 days"
    )
    asserts = (
        "records of the true time are taken at any time; nothing acknowledged is deleted while retention looks again "
        "and again, before or after a restart; a lookup by time is answered"
    )
    plants = "the clock jumps by ten days and the broker starts again, which retention must obey"
    tools = TOOLS

    def run(self, run: Run) -> Result:
        rounds = 2 if run.quick else 60
        total = Result(wanted=rounds)
        clock = SkewedClock(run.folder)
        values = count()
        acknowledged: list[int] = []
        broker_keys = {"log.retention.check.interval.ms": CHECK_MS}
        with running_broker(
            run.folder / "broker", topics=TOPICS, broker=broker_keys, environment=clock.environment
        ) as broker:
            for i, chance in run.injections(2, rounds):
                _round(i, chance, broker, clock, values, acknowledged, total, plant=run.plant)
        total.acknowledged = len(acknowledged)
        return total


def _round(
    i: int, chance: random.Random, broker: RunningBroker, clock: SkewedClock, values: Iterator[int],
    acknowledged: list[int], total: Result, *, plant: bool,
) -> None:  # fmt: skip
    def sent(number: int) -> None:
        batch = [next(values) for _ in range(number)]
        if append_values(broker.bootstrap, TOPIC, batch, total, i, size=2_000) == number:
            acknowledged.extend(batch)

    sent(chance.randint(5, 15))
    clock.set(10 * DAY_S if plant else chance.choice([jump for jump in JUMPS if jump != clock.ahead_s]))
    total.injected += 1
    sent(chance.randint(5, 15))
    if plant:
        broker.restart()
    time.sleep(CHECKS * CHECK_MS / 1_000)  # time for a retention check, which cannot be observed
    if chance.random() < 0.3:
        broker.restart()
        total.count("restarts")
    stored = set(values_in(broker.bootstrap, TOPIC))
    for value in acknowledged:
        if value not in stored:
            total.lose(i, f"{value} was acknowledged and is missing, with the clock {clock.ahead_s} s ahead")
    _look_up(i, broker.bootstrap, total)
    if "Traceback" in broker.log():
        total.wrong(i, "a traceback in the broker's log")


def _look_up(i: int, bootstrap: str, total: Result) -> None:
    """Looks up a time some minutes ago, by the true clock."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "faults", "log_level": 2})
    try:
        then = int(time.time() * 1_000) - 60_000
        found = consumer.offsets_for_times([TopicPartition(TOPIC, 0, then)], timeout=30)[0]
        if found.error is not None or found.offset < -1:
            total.wrong(i, f"the lookup of time {then} returned {found}")
    finally:
        consumer.close()


CAMPAIGNS = [ClockJumpProcess()]
