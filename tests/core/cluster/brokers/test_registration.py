"""A broker's own path, on both coordinations."""

from __future__ import annotations

import threading
import time
from uuid import UUID

import pytest

from klamm.core.cluster.brokers.registration import BrokerIdentity, Registration
from klamm.core.cluster.image import Endpoint
from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.bootstrap import create_base_paths
from klamm.core.cluster.tree.nodes import BrokerIdNode
from klamm.core.errors import BrokerError, ErrorCode
from klamm.core.interfaces.coordination import Coordination
from klammtest.waiting import eventually
from klammtest.zookeeper import CoordinationCase


def registration(
    coordination: Coordination, directory_id: str = "", port: int = 9092, broker_id: int = 0
) -> Registration:
    create_base_paths(coordination, lambda: UUID(int=7))
    identity = BrokerIdentity(0, Endpoint("127.0.0.1", port), directory_id)
    return Registration(coordination, identity, lambda: 1_700_000_000.0)


def test_register_and_unregister(coordination: Coordination) -> None:
    mine = registration(coordination, "dir")
    epoch = mine.register()
    data, stat = coordination.get("/brokers/ids/0")
    assert (stat.ephemeral_owner, stat.creation_id) == (coordination.session_id, epoch)
    node = BrokerIdNode.decode("", data)
    assert (node.host, node.port, node.directory_id, node.timestamp) == ("127.0.0.1", 9092, "dir", 1_700_000_000_000)
    assert node.endpoints == ("PLAINTEXT://127.0.0.1:9092",)
    mine.unregister()
    mine.unregister()
    assert coordination.exists("/brokers/ids/0") is None
    assert mine.register() > epoch


def test_registering_again_in_one_session_is_one_registration(coordination: Coordination) -> None:
    epoch = registration(coordination, port=1).register()
    assert registration(coordination, port=2).register() == epoch
    assert BrokerIdNode.decode("", coordination.get("/brokers/ids/0")[0]).port == 2


def test_the_holder_of_the_log_directory_reclaims_its_dead_sessions_path(coordination_case: CoordinationCase) -> None:
    """Killed with -9 and started again at once: the old session still lives, the directory's lock says whose it is."""
    dead, mine = coordination_case.open(60_000), coordination_case.open()
    before = registration(dead, "dir").register()
    epoch = registration(mine, "dir").register()
    assert epoch > before
    stat = mine.exists("/brokers/ids/0")
    assert stat is not None
    assert stat.ephemeral_owner == mine.session_id


def test_another_brokers_dead_session_is_waited_out(coordination_case: CoordinationCase) -> None:
    dead, mine = coordination_case.open(60_000), coordination_case.open(20_000)
    registration(dead, "another").register()
    epochs: list[int] = []
    registering = threading.Thread(target=lambda: epochs.append(registration(mine, "dir").register()))
    registering.start()
    time.sleep(0.2)
    assert registering.is_alive()
    dead.close()
    registering.join(60)
    assert len(epochs) == 1


def test_a_live_broker_with_this_id_is_one_clear_line(coordination_case: CoordinationCase) -> None:
    live, mine = coordination_case.open(), coordination_case.open(session_timeout_ms=4000)
    registration(live, "another", port=19092).register()
    with pytest.raises(BrokerError) as caught:
        registration(mine, "dir").register()
    assert caught.value.code is ErrorCode.duplicate_broker_registration
    assert "broker id 0 is taken by the live broker at 127.0.0.1:19092" in str(caught.value)
    assert "`broker.id`" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unregister_leaves_what_is_anothers(coordination_case: CoordinationCase) -> None:
    first, second = coordination_case.open(), coordination_case.open()
    old = registration(first, "dir")
    old.register()
    registration(second, "dir").register()
    old.unregister()
    assert first.exists(paths.broker(0)) is not None
    second.close()
    eventually(lambda: first.exists(paths.broker(0)) is None, "the end of the second's path")
