"""A load that dies anywhere, two at once, and an audit event that was not sent: each offset once in the end.

A crash is the lake as it was at a fault point, copied: what kill -9 leaves behind. `test_load_command.py` kills a real
process.
"""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from klamm.core.interfaces.audit import AuditIdentity, RangeCount
from klamm.hadoop.load.audit import LoadAuditor
from klamm.hadoop.load.job import LoadResult
from klamm.hadoop.load.staging import LoadConflictError
from klamm.hadoop.publishing.local import LocalPublisher
from klammtest.faulty import fault_hook
from klammtest.hadoop.load_jobs import (
    DAY_MS,
    LOAD_POINTS,
    TOPIC,
    coordinates,
    everything,
    filled,
    flight,
    job,
)


def test_a_load_killed_at_any_point_and_run_again_has_each_offset_once(spark: SparkSession, tmp_path: Path) -> None:
    topics = filled(6)
    root = tmp_path / "lake"
    job(spark, topics, str(root)).run(TOPIC)
    for number in range(6):
        topics.add(number % 2, flight(number), ts_ms=number * DAY_MS)

    def crash(point: str) -> None:
        if point in LOAD_POINTS:
            shutil.copytree(root, tmp_path / point)

    with fault_hook(crash):
        job(spark, topics, str(root)).run(TOPIC)
    for point in LOAD_POINTS:
        crashed = tmp_path / point
        left = [p.name for p in (crashed / TOPIC / "_staging").iterdir()]
        assert (left == []) == (point == "load.planned"), point
        seen = coordinates(spark, str(crashed))
        assert len(seen) == (12 if point == "load.published" else 6), point
        again = job(spark, topics, str(crashed)).run(TOPIC)
        assert (again is None) == (point == "load.published"), point
        assert coordinates(spark, str(crashed)) == everything(topics), point
        job(spark, topics, str(crashed), staging_retention_s=-1).run(TOPIC)
        assert list((crashed / TOPIC / "_staging").iterdir()) == [], point


def test_of_two_jobs_at_once_one_publishes_and_the_other_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    topics = filled(6)
    both = threading.Barrier(2)

    def meet(point: str) -> None:
        if point == "load.staged":
            both.wait(60)

    def run() -> LoadResult | None:
        return job(spark, topics, str(tmp_path)).run(TOPIC)

    with fault_hook(meet), ThreadPoolExecutor(2) as pool:
        outcomes: list[Future[Any]] = [pool.submit(run) for _ in range(2)]
        errors = [outcome.exception() for outcome in outcomes]
    lost = [error for error in errors if error is not None]
    assert [type(error) for error in lost] == [LoadConflictError]
    assert "\n" not in str(lost[0])
    assert coordinates(spark, str(tmp_path)) == everything(topics)
    assert list((tmp_path / TOPIC / "_staging").iterdir()) == []
    assert run() is None


class RecordedAudit:
    """As much of `klamm.core.interfaces.audit.Audit` as a load uses."""

    topic = "__audit"
    window_ms = 600_000

    def __init__(self) -> None:
        self.sent: list[RangeCount] = []
        self.away = False
        self.identities: set[AuditIdentity] = set()

    def audits(self, topic: str) -> bool:
        return topic == TOPIC

    def ranges(self, identity: AuditIdentity, publish: object) -> RecordedAudit:
        self.identities.add(identity)
        return self

    def publish_ranges(self, ranges: list[RangeCount]) -> None:
        if self.away:
            raise ConnectionError("no broker")
        self.sent += ranges

    def close(self) -> None:
        return


def test_an_event_that_was_not_sent_is_sent_by_the_next_run(spark: SparkSession, tmp_path: Path) -> None:
    topics, audit = filled(4), RecordedAudit()
    auditor = LoadAuditor(audit, "lake", lambda: nullcontext(None), LocalPublisher())  # type: ignore[arg-type]
    warnings: list[str] = []
    load = job(spark, topics, str(tmp_path), auditor=auditor, warn=warnings.append)
    audit.away = True
    assert load.run(TOPIC) is not None
    assert warnings == [
        "flights: the audit does not know this lake yet (no broker); until this load's event is stored it counts an "
        "earlier lake of the sink",
        "flights: an audit event is not stored (no broker); the next load sends it",
    ]
    assert coordinates(spark, str(tmp_path)) == everything(topics)
    assert audit.sent == []
    audit.away = False
    assert load.run(TOPIC) is None
    assert [(c.partition.partition, c.from_offset, c.to_offset) for c in audit.sent] == [(0, 0, 2), (1, 0, 2)]
    assert sum(w.count for c in audit.sent for w in c.windows) == 4
    assert load.run(TOPIC) is None
    assert len(audit.sent) == 2
    assert [(i.tier, i.owner) for i in audit.identities] == [("hadoop", "lake")]
    topics.add(0, flight(9))
    load.run(TOPIC)
    assert [(c.partition.partition, c.from_offset, c.to_offset) for c in audit.sent[2:]] == [(0, 2, 3)]


def test_the_remedy_that_a_load_names_begins_a_lake_that_the_audit_knows_before_its_first_load(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The directory is moved away; the load that follows dies as soon as it is visible."""
    topics, audit = filled(4), RecordedAudit()
    root = tmp_path / "lake"

    def run() -> LoadResult | None:
        auditor = LoadAuditor(audit, "lake", lambda: nullcontext(None), LocalPublisher())  # type: ignore[arg-type]
        return job(spark, topics, str(root), auditor=auditor).run(TOPIC)

    def die(point: str) -> None:
        if point == "load.published":
            raise KeyboardInterrupt

    assert run() is not None
    shutil.move(root / TOPIC, tmp_path / "away")
    told = len(audit.sent)
    with fault_hook(die), pytest.raises(KeyboardInterrupt):
        run()
    [announced] = [count.load for count in audit.sent[told:]]
    first = audit.sent[0].load
    assert announced is not None
    assert first is not None
    assert (announced.number, announced.directory) == (0, first.directory)
    assert announced.lake != first.lake
    assert run() is None
    assert {count.load.lake for count in audit.sent[told:] if count.load is not None} == {announced.lake}
    assert sum(window.count for count in audit.sent[told:] for window in count.windows) == 4
