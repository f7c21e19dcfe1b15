"""The history checker finds each kind of planted anomaly, and none in a correct history."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.records.partition import TopicPartition
from klammtest.history import (
    Commit,
    History,
    Leadership,
    Outcome,
    Ownership,
    Poll,
    ReplicaLog,
    Send,
    StoredBatch,
    Verdict,
    Watermark,
    check,
    read_replica,
)
from klammtest.logs import append, batch, open_log

TP = TopicPartition("t", 0)
BROKERS = 3
RECORDS = 40
SEEDS = st.integers(0, 2**32)


@dataclass
class Scene:
    """A history of one partition and what its replicas hold; a plant changes one of them."""

    history: History
    stored: list[tuple[int, str | int]]
    replicas: list[ReplicaLog]

    def verdict(self) -> Verdict:
        return check(self.history, {TP: self.stored}, {TP: self.replicas})

    def kinds(self) -> set[str]:
        return {anomaly.kind for anomaly in self.verdict().anomalies}

    @property
    def sends(self) -> list[Send]:
        return self.history.partitions[TP].sends

    @property
    def acknowledged(self) -> list[int]:
        """Returns the places of acknowledged records in `sends`."""
        return [i for i, s in enumerate(self.sends) if s.outcome is Outcome.OK]

    def restore(self, rows: list[tuple[int, str | int]]) -> None:
        """Makes these the records of all replicas, one per batch, and of the reader."""
        epochs = {b.base: b.leader_epoch for b in self.replicas[0].batches}
        batches = [stored_batch(offset, epochs.get(offset, 99), value) for offset, value in rows]
        self.stored = rows
        self.replicas = [ReplicaLog(broker, list(batches)) for broker in range(BROKERS)]


def stored_batch(offset: int, epoch: int, value: str | int, salt: str = "") -> StoredBatch:
    return StoredBatch(offset, offset + 1, epoch, f"{offset}{epoch}{value}{salt}".encode(), ((offset, value),))


def correct(chance: random.Random) -> Scene:
    """Makes a history as a correct cluster could have it: three senders at once, a failed leader now and then, answers
    and tries that are lost, consumers and observers that are late.
    """
    history, rows, batches = History(), [], list[StoredBatch]()
    epoch, leader, now, waiting = 1, 0, 0.0, list[tuple[float, Send]]()
    history.led(TP, Leadership(leader, epoch, "coordination"))
    sent_at = dict.fromkeys(("p0", "p1", "p2"), 0.0)
    positions = {"c0": 0, "c1": 0}
    for n in range(RECORDS):
        now += 1.0
        if chance.random() < 0.1:
            epoch += chance.randint(1, 2)
            leader = (leader + 1) % BROKERS
            history.led(TP, Leadership(leader, epoch, f"broker {chance.randrange(BROKERS)}"))
        producer = chance.choice(list(sent_at))
        start = sent_at[producer] = max(sent_at[producer] + 0.001, now - chance.uniform(0.0, 3.0))
        fate = chance.random()
        if fate < 0.1:
            history.send(TP, Send(producer, f"v{n}", Outcome.UNKNOWN, -1, start, now + 1))
        else:
            offset = len(rows)
            rows.append((offset, f"v{n}"))
            batches.append(stored_batch(offset, epoch, f"v{n}"))
            done = (Outcome.OK, offset) if fate < 0.9 else (Outcome.UNKNOWN, -1)
            waiting.append((now, Send(producer, f"v{n}", *done, start, now + chance.uniform(0.0, 5.0))))
        if chance.random() < 0.3:
            history.watermark(TP, Watermark("o", epoch, len(rows), now + 0.1, now + 0.2))
        if chance.random() < 0.1:  # a deposed leader
            history.watermark(TP, Watermark(f"o{n}", 0, 0, now + 0.1, now + 0.2))
        for name, position in positions.items():
            end = chance.randint(position, len(rows))
            history.polled(TP, [Poll(name, o, v) for o, v in rows[position:end]])
            positions[name] = end
    chance.shuffle(waiting)  # acknowledgements are recorded in any order
    for _, send in waiting:
        history.send(TP, send)
    history.send(TP, Send("p0", "refused", Outcome.FAIL, -1, now, now))
    scene = Scene(history, [], [])
    scene.replicas = [ReplicaLog(broker, list(batches)) for broker in range(BROKERS)]
    scene.stored = rows
    history.commit(TP, Commit("g", 3, Outcome.OK))
    history.commit(TP, Commit("g", 2, Outcome.FAIL))
    history.commit(TP, Commit("g", 7, Outcome.OK))
    history.owned(TP, Ownership("m1", 1, 0.0, 5.0))
    history.owned(TP, Ownership("m2", 2, 5.0, 9.0))
    return scene


def lose(scene: Scene, chance: random.Random) -> None:
    """Loses an acknowledged record of a cluster that had no fault; the offsets after it move up."""
    gone = scene.sends[chance.choice(scene.acknowledged)].value
    scene.restore([(i, v) for i, v in enumerate(v for _, v in scene.stored if v != gone)])


def repeat(scene: Scene, chance: random.Random) -> None:
    scene.restore([*scene.stored, (len(scene.stored), chance.choice(scene.stored)[1])])


def store_refused(scene: Scene, chance: random.Random) -> None:
    scene.restore([*scene.stored, (len(scene.stored), "refused")])


def swap_of_one_producer(scene: Scene, chance: random.Random) -> None:
    """Stores two records of one producer in the other order; their acknowledgements agree."""
    start = {s.value: (s.producer, s.start) for s in scene.sends}
    pairs = [
        (i, j)
        for i, (_, a) in enumerate(scene.stored)
        for j, (_, b) in enumerate(scene.stored)
        if i < j and start[a][0] == start[b][0] and start[a][1] < start[b][1]
    ]
    i, j = chance.choice(pairs)
    rows = list(scene.stored)
    rows[i], rows[j] = (i, rows[j][1]), (j, rows[i][1])
    scene.restore(rows)
    offsets = {v: o for o, v in rows}
    scene.sends[:] = [s._replace(offset=offsets[s.value]) if s.outcome is Outcome.OK else s for s in scene.sends]


def acknowledge_at_zero(scene: Scene, chance: random.Random) -> None:
    i = chance.choice([i for i in scene.acknowledged if scene.sends[i].offset > 0])
    scene.sends[i] = scene.sends[i]._replace(offset=0)


def acknowledge_late(scene: Scene, chance: random.Random) -> None:
    """Says that a record was sent after a later one had been acknowledged."""
    after = max(s.end for s in scene.sends if s.outcome is Outcome.OK)
    i = chance.choice([i for i in scene.acknowledged if scene.sends[i].offset < len(scene.stored) // 2])
    scene.sends[i] = scene.sends[i]._replace(start=after + 1, end=after + 2, producer="another")


def poll(offset: int, value: str) -> Callable[[Scene, random.Random], None]:
    return lambda scene, chance: scene.history.polled(TP, [Poll("late", offset, value)])


def poll_again(scene: Scene, chance: random.Random) -> None:
    scene.history.polled(TP, [Poll("late", o, v) for o, v in (*scene.stored[:4], scene.stored[2])])


def pass_over(scene: Scene, chance: random.Random) -> None:
    scene.history.polled(TP, [Poll("late", o, v) for o, v in (scene.stored[0], scene.stored[2])])


def commit_less(scene: Scene, chance: random.Random) -> None:
    scene.history.commit(TP, Commit("g", 1, Outcome.OK))


def own_twice(scene: Scene, chance: random.Random) -> None:
    scene.history.owned(TP, Ownership("m3", 2, 4.0, 6.0))


def lead_twice(scene: Scene, chance: random.Random) -> None:
    said = chance.choice(sorted(scene.history.partitions[TP].leaderships))
    scene.history.led(TP, Leadership((said.broker + 1) % BROKERS, said.epoch, "broker 9"))


def lower_watermark(scene: Scene, chance: random.Random) -> None:
    scene.history.watermark(TP, Watermark("w", 100, 8, 0.0, 0.1))
    scene.history.watermark(TP, Watermark("w", 100 + chance.randrange(2), 7, 0.2, 0.3))


def answer_stale(scene: Scene, chance: random.Random) -> None:
    """The newest leader, asked after the last acknowledgement, gives a watermark below it."""
    last = max((scene.sends[i] for i in scene.acknowledged), key=lambda s: s.offset)
    scene.history.watermark(TP, Watermark("late", 100, last.offset, last.end + 1, last.end + 2))


def drop_on_one(scene: Scene, chance: random.Random) -> None:
    """One replica ends before the last acknowledged record."""
    last = max(scene.sends[i].offset for i in scene.acknowledged)
    broker = chance.randrange(BROKERS)
    scene.replicas[broker] = ReplicaLog(broker, scene.replicas[broker].batches[: chance.randint(0, last)])


def differ_on_one(scene: Scene, chance: random.Random) -> None:
    """One batch has the same values on all replicas, but other bytes on one of them."""
    broker, place = chance.randrange(BROKERS), chance.randrange(len(scene.stored))
    batches = list(scene.replicas[broker].batches)
    batches[place] = batches[place]._replace(digest=b"another")
    scene.replicas[broker] = ReplicaLog(broker, batches)


def fall_back(scene: Scene, chance: random.Random) -> None:
    """The leader epoch falls along all logs."""
    place = chance.randrange(1, len(scene.stored))
    for replica in scene.replicas:
        replica.batches[place] = replica.batches[place]._replace(leader_epoch=0)


PLANTS: dict[str, tuple[str, Callable[[Scene, random.Random], None]]] = {
    "an acknowledged record is lost": ("lost", lose),
    "an idempotent record is stored twice": ("duplicated", repeat),
    "a refused record is stored": ("phantom", store_refused),
    "records of one producer change places": ("reordered", swap_of_one_producer),
    "an acknowledgement with the offset 0": ("offset", acknowledge_at_zero),
    "acknowledged before the other was sent": ("real-time", acknowledge_late),
    "a consumer received another value": ("polled", poll(2, "another")),
    "a polled record vanishes": ("vanished", poll(RECORDS, "gone")),
    "a consumer receives a record again": ("consumer-back", poll_again),
    "a consumer passes over a record": ("skipped", pass_over),
    "a group commits less": ("commit-back", commit_less),
    "two members own a partition": ("two-owners", own_twice),
    "two leaders in one epoch": ("two-leaders", lead_twice),
    "a watermark falls": ("watermark-back", lower_watermark),
    "a stale watermark": ("stale", answer_stale),
    "a replica without an acknowledged record": ("missing", drop_on_one),
    "a replica with other bytes": ("inconsistent", differ_on_one),
    "a leader epoch that falls along the log": ("broken-chain", fall_back),
}


@given(SEEDS)
def test_a_right_history_has_no_anomaly(seed: int) -> None:
    verdict = correct(random.Random(seed)).verdict()
    assert not verdict.anomalies
    assert verdict.acknowledged > 0


@pytest.mark.parametrize("plant", PLANTS)
@given(SEEDS)
def test_each_planted_anomaly_is_found(plant: str, seed: int) -> None:
    chance = random.Random(seed)
    kind, change = PLANTS[plant]
    scene = correct(chance)
    change(scene, chance)
    assert kind in scene.kinds()


def test_the_verdict_counts_and_prints() -> None:
    history = History()
    history.send(TP, Send("p", "a", Outcome.OK, 0))
    history.send(TP, Send("p", "b", Outcome.UNKNOWN))
    verdict = check(history, {TP: [(0, "a")]})
    assert (verdict.acknowledged, verdict.unknown, verdict.anomalies) == (1, 1, [])
    assert verdict.line("x", 2) == "campaign x injected 2 acknowledged 1 lost 0 duplicated 0 reordered 0"


@pytest.mark.parametrize(("later_epoch", "stale"), [(False, True), (True, False)])
def test_a_deposed_leader_may_not_know_that_its_record_was_acknowledged(later_epoch: bool, stale: bool) -> None:
    history = History()
    history.send(TP, Send("p", "a", Outcome.OK, 0, 0.0, 1.0))
    history.watermark(TP, Watermark("o", 3, 0, 2.0, 2.1))
    if later_epoch:
        history.led(TP, Leadership(1, 4, "coordination"))
    verdict = check(history, {TP: [(0, "a")]}, {TP: [ReplicaLog(0, [stored_batch(0, 3, "a")])]})
    assert [anomaly.kind for anomaly in verdict.anomalies] == ["stale"] * stale


def test_retries_without_idempotence_may_be_stored_twice() -> None:
    history = History()
    for n, value in enumerate("ab"):
        history.send(TP, Send("p", value, Outcome.OK, n, idempotent=False))
    verdict = check(history, {TP: [(0, "a"), (1, "b"), (2, "a")]})
    assert not verdict.anomalies


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, Outcome.OK),
        ("NOT_LEADER_OR_FOLLOWER", Outcome.UNKNOWN),
        ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", Outcome.UNKNOWN),
        ("_MSG_TIMED_OUT", Outcome.UNKNOWN),
        ("request_timed_out", Outcome.UNKNOWN),
        ("message_too_large", Outcome.FAIL),
    ],
)
def test_only_an_error_that_says_so_is_a_failure(error: str | None, outcome: Outcome) -> None:
    assert Outcome.of(error) is outcome


def test_a_replica_is_read_from_its_directory(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=200)
    for n in range(5):
        append(log, batch([b"%d" % n, b"text"]), leader_epoch=n // 2)
    log.close()
    replica = read_replica(tmp_path / "events-0", 1)
    assert list(replica.rows) == [(o, o // 2 if o % 2 == 0 else "text") for o in range(10)]
    assert [b.leader_epoch for b in replica.batches] == [0, 0, 1, 1, 2]
    assert (replica.start, replica.end) == (0, 10)
    (segment, *_) = sorted((tmp_path / "events-0").glob("*.log"), reverse=True)
    segment.write_bytes(segment.read_bytes()[:-1])  # an unfinished write
    cut = read_replica(tmp_path / "events-0", 1)
    assert cut.end == 8
    assert replace(cut, batches=replica.batches[:4]) == cut
