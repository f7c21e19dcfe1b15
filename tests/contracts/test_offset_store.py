"""The contract of `klamm.core.interfaces.offsets`, on every offset store that ships and every coordination."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from klamm.core.errors import BrokerError, CoordinationError, ErrorCode
from klamm.core.groups.records.stored_group import StoredGroup, StoredMember
from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.offsets import CommittedOffset, OffsetStore
from klamm.core.plugins import plugin_host
from klamm.testing.contracts import OffsetStoreContract
from klamm.testing.contracts.offset_store import A0, FULL, MakeStore, OpenCoordination
from klammtest.brokers.inprocess import broker_thread
from klammtest.brokers.led import LedOffsets, stored_groups
from klammtest.zookeeper import CoordinationCase


class TestOffsetStores(OffsetStoreContract):
    @pytest.fixture(params=["coordination", "topic", "topic at the leader"])
    def make_store(
        self, request: pytest.FixtureRequest, coordination_case: CoordinationCase, tmp_path: Path
    ) -> Iterator[MakeStore]:
        """Each store, as the plugin host makes it. The one that keeps offsets in a topic has a broker on the same
        tree; a coordinator's part of it has the log of the partition that its broker leads."""
        made: list[OffsetStore] = []
        plugin = request.param.partition(" ")[0]
        keys = {"offsets.commit.timeout.ms": 60_000} if plugin == "topic" else {}
        led = LedOffsets(tmp_path) if plugin != request.param else None

        def make(coordination: Coordination) -> OffsetStore:
            made.append(plugin_host().offset_stores.create(plugin, keys, coordination))
            if led is not None:
                assert made[-1].in_offsets_topic
                made.append(stored_groups(led.log(), coordination))
            return made[-1]

        with broker_thread(tmp_path, coordination_case.section()) if keys and led is None else nullcontext():
            yield make
            for store in made:
                store.close()
        if led is not None:
            led.close()

    @pytest.fixture
    def open_coordination(self, coordination_case: CoordinationCase) -> OpenCoordination:
        return coordination_case.open


def test_groups_members_are_kept_in_the_partition_of_the_group(
    coordination_case: CoordinationCase, tmp_path: Path
) -> None:
    coordination = coordination_case.open()
    led = LedOffsets(tmp_path)
    one, other = stored_groups(led.log(), coordination), stored_groups(led.log(), coordination)
    assert one.load_groups() == {}
    member = StoredMember("m-1", None, "m", "/127.0.0.1", 60_000, 10_000, b"topics", b"share")
    states = {name: StoredGroup("consumer", 4, "range", "m-1", 5, (member,)) for name in ("g", "größe")}
    for name, state in states.items():
        one.save_group(name, StoredGroup("consumer", 3, None, None))
        one.save_group(name, state)
    assert other.load_groups() == states
    assert one.groups() == []
    one.commit("g", {A0: FULL})
    one.delete("g", [A0])
    assert set(other.load_groups()) == {"g", "größe"}
    one.commit("g", {A0: FULL})
    one.delete("g", seen={})
    assert set(other.load_groups()) == {"g", "größe"}
    one.delete("g")
    assert other.load_groups() == {"größe": states["größe"]}
    led.close()


def test_a_deposed_leader_stores_and_reads_nothing(coordination_case: CoordinationCase, tmp_path: Path) -> None:
    coordination = coordination_case.open()
    led = LedOffsets(tmp_path)
    deposed = stored_groups(led.log(), coordination)
    deposed.commit("g", {A0: CommittedOffset(1)})
    led.next_epoch()
    successor = stored_groups(led.log(), coordination)
    for call in (lambda: deposed.commit("g", {A0: CommittedOffset(2)}), lambda: deposed.fetch("g")):
        with pytest.raises(BrokerError) as raised:
            call()
        assert raised.value.code is ErrorCode.not_leader_or_follower
    assert successor.fetch("g") == {A0: CommittedOffset(1)}
    led.lose()
    with pytest.raises(BrokerError, match="does not lead"):
        successor.commit("g", {A0: CommittedOffset(3)})
    led.close()


def test_what_the_coordination_store_writes(coordination: Coordination) -> None:
    def make_store(coordination: Coordination) -> OffsetStore:
        return plugin_host().offset_stores.create("coordination", {}, coordination)

    make_store(coordination).commit("g", {A0: FULL})
    data, _ = coordination.get("/consumers/g/offsets/a/0")
    assert json.loads(data) == {
        "version": 1,
        "offset": 7,
        "leaderEpoch": 3,
        "metadata": 'größe {"x": 1}',
        "commitTimestamp": 1_700_000_000_000,
    }
    coordination.set("/consumers/g/offsets/a/0", b"42?")
    with pytest.raises(CoordinationError, match="/consumers/g/offsets/a/0"):
        make_store(coordination).fetch("g")
