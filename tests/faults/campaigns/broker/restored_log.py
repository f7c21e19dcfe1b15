"""A broker's log directory is replaced by an older backup while a group is active and a load has a stored position."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import klamm
from harness import Result, Run
from klamm.core.client.errors import DataLossError
from klamm.core.config.settings import load_settings
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.lake.config import LakeConfig
from klamm.hadoop.lake.layout import TopicLayout
from klamm.hadoop.lake.manifest import PartitionRange
from klamm.hadoop.load.planning.history import HistoryCheck, Loaded
from klamm.hadoop.load.topics import ClusterTopics
from klammtest.broker import RunningBroker, running_broker
from klammtest.clients.readers import client_config
from klammtest.waiting import PATIENCE_S, within
from produced import append_values

TOPIC = "restored"
T0 = TopicPartition(TOPIC, 0)
MOST = 40
PLANT_S = 10.0
"""Seconds that the campaign waits for records that a planted broker hides."""


class RestoredLog:
    name = "restored-log"
    injects = (
        "an older backup of a broker's log directory put in its place, copied while it ran or stopped, after an "
        "orderly stop or kill -9, with fewer or more records written after it than were lost; by chance none at all"
    )
    asserts = (
        "a member that lived through it and one that joins later get every record that is written after it; a load's "
        "position from before is refused, and is not where nothing was restored"
    )
    plants = "the broker goes on under the leader epoch that clients know"
    tools = ()

    def run(self, run: Run) -> Result:
        rounds = 2 if run.quick else 12
        total = Result(wanted=rounds)
        plugins = {"modules": ["klammtest.plugins.without_new_epochs"]} if run.plant else {}
        for i, chance in run.injections(rounds, rounds):
            folder = run.folder / str(i)
            with running_broker(folder, topics={TOPIC: {"partitions": 1}}, plugins=plugins) as broker:
                restored = run.plant or i % 4 != 1
                _Round(i, chance, broker, total, plant=run.plant, restored=restored).go()
                if "Traceback" in broker.log():
                    total.wrong(i, "a traceback in the broker's log")
            shutil.rmtree(folder)
        return total


class _Round:
    def __init__(
        self, i: int, chance: random.Random, broker: RunningBroker, total: Result, *, plant: bool, restored: bool
    ) -> None:
        self._i, self._chance, self._broker, self._total = i, chance, broker, total
        self._patience_s = PLANT_S if plant else PATIENCE_S
        self._fewest = MOST + 1 if plant else 1  # more than were lost, so that the lost offsets are assigned again
        self._restored = restored
        self._next = 0
        self._backup = broker.folder / "backup"
        self._config = client_config(broker, group_id="live")
        self._later = client_config(broker, group_id="later")

    def go(self) -> None:
        self._produce(self._chance.randint(5, MOST))
        self._copy()
        self._produce(self._chance.randint(5, MOST))
        before = self._next
        with klamm.Consumer(self._config, topics=[TOPIC]) as live:
            self._read(live, range(before))
            live.commit()
            with klamm.Consumer(self._later, topics=[TOPIC]) as later:
                self._read(later, range(before))
                later.commit()
            with self._topics() as topics:
                mark = topics.last_batches({T0: before})[T0]
                loaded = Loaded(topics.topic_id(TOPIC), {0: PartitionRange(start=0, end=before, batch=mark)})
            self._restore()
            self._produce(self._chance.randint(self._fewest, 2 * MOST))
            new = range(before, self._next)
            self._read(live, new)
        with klamm.Consumer(self._later, topics=[TOPIC]) as later:
            self._read(later, new)
        self._check(loaded)

    def _copy(self) -> None:
        """Makes the backup, of the running broker or of a stopped one."""
        stopped = self._chance.random() < 0.5
        if stopped:
            self._broker.stop()
        shutil.copytree(self._broker.log_dir, self._backup)
        if stopped:
            self._broker.start()

    def _restore(self) -> None:
        if self._chance.random() < 0.5:
            self._broker.kill()
        else:
            self._broker.stop()
        if self._restored:
            shutil.rmtree(self._broker.log_dir)
            self._backup.rename(self._broker.log_dir)
            self._total.count("restored")
        self._broker.start()
        self._total.injected += 1

    def _produce(self, count: int) -> None:
        values = range(self._next, self._next + count)
        self._total.acknowledged += append_values(self._broker.bootstrap, TOPIC, values, self._total, self._i)
        self._next = values.stop

    def _read(self, consumer: klamm.Consumer[Any, Any], wanted: range) -> None:
        """Reads until all of these values have arrived; others may be read again."""
        left = set(wanted)

        def all_seen() -> bool:
            left.difference_update(int(record.value[:9]) for record in consumer.poll(0.2))
            return not left

        if not within(all_seen, self._patience_s):
            what = f"a member of a group does not get {len(left)} of {len(wanted)} records"
            self._total.lose(self._i, what, len(left))

    def _check(self, loaded: Loaded) -> None:
        """Makes the check that the next load would make."""
        refused = ""
        with self._topics() as topics:
            try:
                HistoryCheck(topics).verify(TopicLayout("/lake", TOPIC), loaded)
            except DataLossError as error:
                refused = str(error)
        if self._restored and not refused:
            self._total.wrong(self._i, "a load continues from its position in the replaced log")
        if not self._restored and refused:
            self._total.wrong(self._i, f"a load is refused where nothing was restored: {refused}")

    @contextmanager
    def _topics(self) -> Iterator[ClusterTopics]:
        settings = load_settings({"consumer": {"bootstrap.servers": self._broker.bootstrap}})
        topics = ClusterTopics(settings, LakeConfig.model_validate({"path": "/lake"}), quarantine=False)
        try:
            yield topics
        finally:
            topics.close()


CAMPAIGNS = [RestoredLog()]
