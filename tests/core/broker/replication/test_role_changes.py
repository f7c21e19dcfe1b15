"""Roles that images give: one whose application fails is applied again, though the cluster does not change any more,
and a leader epoch that was left is followed by a new one.
"""

from __future__ import annotations

import errno
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from klamm.core.broker.replication.full_disk import FullDisk
from klamm.core.broker.replication.role_changes import RoleChanges
from klamm.core.cluster.change_writer import ChangeWriter, Plan, no_guard
from klamm.core.cluster.control.tasks import ControllerTasks
from klamm.core.cluster.image_reader import image_steps, read_image
from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.nodes import RestoredNode
from klamm.core.cluster.tree.steps import plain, run_steps
from klamm.core.errors import ErrorCode
from klamm.core.interfaces.coordination import Coordination, Create
from klamm.core.log.segment.naming import OFFSET_GAPS
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.partition_state import NO_EPOCH
from klamm.plugins.coordination.embedded.coordination import EmbeddedConfig, EmbeddedCoordination
from klammtest.brokers.inprocess import broker_thread
from klammtest.faulty import fault_hook
from klammtest.requests import alter_topic, batch, create_topic, produce
from klammtest.waiting import eventually
from klammtest.wire import WireClient


def test_partitions_get_their_roles_after_an_unexpected_error(tmp_path: Path) -> None:
    """Whatever the error is: the partitions that were not reached would have no role until the next image."""
    planted: list[str] = []

    def fail_thrice(point: str) -> None:
        if point == "files.fsync_directory" and len(planted) < 3:
            planted.append(point)
            raise ValueError("planted")

    tree = {"plugin": "embedded", "path": str(tmp_path / "tree.db")}
    with broker_thread(tmp_path, tree) as broker:
        address = f"127.0.0.1:{broker.advertised[0].port}"

        def served() -> bool:
            return _is_served(address)

        with fault_hook(fail_thrice):
            with suppress(OSError, AssertionError), WireClient(address) as wire:
                create_topic(wire, "t")  # the connection is closed if this request meets the error
            eventually(served, "the partition is served")
        assert len(planted) == 3


def test_a_partition_without_room_for_its_files_is_served_when_there_is_room(tmp_path: Path) -> None:
    """The cluster changes no more meanwhile."""
    full = True

    def no_room(point: str) -> None:
        if full and point == "files.write":
            raise OSError(errno.ENOSPC, "No space left on device")

    with broker_thread(tmp_path, {"plugin": "embedded", "path": str(tmp_path / "tree.db")}) as broker:
        address = f"127.0.0.1:{broker.advertised[0].port}"
        with fault_hook(no_room):
            with suppress(OSError, AssertionError), WireClient(address) as wire:
                create_topic(wire, "t")
            assert not _is_served(address)
            full = False
            eventually(lambda: _is_served(address), "the partition is served")


def test_a_log_whose_new_configuration_has_no_room_is_served_and_configured_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The mark that offsets may have gaps is a file."""
    full = True

    def no_room(point: str) -> None:
        if full and point == "files.write":
            raise OSError(errno.ENOSPC, "No space left on device")

    def marks() -> list[Path]:
        return list(tmp_path.glob(f"**/t-0/{OFFSET_GAPS}"))

    with broker_thread(tmp_path, {"plugin": "embedded", "path": str(tmp_path / "tree.db")}) as broker:
        address = f"127.0.0.1:{broker.advertised[0].port}"
        with WireClient(address) as wire:
            create_topic(wire, "t")
            eventually(lambda: _is_served(address), "the partition is served")
            with fault_hook(no_room):
                alter_topic(wire, "t", "cleanup.policy", "compact")
                eventually(lambda: "offsets-have-gaps: No space left" in caplog.text, "the disk counts as full")
                assert _is_served(address)
                assert not marks()
                full = False
                eventually(marks, "the log is configured")


def test_room_that_is_found_while_an_image_is_applied_is_used_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, full, settle = False, True, RoleChanges.settle

    def no_room(point: str) -> None:
        nonlocal refused
        if full and point == "files.write":
            refused = True
            raise OSError(errno.ENOSPC, "No space left on device")

    def find_room_at_the_end(roles: RoleChanges, *arguments: Any) -> Any:
        nonlocal full
        settled = settle(roles, *arguments)
        if refused and full:
            full = False
            told = threading.Event()
            roles._loop.call_soon_threadsafe(lambda: (roles.has_space_again(), told.set()))
            assert told.wait(10)
        return settled

    monkeypatch.setattr(FullDisk, "start", lambda _: None)  # what it writes would have the image applied again
    monkeypatch.setattr(RoleChanges, "settle", find_room_at_the_end)
    with broker_thread(tmp_path, {"plugin": "embedded", "path": str(tmp_path / "tree.db")}) as broker:
        address = f"127.0.0.1:{broker.advertised[0].port}"
        with WireClient(address) as wire:
            create_topic(wire, "t")
            eventually(lambda: _is_served(address), "the partition is served")
            with fault_hook(no_room):
                alter_topic(wire, "t", "cleanup.policy", "compact")
                eventually(lambda: not full, "there is room")
                eventually(lambda: list(tmp_path.glob(f"**/t-0/{OFFSET_GAPS}")), "the log is configured")


def test_a_leader_that_rested_for_another_s_restore_leads_in_a_new_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that starts later notices a restore of which this one's partition was healed already: its state is newer
    than the backup, so that the controller does not doubt it, and nobody else would begin an epoch (R13)."""
    tree = tmp_path / "tree.db"
    address = ""
    doubt = ControllerTasks._doubt

    def doubt_once_it_rests(*arguments: Any) -> Any:
        """A leader that sees the path and its end at once does not rest, and stays in its epoch."""
        eventually(lambda: not _is_served(address), "the leader rests")
        return doubt(*arguments)

    monkeypatch.setattr(ControllerTasks, "_doubt", doubt_once_it_rests)
    with broker_thread(tmp_path, {"plugin": "embedded", "path": str(tree)}) as broker:
        address = f"127.0.0.1:{broker.advertised[0].port}"
        with WireClient(address) as wire:
            create_topic(wire, "t")
        eventually(lambda: _is_served(address), "the partition is served")
        with closing(EmbeddedCoordination(EmbeddedConfig(path=tree))) as coordination:
            coordination.start()
            before = _leader_epoch(coordination)
            node = RestoredNode(broker=1, seen=1, found=1, leader_epoch=NO_EPOCH)
            writer = ChangeWriter(coordination, lambda _: image_steps(), "1")
            plan = Plan(operations=[Create(paths.RESTORED, node.encode())])
            run_steps(coordination, writer.change(no_guard, plain(lambda _: plan)))
            eventually(lambda: _leader_epoch(coordination) > before, "a new epoch")
            assert not coordination.exists(paths.RESTORED)
            eventually(lambda: _is_served(address), "the partition is served again")


def _leader_epoch(coordination: Coordination) -> int:
    found = read_image(coordination).partition(TopicPartition("t", 0))
    assert found is not None
    return found.leader_epoch


def _is_served(address: str) -> bool:
    with WireClient(address) as wire:
        code: ErrorCode = produce(wire, "t", batch(b"v")).error_code
    return code is ErrorCode.none
