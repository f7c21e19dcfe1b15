"""A real broker is killed while it deletes a topic: at the two steps of the deletion, or at any time."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Any

from harness import Result, Run
from klamm.core.errors import ErrorCode
from klamm.core.faults import VARIABLE
from klamm.core.protocol.apis import ApiKey
from klammtest.broker import RunningBroker, running_broker
from klammtest.brokers.deletions import PATIENT, delete_topic, stored_in, unfinished
from klammtest.clients.grouping import SESSION, commit
from klammtest.requests import batch, create_topic, metadata, produce
from klammtest.waiting import within
from klammtest.wire import WireClient
from produced import values_in

TOPIC, KEPT = "gone", "kept"
GROUPS = [f"group-{n}" for n in range(3)]
STORES = ("coordination", "topic")
POINTS = ("topics.deleted", "topics.forgotten", "")
"""The points at which the broker is killed; "" is a random time, up to `LATEST_S` after the request was sent."""
LATEST_S = 0.03
VERSION = 5
DEATH_S = 60.0
PLANT_S = 3.0
"""Seconds that the campaign waits for a step that a planted broker never takes."""
ROUNDS = 6


class DeletedKill:
    name = "deleted-kill"
    injects = (
        "SIGKILL of a real broker between the steps of a topic's deletion or at a random time after the request, with "
        "each offset store; by chance the topic is created again before the rest of its deletion is done"
    )
    asserts = (
        "the topic is there with its records and offsets, or no group has an offset of it any more and nothing of the "
        "deletion is left to do; the topic that is created again is read whole; other topics keep their offsets"
    )
    plants = "the rest of a killed broker's deletion is never finished"
    tools = ()

    def run(self, run: Run) -> Result:
        rounds = 1 if run.quick else ROUNDS
        total = Result(wanted=rounds * len(STORES))
        plugins = {"modules": ["klammtest.plugins.without_deletions"]} if run.plant else {}
        for number, store in enumerate(STORES):
            offsets = {"plugin": store, **(PATIENT if store == "topic" else {})}
            injections = [(i, c) for i, c in run.injections(rounds * 2, rounds * 2) if i % len(STORES) == number]
            if not injections:
                continue
            with running_broker(
                run.folder / store, topics={KEPT: {"partitions": 1}}, offsets=offsets, plugins=plugins
            ) as broker:
                with WireClient(broker.bootstrap) as wire:
                    _commit(wire, KEPT, 7)
                for i, chance in injections:
                    _Round(i, chance, broker, store, total, PLANT_S if run.plant else DEATH_S).go()
                if "Traceback" in broker.log():
                    total.wrong("all", f"a traceback in the log of the broker with the offset store {store}")
        return total


class _Round:
    def __init__(
        self, i: int, chance: random.Random, broker: RunningBroker, store: str, total: Result, patience_s: float
    ) -> None:
        self._i, self._chance, self._broker, self._store, self._total = i, chance, broker, store, total
        self._tree = broker.folder / "coordination.db"
        self._patience_s = patience_s
        self._count = chance.randint(10, 30)

    def go(self) -> None:
        point = POINTS[self._i // len(STORES) % len(POINTS)]
        self._broker.stop()
        self._broker.environment.update({VARIABLE: f"{point}=kill"} if point else {})
        self._broker.start()
        with WireClient(self._broker.bootstrap) as wire:
            create_topic(wire, TOPIC)
            self._produce(wire, range(self._count))
            _commit(wire, TOPIC, self._count)
            wire.send(ApiKey.DELETE_TOPICS, VERSION, topic_names=(TOPIC,), timeout=SESSION)
            if point and not self._broker.died(DEATH_S):
                self._total.wrong(self._i, f"the broker does not reach {point}")
            if not point:
                time.sleep(self._chance.random() * LATEST_S)
        self._broker.kill()
        self._total.injected += 1
        self._broker.environment.clear()
        self._broker.start()
        with WireClient(self._broker.bootstrap) as wire:
            if metadata(wire, [TOPIC]).topics[0].error_code is ErrorCode.none:
                self._total.count("not-deleted")
                self._untouched()
                if delete_topic(wire, TOPIC) is not ErrorCode.none:
                    self._total.wrong(self._i, "the topic that is left after the kill cannot be deleted")
            self._again(wire)

    def _untouched(self) -> None:
        """Checks that nothing has changed, as the kill came before the deletion."""
        if values_in(self._broker.bootstrap, TOPIC) != list(range(self._count)):
            self._total.lose(self._i, "the topic exists, but its records are gone")
        for group, found in self._offsets(TOPIC).items():
            if found != self._count:
                self._total.lose(self._i, f"the topic exists, but {group} has {found} of {self._count} as its offset")

    def _again(self, wire: WireClient) -> None:
        """Creates the topic again, sometimes before its deletion is finished; it must be a new topic for every
        client.
        """
        early = self._chance.random() < 0.5
        finished = early or self._finished()
        create_topic(wire, TOPIC)
        self._produce(wire, range(1000, 1000 + 2 * self._count))
        if early:
            finished = self._finished()
        if not finished:
            self._total.wrong(self._i, "the deletion is not finished")
        for group, found in self._offsets(TOPIC).items():
            if found is not None:
                self._total.lose(self._i, f"{group} has offset {found} in a topic that was created again", found)
        for group, found in self._offsets(KEPT).items():
            if found != 7:
                self._total.lose(self._i, f"{group} has {found} instead of 7 as its offset of another topic")
        if values_in(self._broker.bootstrap, TOPIC) != list(range(1000, 1000 + 2 * self._count)):
            self._total.corrupt(self._i, "the topic that was created again does not hold the records written to it")
        delete_topic(wire, TOPIC)

    def _finished(self) -> bool:
        return within(lambda: not unfinished(self._tree), self._patience_s)

    def _produce(self, wire: WireClient, values: range) -> None:
        answer: Any = None

        def taken() -> bool:
            nonlocal answer
            answer = produce(wire, TOPIC, batch(*(b"%09d" % value for value in values)))
            return answer.error_code is ErrorCode.none

        if within(taken):
            self._total.acknowledged += len(values)
        else:
            self._total.wrong(self._i, f"the broker refuses records: {answer.error_code.name}")

    def _offsets(self, topic: str) -> dict[str, int | None]:
        """Returns the stored offsets of each group, read from the store itself."""
        found = {group: stored_in(self._tree, self._store, group) for group in GROUPS}
        return {
            group: next((o.offset for tp, o in offsets.items() if tp.topic == topic), None)
            for group, offsets in found.items()
        }


def _commit(wire: WireClient, topic: str, offset: int) -> None:
    """Commits the offset in every group, and tries again while a broker that has just started still loads its
    groups.
    """

    def stored(group: str) -> bool:
        return set(commit(wire, group, {(topic, 0): offset}).values()) == {ErrorCode.none}

    for group in GROUPS:
        if not within(partial(stored, group)):
            raise RuntimeError(f"{group} cannot commit")


CAMPAIGNS = [DeletedKill()]
