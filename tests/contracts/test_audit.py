"""The contract of an audit system, on every one that is shipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from klamm.core.interfaces.audit import Audit
from klamm.core.plugins import plugin_host
from klamm.plugins.audit.comparison.compare import tier_counts
from klamm.plugins.audit.comparison.tiers import Place
from klamm.plugins.audit.event import decode_event
from klamm.testing.contracts import AuditContract
from klamm.testing.contracts.audit import AuditedWindow
from klammtest.audits import FLIGHTS, WINDOW_MS, AuditTopic, MemoryLogs, identity


@pytest.mark.parametrize("name", plugin_host().audits.names())
class TestAudits(AuditContract):
    @pytest.fixture(autouse=True)
    def chosen(self, name: str) -> None:
        self.name = name

    def make_audit(self, **config: Any) -> Audit:
        return plugin_host().audits.create(self.name, config)

    def windows(self, topic: str, events: Sequence[tuple[bytes, bytes]]) -> list[AuditedWindow]:
        read = [decode_event(value) for _, value in events]
        [found] = tier_counts(topic, read, WINDOW_MS, 0).values()
        assert found.problems == []
        attempted = {w.start_ms: w.attempted or 0 for event in read for w in event.windows}
        return [
            AuditedWindow(start, attempted[start], tally.records, tally.size)
            for start, tally in sorted(found.windows.items())
        ]

    def test_a_broker_tells_no_watermark_that_was_not_computed(self) -> None:
        service = self.make_audit().broker(MemoryLogs())
        assert service.health() is None
        assert list(service.metrics()) == []


def test_a_range_ends_where_it_was_committed() -> None:
    topic = AuditTopic()
    counts = plugin_host().audits.create("klamm", {}).ranges(identity("consumer"), topic)
    counts.start(FLIGHTS, 3)
    counts.count(FLIGHTS, [3, 8], [0, 2], [1, 4])
    counts.publish({FLIGHTS: 9})
    counts.close()
    [found] = tier_counts("flights", topic.events, WINDOW_MS, 0).values()
    assert found.ends == {Place("", 0): 9}
