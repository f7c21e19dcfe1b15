"""The kinds of fault, how each is planted in a run, and the ordinary events that a run may have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pyarrow as pa

from klamm.core.client.cluster_client import NewTopic
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.records.partition import TopicPartition
from klamm.plugins.audit.comparison.tiers import Kind
from klamm.plugins.audit.event import AuditEvent
from klamm.plugins.audit.query import audit_config
from klammtest.audit_truth.cluster import AUDIT, INTERVAL_MS, LATENESS_MS, WINDOW_MS
from klammtest.audit_truth.judging import judge
from klammtest.audit_truth.pipeline import Pipeline, Problem, within
from klammtest.audit_truth.senders import Sender, sender
from klammtest.audit_truth.truth import BROKER, LAKE, PRODUCER, READERS, Place, window_of
from klammtest.audits import read_audit_log
from klammtest.proxies.produce import Wrong, sink_of

HOUR_MS = 3_600_000
NOT_IDEMPOTENT = {"enable.idempotence": False}
Plant = Callable[[Pipeline], None]


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault. One of `plants` is chosen for each run; the kind that has only ordinary events has none."""

    name: str
    plants: tuple[Plant, ...]


def go(kind: FaultKind, run: Pipeline) -> None:
    """Executes one run, up to the point where it is judged."""
    chance = run.chance
    run.send(run.long_ago, 12)
    run.read_all()
    run.load()
    run.first_ends = run.ends()
    if not kind.plants or chance.random() < 0.5:
        run.send_foreign(run.windows)
    if not kind.plants:
        for event in chance.sample(ORDINARY, 3):
            _happen(run, event)
        _finish(run)
        return
    if chance.random() < 0.6:
        _happen(run, chance.choice(ORDINARY))
    _happen(run, chance.choice(kind.plants))


def _happen(run: Pipeline, event: Plant) -> None:
    run.events.append(event.__name__)
    event(run)


def _finish(run: Pipeline) -> None:
    """Reads and loads all remaining records."""
    run.read_all()
    run.load()


# -- losses


@contextmanager
def _spoiled(run: Pipeline, wrong: Wrong, share: float, most: int = 100) -> Iterator[list[int]]:
    """Spoils a share of the topic's Produce requests; yields a list whose only item is the number of spoiled
    requests.
    """
    hits = [0]

    def decide() -> Wrong:
        if hits[0] < most and run.chance.random() < share:
            hits[0] += 1
            return wrong
        return Wrong.NOTHING

    run.cluster.proxy.spoil(run.topic, decide)
    try:
        yield hits
    finally:
        run.cluster.proxy.leave(run.topic)


def _with_own_timestamps(run: Pipeline) -> None:
    """Gives records their own timestamps from now on, if the broker has stamped them so far."""
    if run.truth.stamped:
        run.client.alter_configs(run.topic, {"message.timestamp.type": "CreateTime"})


def acknowledged_and_not_stored(run: Pipeline) -> None:
    """The broker acknowledges a batch that is not in the topic."""
    run.client.create_topics({sink_of(run.topic): NewTopic(len(run.client.partitions(run.topic)))})
    acks = run.chance.choice(("all", "1"))
    with _spoiled(run, Wrong.ELSEWHERE, 0.4) as hits:
        while not hits[0]:
            run.send(run.windows, spoiled=True, options={"acks": acks, **NOT_IDEMPOTENT})
    _finish(run)


def sent_without_acknowledgement(run: Pipeline) -> None:
    """acks=0: records that the network loses count as acknowledged."""
    _with_own_timestamps(run)
    with _spoiled(run, Wrong.LOST, 0.4) as hits:
        while not hits[0]:
            run.send(run.windows, spoiled=True, options={"acks": "0"})
    _finish(run)


def position_jumped(run: Pipeline) -> None:
    """An application seeks forward past records that it has not received."""
    run.send(run.windows)
    with run.reader() as reader:
        reader.assigned()
        ends, at = run.ends(), run.group_offsets()
        left = [p for p in run.client.partitions(run.topic) if ends[p.partition] > at.get(p, 0)]
        for partition in run.chance.sample(left, run.chance.randint(1, len(left))):
            skipped = run.chance.randint(1, ends[partition.partition] - at.get(partition, 0))
            reader.consumer.seek(partition, at.get(partition, 0) + skipped)
        reader.to_end()
        reader.commit()
    run.load()


def committed_ahead(run: Pipeline) -> None:
    """An application commits offsets beyond the records that it has received, and restarts from there."""
    run.send(run.windows)
    with run.reader() as reader:
        reader.until(1)
        ends, positions = run.ends(), reader.positions()
        left = [p for p in sorted(reader.owned()) if ends[p.partition] > positions[p.partition]]
        partition = run.chance.choice(left)
        ahead = run.chance.randint(positions[partition.partition] + 1, ends[partition.partition])
        reader.consumer.commit({partition: ahead})
    _finish(run)


def rows_not_written(run: Pipeline) -> None:
    """A load's files lack rows."""
    run.send(run.windows)

    def without_some(rows: pa.Table) -> pa.Table:
        gone = set(run.chance.sample(range(rows.num_rows), run.chance.randint(1, max(1, rows.num_rows // 4))))
        return rows.take([n for n in range(rows.num_rows) if n not in gone])

    run.read_all()
    run.load(without_some)


# -- duplicates


def retried_without_idempotence(run: Pipeline) -> None:
    """The response to a Produce request is lost, and the batch is sent again."""
    with _spoiled(run, Wrong.UNANSWERED, 0.4, most=2) as hits:
        while not hits[0]:
            run.send(run.windows, spoiled=True, options=NOT_IDEMPOTENT)
    _finish(run)


def replayed_into_the_log(run: Pipeline) -> None:
    """A tool appends batches to the topic that are in it already, with the audit's headers."""
    _with_own_timestamps(run)
    begins = run.ends()
    run.send(run.windows, options=NOT_IDEMPOTENT)
    ends = run.ends()
    new = [p for p in run.client.partitions(run.topic) if ends[p.partition] > begins[p.partition]]
    for partition in run.chance.sample(new, run.chance.randint(1, len(new))):
        [node_id] = run.client.by_leader([partition])
        offset = run.chance.randrange(begins[partition.partition], ends[partition.partition])
        data = run.client.fetch(node_id, {partition: offset}, max_wait_ms=0)[partition].records
        size = 12 + int.from_bytes(data[8:12], "big")
        run.client.produce({partition: bytes(data[:size])})
    _finish(run)


def group_set_back(run: Pipeline) -> None:
    """The group's offsets are reset to older ones while it is stopped, and it receives the records again.

    They are never reset to the beginning of its last range: that looks like a member that died before its commit.
    """
    run.send(run.windows)
    commits: dict[TopicPartition, list[int]] = {}
    with run.reader() as reader:
        for rest in [False] * run.chance.randint(1, 3) + [True]:
            if rest:
                reader.to_end()
            else:
                reader.until(1)
            reader.commit()
            for partition, offset in run.group_offsets().items():
                if offset not in commits.setdefault(partition, []):
                    commits[partition].append(offset)
    ends = run.group_offsets()
    chosen: dict[TopicPartition, list[int]] = {}
    for partition, offsets in commits.items():
        low = run.first_ends.get(partition.partition, 0)
        begins = [low, *(offset for offset in offsets if offset != low)]
        if places := [n for n in range(low, ends[partition]) if n != begins[-2]]:
            chosen[partition] = [n for n in begins if n in places and run.chance.random() < 0.5] or places
    run.settle()
    for partition in run.chance.sample(sorted(chosen), run.chance.randint(1, len(chosen))):
        to = run.chance.choice(chosen[partition])
        run.client.commit_offsets(run.group, {partition: CommittedOffset(to)})
        run.truth.twice |= {Place(run.truth.life, partition.partition, n) for n in range(to, ends[partition])}
    _finish(run)
    run.allowed.problems.append(Problem(Kind.OVERLAP, READERS))
    run.allowed.may.append(Problem(Kind.GAP, READERS))  # of the range inside which it was set
    run.allowed.must_be_unknown[READERS] = {run.truth.stored[place][1] for place in run.truth.twice}
    run.allowed.may_be_unknown(READERS, run.recent())


# -- records deleted before a tier had them


def _delete(run: Pipeline, below: dict[TopicPartition, int]) -> None:
    """Deletes records by DeleteRecords, or by retention, which deletes all records that it may."""
    run.truth.read_log(run.client, run.topic)
    before = run.starts()
    if run.chance.random() < 0.5:
        run.client.alter_configs(run.topic, {"retention.ms": "1000"})
        deadline = time.monotonic() + 2
        while run.starts() == before and time.monotonic() < deadline:
            time.sleep(0.05)
        run.client.alter_configs(run.topic, {"retention.ms": "-1"})
        run.events.append("by retention")
    behind = {p: offset for p, offset in below.items() if offset > run.starts()[p.partition]}
    if behind:
        run.client.delete_records(behind)


def _below(run: Pipeline, had: dict[int, int]) -> dict[TopicPartition, int]:
    """Chooses an offset above `had` in at least one partition."""
    ends = run.ends()
    new = [p for p in run.client.partitions(run.topic) if ends[p.partition] > had.get(p.partition, 0)]
    chosen = run.chance.sample(new, run.chance.randint(1, len(new)))
    return {p: run.chance.randint(had.get(p.partition, 0) + 1, ends[p.partition]) for p in chosen}


def deleted_before_the_load(run: Pipeline) -> None:
    had = _loaded_to(run)
    run.send(run.windows)
    run.read_all()
    _counted(run)
    _delete(run, _below(run, had))
    run.send(run.windows)
    _finish(run)


def deleted_before_the_group(run: Pipeline) -> None:
    """The group continues where the log now begins: its ranges have a gap, and the counts of the gap are unknown."""
    had = {p.partition: offset for p, offset in run.group_offsets().items()}
    run.send(run.windows)
    run.load()
    _counted(run)
    _delete(run, _below(run, had))
    gone = _gone(run, had)
    run.send(run.windows)
    _finish(run)
    run.allowed.problems.append(Problem(Kind.GAP, READERS))
    run.allowed.must_be_unknown[READERS] = gone
    run.allowed.may_be_unknown(READERS, run.recent())


def deleted_before_the_broker_tier(run: Pipeline) -> None:
    """The broker tier is slow, and records that it has not counted are deleted."""
    while any(end <= run.first_ends.get(partition, 0) for partition, end in run.ends().items()):
        run.send(run.windows[:1], 12)
    _finish(run)
    _counted(run)
    had = run.ends()
    run.cluster.gate.set(run.topic, shut=True)
    try:
        run.send(run.windows)
        run.read_all()
        run.load()
        _delete(run, _below(run, had))
    finally:
        run.cluster.gate.set(run.topic, shut=False)
    gone = _gone(run, had)
    run.send(run.windows)
    _finish(run)
    run.allowed.problems.append(Problem(Kind.LOSSY, BROKER))
    recent = run.recent()
    # An uncounted record may lie in any window between those of the ranges before and after.
    near = {window for _, window in run.truth.stored.values() if min(recent) <= window <= max(recent)}
    for tier in (BROKER, READERS, LAKE):
        run.allowed.must_be_unknown[tier] = gone
        run.allowed.may_be_unknown(tier, recent | near)


def _gone(run: Pipeline, had: dict[int, int]) -> set[int]:
    """Returns the windows of deleted records at or above the positions `had`."""
    starts = run.starts()
    return {
        window
        for place, (_, window) in run.truth.stored.items()
        if had.get(place.partition, 0) <= place.offset < starts[place.partition]
    }


def _loaded_to(run: Pipeline) -> dict[int, int]:
    run.settle()
    ends: dict[int, int] = {}
    for place in run.truth.loaded:
        ends[place.partition] = max(ends.get(place.partition, 0), place.offset + 1)
    return ends


def _counted(run: Pipeline) -> None:
    """Returns when the broker tier's events cover all stored records."""

    def told() -> bool:
        by_partition = {
            event.partition: event.to_offset
            for event in _events(run)
            if event.tier == "broker" and event.partition is not None
        }
        return all(by_partition.get(partition, 0) >= end for partition, end in run.ends().items() if end)

    within(told, "count of the broker tier", lambda: time.sleep(0.05))


def _events(run: Pipeline) -> list[AuditEvent]:
    log = read_audit_log(run.client, audit_config(run.cluster.settings()).topic)
    return [event for event in log.events if event.topic == run.topic]


# -- a producer that stopped


def _config(run: Pipeline, source: str, bootstrap: str = "") -> dict[str, object]:
    producer = {"bootstrap.servers": bootstrap or run.cluster.bootstrap, "client.id": source, "linger.ms": 0}
    return {"producer": producer, "audit": dict(AUDIT)}


def _victim(run: Pipeline, records: int, **plan: object) -> tuple[str, AbstractContextManager[Sender], int]:
    """Starts a process that sends records with the current time; reads their windows from the log."""
    source = run.source()
    now = window_of(time.time_ns() // 1_000_000)
    first = min([run.truth.new(source, now) for _ in range(records)])
    seed = run.chance.randrange(2**32)
    process = sender(_config(run, source), run.topic, first, seed=seed, records=records, late_ms=2 * WINDOW_MS, **plan)
    return source, process, first


def _tell_the_truth(run: Pipeline, of: Sender, first: int, records: int) -> None:
    """Adds a killed process's records to the truth: those that it reported, or those that are stored."""
    run.truth.read_log(run.client, run.topic)
    stored = dict(run.truth.stored.values())
    for number in range(first, first + records):
        if number in stored:
            run.truth.sent[number].window = stored[number]
        elif number not in of.acknowledged:
            del run.truth.sent[number]
            continue
        run.truth.sent[number].acknowledged = True


def killed_while_it_sends(run: Pipeline) -> None:
    """A producer is killed with -9, or stopped for good, at a random time."""
    source, process, first = _victim(run, 2_000, pause_s=0.004)
    with process as victim:
        victim.until(run.chance.randint(1, 150))
        (victim.stop if run.chance.random() < 0.3 else victim.kill)()
        _others_go_on(run)
        _silent()
        _tell_the_truth(run, victim, first, 2_000)
        run.allowed.problems.append(Problem(Kind.KILLED, PRODUCER, source))
        near = {start for start in run.truth.windows() if start > time.time() * 1000 - 24 * HOUR_MS}
        for tier in (PRODUCER, BROKER):
            run.allowed.may_be_unknown(tier, near)
    _finish(run)


def killed_while_it_is_quiet(run: Pipeline) -> None:
    """The audit has events of all acknowledged records: nothing is unknown, and the producer's end raises no alarm."""
    records = run.chance.randint(1, 30)
    source, process, first = _victim(run, records, idle=True)
    with process as victim:
        victim.until(records)
        within(lambda: any(e.quiet for e in _events(run) if source in e.owner), "quiet event", lambda: time.sleep(0.05))
        victim.kill()
        _others_go_on(run)
        _silent()
        _tell_the_truth(run, victim, first, records)
        run.harmless = True
    _finish(run)


def _others_go_on(run: Pipeline) -> None:
    run.send(run.windows)


def _silent() -> None:
    """Waits until the producer's silence is noticed, even if no other producer sends events."""
    time.sleep(7 * INTERVAL_MS / 1000)


# -- a clock


def clock_an_hour_off(run: Pipeline) -> None:
    """The clock of a producer's host is wrong, and records have its time."""
    ahead_ms = run.chance.choice((-1, 1)) * (HOUR_MS + run.chance.randrange(-LATENESS_MS, LATENESS_MS))
    records = run.chance.randint(3, 30)
    source, process, first = _victim(run, records, ahead_ms=ahead_ms)
    with process as off:
        off.end()
        _tell_the_truth(run, off, first, records)
    run.send(run.windows)
    run.allowed.clocks[source] = ahead_ms
    _finish(run)


# -- what happens every day


def rebalance(run: Pipeline) -> None:
    """A second member joins, and the first one leaves."""
    run.send(run.windows)
    with run.reader() as first:
        first.until(2)
        first.commit()
        with run.reader() as second:
            for _ in range(6):
                first.poll(2)
                second.poll(2)
            first.to_end(second)
            first.commit()
            second.commit()


def member_ends_without_a_commit(run: Pipeline) -> None:
    """A member ends without a commit, and the next one receives its records again."""
    run.send(run.windows)
    with run.reader() as reader:
        reader.until(3)
    run.read_all()


def read_again_after_a_seek(run: Pipeline) -> None:
    run.send(run.windows)
    with run.reader() as reader:
        reader.to_end()
        reader.commit()
        for partition in reader.owned():
            reader.consumer.seek(partition, 0)
        reader.to_end()
        reader.commit()


def slow_group(run: Pipeline) -> None:
    """The group lags, a report says only that, and the group catches up in the end."""
    run.send(run.windows)
    run.load()
    with run.reader() as reader:
        reader.until(2)
        reader.commit()
    _look(run)


def late_records(run: Pipeline) -> None:
    run.send([*run.long_ago, *run.windows])


def records_of_tomorrow(run: Pipeline) -> None:
    run.future = True
    run.send([window_of(time.time_ns() // 1_000_000) + 24 * HOUR_MS])


def foreign_clients(run: Pipeline) -> None:
    """kafka-python and confluent-kafka beside producers that audit, in the same windows."""
    run.send(run.windows)
    run.send_foreign(run.windows)
    run.send_foreign([*run.long_ago, *run.windows])


def tables(run: Pipeline) -> None:
    run.send(run.windows, arrow=True)


def retried_with_idempotence(run: Pipeline) -> None:
    """Responses are lost, and nothing is stored twice."""
    with _spoiled(run, Wrong.UNANSWERED, 0.4, most=2):
        run.send(run.windows, spoiled=True)


def refused_records(run: Pipeline) -> None:
    """A record is larger than the broker accepts: its future raises, and it counts as attempted only."""
    run.client.alter_configs(run.topic, {"max.message.bytes": "3000"})
    source = run.source()
    with run.producer(source, {"compression.type": "none"}) as producer:
        run.send_records(producer, run.numbers(source, run.windows, 5))
        run.send_records(producer, run.numbers(source, run.windows, 2), width=5_000)
        run.send_records(producer, run.numbers(source, run.windows, 5))
    run.client.alter_configs(run.topic, {"max.message.bytes": "1048588"})


def producer_that_goes_on(run: Pipeline) -> None:
    """A report is made while a producer is running, busy or idle."""
    source = run.source()
    with run.producer(source) as producer:
        run.send_records(producer, run.numbers(source, run.windows, 10))
        if run.chance.random() < 0.5:
            time.sleep(2.5 * INTERVAL_MS / 1000)
        _look(run)
        run.send_records(producer, run.numbers(source, run.windows, 10))


def load_that_tells_late(run: Pipeline) -> None:
    """A load dies after publishing, before its audit event; the next load sends the event."""
    run.send(run.windows)
    run.truth.read_log(run.client, run.topic)
    run.lake.load_and_die()


def more_partitions(run: Pipeline) -> None:
    run.client.create_partitions(run.topic, len(run.client.partitions(run.topic)) + 1)
    run.send(run.windows)


def stamped_by_the_broker(run: Pipeline) -> None:
    run.client.alter_configs(run.topic, {"message.timestamp.type": "LogAppendTime"})
    run.truth.stamped = True
    run.send(run.windows)


def _look(run: Pipeline) -> None:
    """Makes a report in the middle of the run, which must be correct as well."""
    verdict = judge(run, live=True)
    run.early += [*verdict.missed, *verdict.alarms]


ORDINARY: Sequence[Plant] = (
    rebalance,
    member_ends_without_a_commit,
    read_again_after_a_seek,
    slow_group,
    late_records,
    records_of_tomorrow,
    foreign_clients,
    tables,
    retried_with_idempotence,
    refused_records,
    producer_that_goes_on,
    load_that_tells_late,
    more_partitions,
    stamped_by_the_broker,
)

KINDS = {
    kind.name: kind
    for kind in (
        FaultKind(
            "losses",
            (
                acknowledged_and_not_stored,
                sent_without_acknowledgement,
                position_jumped,
                committed_ahead,
                rows_not_written,
            ),
        ),
        FaultKind("duplicates", (retried_without_idempotence, replayed_into_the_log, group_set_back)),
        FaultKind("stopped", (killed_while_it_sends, killed_while_it_sends, killed_while_it_is_quiet)),
        FaultKind("clock", (clock_an_hour_off,)),
        FaultKind("retention", (deleted_before_the_load, deleted_before_the_group, deleted_before_the_broker_tier)),
        FaultKind("ordinary", ()),
    )
}
