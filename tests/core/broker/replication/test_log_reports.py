"""Reports of logs to the controller are written again after a write whose outcome is unknown."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from klamm.core.broker.replication.log_reports import LogReports
from klamm.core.cluster.brokers import reports
from klamm.core.cluster.brokers.reports import Ends, read_reports, report_offline, report_recovered
from klamm.core.cluster.changes import incarnation_path
from klamm.core.cluster.tree.steps import Steps, run_steps
from klamm.core.errors import CoordinationError
from klamm.core.interfaces.coordination import (
    BadVersionError,
    Coordination,
    CoordinationUnavailableError,
    Create,
    NoNodeError,
    Operation,
    SessionExpiredError,
)
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.elections import RecoveredEnd
from klamm.plugins.coordination.embedded.coordination import EmbeddedConfig, EmbeddedCoordination
from klammtest.clusters.blocking import Blocking

T0 = TopicPartition("t", 0)
NONE: frozenset[TopicPartition] = frozenset()


class Cluster:
    """The reports of broker 3. A write of a path in `unanswered` is carried out, one in `lost` is not, one in `late` is
    `held`; none is answered."""

    def __init__(self, coordination: Coordination) -> None:
        self.coordination = coordination
        self.lost = self.unanswered = self.late = ""
        self.held: list[list[Operation]] = []
        self._transaction = coordination.transaction
        cast(Any, coordination).transaction = self._faulty

    def _faulty(self, operations: list[Operation]) -> None:
        created = [operation.path for operation in operations if isinstance(operation, Create)]
        if self.lost in created:
            raise CoordinationUnavailableError("planted")
        if self.late in created:
            self.held.append(operations)
            raise CoordinationUnavailableError("planted")
        self._transaction(operations)
        if self.unanswered in created:
            raise CoordinationUnavailableError("planted")

    def report_recovered(self, ends: Mapping[TopicPartition, RecoveredEnd]) -> Steps[None]:
        return report_recovered(self.coordination, 3, "i", ends)

    def report_offline(self, partitions: Collection[TopicPartition]) -> Steps[None]:
        return report_offline(self.coordination, 3, "i", partitions)

    def offline(self) -> set[TopicPartition]:
        return set(run_steps(self.coordination, read_reports()).offline.get(3, ()))

    def ends(self) -> Ends:
        return run_steps(self.coordination, read_reports()).recovered


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with closing(EmbeddedCoordination(EmbeddedConfig(path=tmp_path / "tree.db"))) as coordination:
        coordination.start()
        for parent in ("/brokers/recovered", "/brokers/offline"):
            coordination.create(parent, make_parents=True)
        coordination.create(incarnation_path("i"), ephemeral=True, make_parents=True)
        yield Cluster(coordination)


def ends(topic: str, count: int) -> dict[TopicPartition, RecoveredEnd]:
    return {TopicPartition(topic, number): RecoveredEnd(5, "d", 4, number) for number in range(count)}


def test_an_offline_log_whose_report_was_not_answered_can_come_back(cluster: Cluster) -> None:
    """As a partition without room for its files, which are then there before the next attempt."""
    told = Blocking(cluster.coordination, LogReports(cluster))
    cluster.unanswered = "/brokers/offline/3"
    with pytest.raises(CoordinationError):
        told.write("i", {}, frozenset({T0}))
    assert cluster.offline() == {T0}
    assert told.offline_differs(NONE)
    assert told.differ("i", {}, NONE)
    told.write("i", {}, NONE)
    assert cluster.offline() == set()
    assert not told.differ("i", {}, NONE)


def test_a_write_that_was_not_answered_does_not_come_after_the_next_report(cluster: Cluster) -> None:
    told = Blocking(cluster.coordination, LogReports(cluster))
    told.write("i", {}, frozenset({T0}))
    cluster.late = "/brokers/offline/3"
    with pytest.raises(CoordinationError):
        told.write("i", {}, frozenset({T0, TopicPartition("t", 1)}))
    cluster.late = ""
    told.write("i", {}, frozenset({T0}))
    (held,) = cluster.held
    with pytest.raises(BadVersionError):
        cluster.coordination.transaction(held)
    assert cluster.offline() == {T0}


def test_nothing_is_reported_after_the_registration_has_ended(cluster: Cluster) -> None:
    """A process that has ended, and whose session lives on, does not replace the report of the next one."""
    told = Blocking(cluster.coordination, LogReports(cluster))
    cluster.late = "/brokers/offline/3"
    with pytest.raises(CoordinationError):
        told.write("i", {}, frozenset({T0}))
    cluster.late = ""
    cluster.coordination.delete(incarnation_path("i"))
    with pytest.raises(NoNodeError):
        cluster.coordination.transaction(cluster.held[0])
    with pytest.raises(SessionExpiredError):
        told.write("i", {}, frozenset({T0}))


def test_what_a_report_in_parts_had_before_it_failed_half_way_is_reported_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "_PART_BYTES", 120)
    told, before = Blocking(cluster.coordination, LogReports(cluster)), ends("z", 3)
    told.write("i", before, NONE)
    cluster.lost = "/brokers/recovered/3-1"
    with pytest.raises(CoordinationError):
        told.write("i", before | ends("a", 8), NONE)
    assert set(before) - set(cluster.ends())
    cluster.lost = ""
    told.write("i", before, NONE)  # the other partitions have leaders again
    assert set(cluster.ends()) == set(before)


def test_ends_are_reported_anew_in_another_session(cluster: Cluster) -> None:
    told, found = Blocking(cluster.coordination, LogReports(cluster)), ends("t", 1)
    told.write("i", found, NONE)
    assert not told.differ("i", found, NONE)
    assert told.differ("j", found, NONE)
    assert not told.differ("j", {}, NONE), "there is nothing to take back"
