"""SIGTERM: what was acknowledged is there afterwards, the logs are marked clean, and nobody can hold the broker up."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import read_response_header
from klamm.core.protocol.messages import response
from klammtest.broker import running_broker
from klammtest.requests import batch, fetch, fetch_fields, new_topic, produce, produce_fields
from klammtest.waiting import eventually
from klammtest.wire import WireClient

CLEAN = ".kafka_cleanshutdown"
SENDERS = 4
IN_FLIGHT = 20
LARGE = 25
_PATIENCE_S = 60.0


class Sender:
    """Keeps `IN_FLIGHT` Produce requests under way on one connection, until the broker closes it."""

    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        self._place = (topic, partition)
        self._bootstrap = bootstrap
        self.acknowledged = 0
        self.warm = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        fields = produce_fields({self._place: batch(b"x" * 500)})
        with WireClient(self._bootstrap) as wire:
            try:
                for _ in range(IN_FLIGHT):
                    wire.send(ApiKey.PRODUCE, 9, **fields)
                while self._receive(wire):
                    wire.send(ApiKey.PRODUCE, 9, **fields)
            except ConnectionError:
                while self._receive(wire):
                    continue  # answers that came before the connection was closed

    def _receive(self, wire: WireClient) -> bool:
        frame = wire.receive_frame()
        if frame is None:
            return False
        _, offset = read_response_header(frame, ApiKey.PRODUCE, 9)
        outcome = response(ApiKey.PRODUCE, 9).decode(frame, offset).responses[0].partition_responses[0]
        assert outcome.error_code is ErrorCode.none
        self.acknowledged = outcome.base_offset + 1
        if self.acknowledged > 100:
            self.warm.set()
        return True

    def join(self) -> None:
        self._thread.join(_PATIENCE_S)
        assert not self._thread.is_alive()


def test_no_acknowledged_record_is_lost_under_load(tmp_path: Path) -> None:
    with running_broker(tmp_path, topics={"t": {"partitions": SENDERS}}) as broker:
        senders = [Sender(broker.bootstrap, "t", number) for number in range(SENDERS)]
        for sender in senders:
            assert sender.warm.wait(_PATIENCE_S)
        assert broker.stop() == 0
        for sender in senders:
            sender.join()
        assert (broker.log_dir / CLEAN).exists()
        assert "ERROR" not in broker.log()
        broker.start()
        with WireClient(broker.bootstrap) as wire:
            for number, sender in enumerate(senders):
                assert fetch(wire, "t", 0, number).high_watermark >= sender.acknowledged > 100


def ask_without_reading(wire: WireClient) -> None:
    """Leave the broker with an answer that no socket's buffers hold."""
    topic = new_topic(wire)
    for _ in range(LARGE):
        produce(wire, topic, batch(b"x" * 900_000))
    wanted = fetch_fields({(topic, 0): 0}, max_bytes=30_000_000, partition_max_bytes=30_000_000)
    for _ in range(6):  # the first answers are small
        wire.send(ApiKey.FETCH, 12, **wanted)
    wire.peek()


def test_clients_that_do_not_read_or_finish_do_not_hold_it_up(tmp_path: Path) -> None:
    with running_broker(tmp_path, broker={"shutdown.drain.timeout.ms": 300}) as broker:
        with WireClient(broker.bootstrap) as unread, WireClient(broker.bootstrap) as unfinished:
            unfinished.send_raw(b"\x00\x00\x10\x00half of a request")
            ask_without_reading(unread)
            assert broker.stop(signal.SIGINT) == 128 + signal.SIGINT
        assert "did not read their responses in 300 ms" in broker.log()
        assert (broker.log_dir / CLEAN).exists()


def test_hangups_until_it_has_ended_leave_the_stop_clean(tmp_path: Path) -> None:
    """As a SIGHUP from a service manager, or of a parent that passes two signals on, which the kernel may reorder."""
    ended = threading.Event()

    def hang_up(pid: int) -> None:
        while not ended.wait(0.0005):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGHUP)

    with running_broker(tmp_path) as broker:
        sender = threading.Thread(target=hang_up, args=(broker.pid,))
        sender.start()
        try:
            status = broker.stop()
        finally:
            ended.set()
            sender.join()
        assert status == 0, broker.log()
        assert (broker.log_dir / CLEAN).exists()


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with running_broker(tmp_path, broker={"shutdown.drain.timeout.ms": 600_000}) as broker:
        with WireClient(broker.bootstrap) as stuck:
            ask_without_reading(stuck)
            os.kill(broker.pid, signal.SIGINT)
            eventually(lambda: "SIGINT: stopping" in broker.log(), "it has begun to stop")
            assert broker.stop() == 128 + signal.SIGTERM
        assert broker.log().splitlines()[-1].startswith("klamm: SIGTERM while stopping: ended at once")
        assert not (broker.log_dir / CLEAN).exists()
