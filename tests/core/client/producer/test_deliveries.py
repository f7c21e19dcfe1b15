"""The calls of the delivery listeners for a batch."""

from __future__ import annotations

import threading
from unittest import mock

import pytest

from klamm.core.client.producer.batch import BatchAudit, ProducerBatch
from klamm.core.client.producer.deliveries import DeliveryListeners
from klamm.core.client.producer.producer import Producer
from klamm.core.client.producer.record_future import BatchOutcome
from klamm.core.config.settings import Settings
from klamm.core.interfaces.audit import AuditIdentity, Counted
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import Headers
from klammtest.clients.producing import CountingAudit


class SlowBatch(ProducerBatch):
    """Another thread gets the time to report the batch after this one has found it unreported."""

    reading = threading.Event()
    reported = False

    @property
    def attempt_reported(self) -> bool:
        found = self.reported
        if not self.reading.is_set():
            self.reading.set()
            threading.Event().wait(0.2)
        return found

    @attempt_reported.setter
    def attempt_reported(self, reported: bool) -> None:
        self.reported = reported


def test_the_audit_is_told_once_of_a_batch_that_two_threads_report() -> None:
    listeners = DeliveryListeners(())
    listeners.audit = audit = mock.Mock()
    batch = SlowBatch(BatchOutcome(TopicPartition("t", 0)), 0.0, audit=BatchAudit(lambda counted: (), 10))
    batch.records = [(5, b"k", b"v", ())] * 7
    closing = threading.Thread(target=listeners.attempted, args=(batch,))
    SlowBatch.reading.clear()
    closing.start()
    assert SlowBatch.reading.wait(60)
    listeners.attempted(batch)
    closing.join()
    audit.attempted.assert_called_once_with("t", 0, 14, 7)


class FailingAudit(CountingAudit):
    """`mark` raises while `fails` is set."""

    fails = False

    def mark(self, identity: AuditIdentity, partition: TopicPartition, counted: Counted) -> Headers:
        if self.fails:
            raise RuntimeError("on purpose")
        return super().mark(identity, partition, counted)

    def close(self) -> None:
        """Publishes nothing: there is no broker."""


def test_an_error_of_the_audit_is_not_kept_for_later_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    audit = FailingAudit("flights")
    monkeypatch.setattr(Settings, "make_audit", lambda _: audit)
    with Producer({"producer": {"bootstrap.servers": "127.0.0.1:1"}}) as producer:
        batch_audit = producer._batch_audit(TopicPartition("flights", 0), 0)
        assert batch_audit is not None
        size = producer._mark_size("flights")
        audit.fails = True
        assert batch_audit.mark(((0, 1, 10),)) == ()
        assert producer._mark_size("flights") >= size, "later batches are marked, so there must be room"
        audit.fails = False
        assert dict(batch_audit.mark(((0, 1, 10),)))["batch"] == b"1 flights-0"
        assert producer.metrics()["audit_errors"] == 2
