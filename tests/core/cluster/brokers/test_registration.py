"""A broker's own path, on both coordinations."""

from __future__ import annotations

import threading
import time
from uuid import UUID

import pytest

from klamm.core.cluster.brokers.incarnations import evict_operations
from klamm.core.cluster.brokers.registration import BrokerIdentity, Registration
from klamm.core.cluster.changes import incarnation_path
from klamm.core.cluster.image import Endpoint
from klamm.core.cluster.image_reader import read_image
from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.bootstrap import create_base_paths
from klamm.core.cluster.tree.nodes import BrokerIdNode
from klamm.core.cluster.tree.steps import plain
from klamm.core.errors import BrokerError, ErrorCode
from klamm.core.interfaces.coordination import Coordination, NoNodeError, SessionExpiredError
from klamm.core.replication.registrations import BrokerRegistration
from klammtest.clusters.blocking import Blocking
from klammtest.waiting import eventually
from klammtest.zookeeper import CoordinationCase


def registration(coordination: Coordination, directory_id: str = "", port: int = 9092, broker_id: int = 0) -> Blocking:
    create_base_paths(coordination, lambda: UUID(int=7))
    identity = BrokerIdentity(0, (Endpoint("127.0.0.1", port),), ("data",), directory_id)
    return Blocking(coordination, Registration(coordination, identity, lambda: 1_700_000_000.0))


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


def test_a_registration_is_two_paths_with_all_that_others_need(coordination: Coordination) -> None:
    create_base_paths(coordination, lambda: UUID(int=7))
    endpoints = (Endpoint("a", 1, "CLIENTS"), Endpoint("::1", 2, "BROKERS"))
    identity = BrokerIdentity(3, endpoints, ("new", "old"), "dir", "rack-1", "BROKERS")
    mine = Blocking(coordination, Registration(coordination, identity, lambda: 1_700_000_000.0))
    mine.register()
    node = read_image(coordination).brokers[3]
    own = mine.own
    assert own is not None
    assert node.registration == BrokerRegistration(3, own.epoch, own.incarnation, ("new", "old"))
    assert (node.host, node.port, node.rack, node.directory_id) == ("a", 1, "rack-1", "dir")
    assert node.inter_broker_endpoint == Endpoint("::1", 2, "BROKERS")
    assert [endpoint.security_protocol for endpoint in node.endpoints.values()] == ["PLAINTEXT", "PLAINTEXT"]
    both = [coordination.exists(path) for path in (paths.broker(3), incarnation_path(own.incarnation))]
    assert [stat and stat.ephemeral_owner for stat in both] == [coordination.session_id] * 2
    mine.unregister()
    assert coordination.children(paths.INCARNATIONS) == []


def test_a_registration_that_was_evicted_is_made_anew(coordination: Coordination) -> None:
    mine = registration(coordination, "dir")
    epoch = mine.register()
    before = mine.own
    assert before is not None
    found = read_image(coordination).brokers.get(0)
    assert found is not None
    coordination.transaction(evict_operations(found.registration))
    assert not mine.holds(epoch)
    assert not mine.renew(epoch)
    assert mine.register() > epoch
    after = mine.own
    assert after is not None
    assert after.incarnation != before.incarnation
    assert coordination.children(paths.INCARNATIONS) == [after.incarnation]


def test_a_late_renewal_leaves_a_later_registration_as_it_is(
    coordination: Coordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version of the path begins at 0 with each registration."""
    mine = registration(coordination, "dir")
    first, found = mine.register(), mine._found()
    evicted = read_image(coordination).brokers.get(0)
    assert evicted is not None
    coordination.transaction(evict_operations(evicted.registration))
    assert mine.register() > first
    later = mine.own
    assert later is not None
    with monkeypatch.context() as patch:
        patch.setattr(mine.inner, "_found", plain(lambda: found))
        assert not mine.renew(first)
    assert BrokerIdNode.decode("", coordination.get(paths.broker(0))[0]).incarnation == later.incarnation


def test_a_late_leaving_leaves_a_later_registration_as_it_is(coordination: Coordination) -> None:
    """It was evicted, and has registered again, between the reading of its registration and the change of it."""
    mine = registration(coordination, "dir")
    mine.register()
    late = mine.leave()
    evicted = read_image(coordination).brokers.get(0)
    assert evicted is not None
    coordination.transaction(evict_operations(evicted.registration))
    mine.register()
    later = mine.own
    assert later is not None
    with pytest.raises(NoNodeError):
        coordination.transaction(late)
    assert BrokerIdNode.decode("", coordination.get(paths.broker(0))[0]).incarnation == later.incarnation
    assert read_image(coordination).registrations[0].leaving


def test_a_registration_without_its_incarnation_is_replaced(coordination: Coordination) -> None:
    mine = registration(coordination, "dir")
    epoch = mine.register()
    assert mine.own is not None
    coordination.delete(incarnation_path(mine.own.incarnation))
    assert mine.register() > epoch


def test_a_registration_stays_leaving(coordination: Coordination) -> None:
    mine = registration(coordination, "dir")
    assert mine.leave() == []  # not registered yet
    epoch = mine.register()
    assert read_image(coordination).registrations[0].leaving
    assert mine.leave() == []
    again = registration(coordination, "dir")
    renewed = again.register()
    assert renewed > epoch  # others who have read the former one see that it was replaced
    assert not read_image(coordination).registrations[0].leaving
    coordination.transaction(again.leave())
    assert read_image(coordination).registrations[0].leaving
    assert again.holds(renewed)


def test_a_broker_without_data_or_addresses_is_refused(coordination: Coordination) -> None:
    for identity in (BrokerIdentity(0, (), ("data",)), BrokerIdentity(0, (Endpoint("h", 1),), ())):
        with pytest.raises(ValueError, match="a broker has at least one data id and one endpoint"):
            Registration(coordination, identity, lambda: 0.0)


def test_registering_again_in_one_session_is_one_registration(coordination: Coordination) -> None:
    epoch = registration(coordination, port=1).register()
    assert registration(coordination, port=1).register() == epoch
    assert registration(coordination, port=2).register() > epoch
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


def test_a_registration_says_whether_the_disk_is_full(coordination: Coordination) -> None:
    mine = registration(coordination, "dir")
    with pytest.raises(SessionExpiredError, match="not registered"):
        mine.mark_full(True)
    epoch = mine.register()
    assert read_image(coordination).registrations[0].full
    assert mine.mark_full(True) == []
    coordination.transaction(mine.mark_full(False))
    assert not read_image(coordination).registrations[0].full
    coordination.transaction(mine.mark_full(True))
    found = read_image(coordination).brokers.get(0)
    assert found is not None
    assert (found.registration.full, found.registration.epoch) == (True, epoch)
    coordination.transaction(mine.leave())
    found = read_image(coordination).brokers.get(0)
    assert found is not None
    assert (found.registration.full, found.registration.leaving) == (False, True)
    assert mine.mark_full(False) == []
