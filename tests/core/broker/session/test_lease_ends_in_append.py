"""A registration that ends while a Produce is appended: its acknowledgement does not go out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from klamm.core.broker.delayed_reply import Reply
from klamm.core.broker.handlers.dispatch import Dispatcher
from klamm.core.broker.session.lease import Lease
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.config.settings import load_settings
from klamm.core.protocol.apis import ApiKey
from klammtest.brokers.inprocess import broker_thread
from klammtest.faulty import fault_hook
from klammtest.guarantees import guarantee
from klammtest.requests import batch, produce_fields
from klammtest.wire import WireClient

TOPIC = "stopped"


def acknowledge_all_the_same(patch: pytest.MonkeyPatch) -> None:
    async def reply_at_once(_: Dispatcher, reply: Reply) -> Reply:
        return reply

    patch.setattr(Dispatcher, "_held_back", reply_at_once)


@contextmanager
def leased(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[WireClient, Lease]]:
    """A broker with a topic of two partitions, and its lease."""
    leases: list[Lease] = []
    start = Lease.start

    def started(lease: Lease) -> None:
        leases.append(lease)
        start(lease)

    patch.setattr(Lease, "start", started)
    with broker_thread(folder, {"plugin": "embedded", "path": str(folder / "tree.db")}) as broker:
        address = f"{broker.advertised[0].host}:{broker.advertised[0].port}"
        with ClusterClient(address, codecs=load_settings({}).codec_table()) as client:
            client.create_topics({TOPIC: NewTopic(2)})
        with WireClient(address) as wire:
            yield wire, leases[0]


@guarantee(
    "D15",
    "what was stored while the registration ended is not acknowledged",
    plant=acknowledge_all_the_same,
)
@pytest.mark.parametrize("partitions", [1, 2], ids=["the fast path", "the general path"])
def test_a_registration_that_ends_during_an_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    with leased(tmp_path, monkeypatch) as (wire, lease):
        epoch = lease.epoch

        async def another() -> int:
            return epoch + 1

        def slept(point: str) -> None:
            """As if the process had been stopped here, and had registered once more since."""
            if point == "log.append.after_write":
                monkeypatch.setattr(lease, "_confirm", another)
                lease.deadline_ns = 0

        records = {(TOPIC, number): batch(b"x") for number in range(partitions)}
        with fault_hook(slept):
            wire.send(ApiKey.PRODUCE, 9, **produce_fields(records))
            assert wire.receive_frame() is None, "it was acknowledged"
