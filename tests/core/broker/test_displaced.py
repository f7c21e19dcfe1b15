"""Two brokers with one id: the one that slept through the end of its session acknowledges nothing when it wakes."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.nodes import BrokerIdNode
from klamm.core.errors import ErrorCode
from klamm.core.interfaces.coordination import Coordination
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import read_response_header
from klammtest.broker import RunningBroker, running_broker
from klammtest.clusters.images import registered_elsewhere
from klammtest.guarantees import guarantee
from klammtest.requests import batch, produce, produce_fields
from klammtest.waiting import eventually
from klammtest.wire import WireClient
from klammtest.zookeeper import CoordinationCase

SESSION_MS = 2000
"""Of a broker whose session has to end; it may end earlier, on a busy machine."""
TOPICS = {"t": {"partitions": 1}}
VERSION = 9


def section(case: CoordinationCase, session_ms: int = SESSION_MS) -> dict[str, Any]:
    name = "session.timeout.ms" if case.name == "embedded" else f"{case.name}.session.timeout.ms"
    return {**case.section(), name: session_ms}


def pause_until_expired(broker: RunningBroker, tree: Coordination) -> None:
    """SIGSTOP until its session is over. One that is stopped while it holds the embedded tree's lock goes on for a
    moment, and is stopped again."""
    for _ in range(10):
        broker.pause()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if tree.exists(paths.broker(0)) is None:
                return
            time.sleep(0.02)
        broker.resume()
        time.sleep(0.05)
    raise AssertionError("its session did not expire")


def send_produce(wire: WireClient, value: bytes) -> None:
    wire.send(ApiKey.PRODUCE, VERSION, **produce_fields({("t", 0): batch(value)}, -1, VERSION))


def acknowledges(wire: WireClient) -> bool:
    """Returns True if a batch is acknowledged before the broker closes the connection."""
    while (frame := wire.receive_frame()) is not None:
        _, offset = read_response_header(frame, ApiKey.PRODUCE, VERSION)
        answer = messages.response(ApiKey.PRODUCE, VERSION).decode(frame, offset)
        if answer.responses[0].partition_responses[0].error_code is ErrorCode.none:
            return True
    return False


@guarantee(
    "D15", "a broker whose id was taken while it slept acknowledges nothing, and stops", plant=lambda patch: None
)
def test_who_wakes_up_displaced_acknowledges_nothing(
    coordination_case: CoordinationCase, tmp_path: Path, planted: bool
) -> None:
    plugins = {"modules": ["klammtest.plugins.without_lease"]} if planted else {}
    tree = coordination_case.open()
    with (
        running_broker(tmp_path / "first", topics=TOPICS, coordination=section(coordination_case), plugins=plugins) as
        first,
        WireClient(first.bootstrap) as wire,
    ):  # fmt: skip
        eventually(lambda: produce(wire, "t", batch(b"before")).base_offset == 0, "it leads")
        pause_until_expired(first, tree)
        second = registered_elsewhere()
        tree.create(paths.broker(0), second.encode(), ephemeral=True)
        for number in range(3):
            send_produce(wire, b"%d" % number)
        first.resume()
        assert not acknowledges(wire)
        assert first.died(60)
        assert first.stop() == 1
        (line,) = (line for line in first.log().splitlines() if line.startswith("klamm: "))
        assert "broker id 0 was taken by the broker at elsewhere:9092, with another log directory (another" in line
        assert "Traceback" not in first.log()
        found = tree.get(paths.broker(0))[0]
        assert BrokerIdNode.decode("", found) == second


def test_who_wakes_up_and_is_still_wanted_goes_on(coordination_case: CoordinationCase, tmp_path: Path) -> None:
    tree = coordination_case.open()
    with (
        running_broker(tmp_path / "first", topics=TOPICS, coordination=section(coordination_case)) as first,
        WireClient(first.bootstrap) as wire,
    ):
        eventually(lambda: produce(wire, "t", batch(b"before")).base_offset == 0, "it leads")
        pause_until_expired(first, tree)
        send_produce(wire, b"meanwhile")
        first.resume()
        answer = wire.receive(ApiKey.PRODUCE, VERSION).responses[0].partition_responses[0]
        # Its next registration leads in a new leader epoch (R8): until then a request is to be sent again.
        assert answer.error_code in (ErrorCode.none, ErrorCode.not_leader_or_follower)
        stored = 1 if answer.error_code is ErrorCode.none else 0
        eventually(lambda: produce(wire, "t", batch(b"after")).base_offset == stored + 1, "it leads again")
        assert first.stop(signal.SIGTERM) == 0


def test_the_second_is_refused_while_the_first_lives(coordination_case: CoordinationCase, tmp_path: Path) -> None:
    """It waits for one and a half of its own session time-outs."""
    lasting, shorter = section(coordination_case, 20_000), section(coordination_case, 6_000)
    with running_broker(tmp_path / "first", coordination=lasting) as first:
        taken = (
            r"broker id 0 is taken by the live broker at 127\.0\.0\.1:\d+; configure another `broker.id` for this one"
        )
        with pytest.raises(RuntimeError, match=taken), running_broker(tmp_path / "second", coordination=shorter):
            pass
        first.create_topics(TOPICS)
        with WireClient(first.bootstrap) as wire:
            eventually(lambda: produce(wire, "t", batch(b"x")).error_code is ErrorCode.none, "the first goes on")
