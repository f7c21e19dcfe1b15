"""This broker's reports to the controller: where logs of partitions without a leader end (docs/replication.md, R7),
and which logs are offline. A report is written when it changes, and again after a write whose outcome is unknown."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from ...cluster.tree.steps import Steps
from ...records.partition import TopicPartition
from ...replication.elections import RecoveredEnd

Ends = Mapping[TopicPartition, RecoveredEnd]


class Reporter(Protocol):
    """The part of a `ClusterNode` by which its broker reports."""

    def report_recovered(self, ends: Ends) -> Steps[None]: ...

    def report_offline(self, partitions: Collection[TopicPartition]) -> Steps[None]: ...


class LogReports:
    """Without I/O; one `write` at a time."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._incarnation = ""
        """The incarnation under which `_recovered` was reported: that report ends with its session."""
        self._recovered: Ends | None = {}
        self._offline: frozenset[TopicPartition] | None = frozenset()
        """The last report; None if it is unknown."""

    def offline_differs(self, offline: frozenset[TopicPartition]) -> bool:
        return offline != self._offline

    def differ(self, incarnation: str, recovered: Ends, offline: frozenset[TopicPartition]) -> bool:
        """Returns True if `write` has anything to write."""
        known = self._recovered if incarnation == self._incarnation else {}
        return recovered != known or self.offline_differs(offline)

    def write(self, incarnation: str, recovered: Ends, offline: frozenset[TopicPartition]) -> Steps[None]:
        """Reports what has changed. `incarnation`: of the registration in force, "" without one. Raises
        `CoordinationError`; the report may then have been written, wholly or in part."""
        if incarnation != self._incarnation:
            self._recovered, self._incarnation = {}, incarnation
        if recovered != self._recovered:
            self._recovered = None
            yield from self._reporter.report_recovered(recovered)
            self._recovered = recovered
        if offline != self._offline:
            self._offline = None
            yield from self._reporter.report_offline(offline)
            self._offline = offline
