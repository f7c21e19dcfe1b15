"""What the listeners are told of a batch."""

from __future__ import annotations

import threading
from unittest import mock

from klamm.core.client.producer.batch import BatchAudit, ProducerBatch
from klamm.core.client.producer.deliveries import DeliveryListeners
from klamm.core.client.producer.record_future import BatchOutcome
from klamm.core.records.partition import TopicPartition


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
    assert SlowBatch.reading.wait(5)
    listeners.attempted(batch)
    closing.join()
    audit.attempted.assert_called_once_with("t", 0, 14, 7)
