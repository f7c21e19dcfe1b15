"""Directed schedules: for each rule that random faults seldom test, a course of events that needs it.

Each passes with the code as it is, and ends in a `ViolationError` with the mutation of the same name planted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final
from unittest.mock import patch

from klamm.core.cluster.brokers.incarnations import evict_operations
from klamm.core.cluster.change_writer import ChangeWriter, Plan, no_guard
from klamm.core.cluster.image import ClusterImage
from klamm.core.cluster.image_reader import image_steps
from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.nodes import RestoredNode
from klamm.core.cluster.tree.steps import Steps, plain, run_steps
from klamm.core.interfaces.coordination import CoordinationUnavailableError, Create, Delete, Operation, Set
from klamm.core.log.data_ids import LATEST_DATA_IDS
from klamm.core.log.errors import FencedLeaderEpochError

from .broker import SimBroker, Target
from .coordination import SimCoordination, TreeCopy
from .scene import SESSION_TIMEOUT, STATE_PATH, TP
from .world import Conditions, World

_PATIENCE: Final = 3_000.0


class Stage:
    """A world without faults in which every replica is in sync and broker 0 leads. Every wait ends within a bound."""

    def __init__(
        self,
        min_insync_replicas: int = 2,
        max_lag: float = 1_000.0,
        *,
        restorable: bool = False,
        reassigning: bool = False,
    ) -> None:
        conditions = Conditions(max_lag=max_lag)
        self.world = World(1, min_insync_replicas, conditions, restorable=restorable, reassigning=reassigning)
        self.brokers = self.world.brokers
        for broker in self.brokers:
            broker.start()
            self.until(lambda broker=broker: broker.own is not None)  # type: ignore[misc]
        self.until(self.world.is_healthy)

    def until(self, reached: Callable[[], bool]) -> None:
        self.world.run_until(self.world.now + _PATIENCE, reached)
        assert reached(), f"not reached by {self.world.now}: {self.world.state} {[str(b) for b in self.brokers]}"

    def produce(self, leader: int, *values: int) -> None:
        for value in values:
            self.brokers[leader].produce(value)

    def until_end(self, broker: int, end: int) -> None:
        self.until(lambda: self.brokers[broker].log.log_end_offset == end)

    def until_committed(self, count: int) -> None:
        self.until(lambda: len(self.world.committed) == count)

    def until_isr(self, *members: int) -> None:
        self.until(lambda: self.world.state is not None and set(self.world.state.isr) == set(members))

    def until_leader(self, broker: int) -> None:
        """Runs until the broker leads, and knows that it does."""

        def leads() -> bool:
            partition = self.brokers[broker].partition
            state = self.world.state
            return (
                state is not None
                and state.leader == broker
                and partition is not None
                and partition.leader is not None
                and partition.leader.epoch == state.leader_epoch
            )

        self.until(leads)

    def until_seen(self, viewer: int, other: int) -> None:
        """Runs until the viewer knows the other broker's registration with its present data."""

        def seen() -> bool:
            found = self.brokers[viewer].image.registrations.get(other)
            return found is not None and found.data_id == self.brokers[other].data_id_at_next_start()

        self.until(seen)

    def until_known(self, *brokers: int) -> None:
        """Runs until the brokers have seen the last change of the metadata."""
        version = self.world.version()
        self.until(
            lambda: all((seen := self.brokers[number].seen_change) is not None and seen.version == version
                        for number in brokers)
        )  # fmt: skip

    def ask(self, *targets: Target) -> None:
        """Asks the controller for reassignments."""
        for broker in self.brokers:
            broker.ask(*targets)

    def until_replicas(self, *replicas: int) -> None:
        self.until(lambda: self.world.assignment.replicas == replicas)

    def end_session(self, broker: SimBroker) -> None:
        self.world.tree.expire(broker.coordination.session_id)

    def kill(self, number: int) -> None:
        self.brokers[number].kill()
        self.end_session(self.brokers[number])

    def cut(self, one: int, other: int) -> None:
        self.world.cuts |= {(one, other), (other, one)}

    def without_broker_2(self) -> None:
        """Cuts broker 2 off from the leader until it lags by one record and has left the ISR."""
        self.cut(0, 2)
        self.world.run(10)
        self.produce(0, 100)
        self.until_isr(0, 1)
        self.until_committed(1)

    def hold(self, kind: str, sender: int, receiver: int) -> None:
        self.world.hold = lambda *message: message == (kind, sender, receiver)

    def hold_state_writes(self, *brokers: int) -> None:
        """Delays these brokers' writes of the state until they are released; their answers are lost."""

        def fate(broker: int, operations: Sequence[Operation]) -> str | None:
            writes_state = any(isinstance(operation, Set) and operation.path == STATE_PATH for operation in operations)
            return "held" if broker in brokers and writes_state else "answered"

        self.world.write_fate = fate

    def release_writes(self) -> None:
        self.world.write_fate = None
        held, self.world.held_writes = self.world.held_writes, []
        for write in held:
            write()

    def finish(self) -> None:
        """Heals all faults and checks the end state."""
        self.world.hold = self.world.write_fate = None
        self.world.cuts.clear()
        for broker in self.brokers:
            broker.start()
        self.world.run_until(self.world.now + _PATIENCE, self.world.is_healthy)
        self.world.check_end()


def joins_before_epoch_start() -> None:
    """A new leader's watermark is behind; a member of its ISR comes back at once with an empty disk."""
    stage = Stage()
    world = stage.world
    world.hold = lambda kind, sender, _: kind == "answer" and sender == 0 and len(world.committed) > 0
    stage.produce(0, 1)
    stage.until_committed(1)
    stage.hold("fetch", 2, 1)
    stage.kill(0)
    stage.until_leader(1)
    assert stage.brokers[1].log.high_watermark == 0
    stage.brokers[2].replace_disk()
    stage.end_session(stage.brokers[2])
    stage.until_isr(1)
    held = len(world.held)
    stage.brokers[2].start()
    stage.until(lambda: len(world.held) > held)
    stage.until_seen(1, 2)
    stage.hold("answer", 1, 2)
    world.held.pop()[3]()
    world.run(30)
    world.hold = None
    stage.until_isr(1, 2)
    stage.finish()


def stored_isr() -> None:
    """The leader has proposed a member; the write is done, its answer lost, and the coordination unreachable."""
    stage = Stage(max_lag=60)
    world, leader = stage.world, stage.brokers[0]
    stage.without_broker_2()

    def fate(broker: int, operations: Sequence[Operation]) -> str | None:
        if broker != 0 or not any(operation.path == STATE_PATH for operation in operations):
            return None
        leader.later(0, lambda: setattr(leader, "cut_off", True))
        return "applied"

    world.write_fate = fate
    world.cuts.clear()
    stage.until_isr(0, 1, 2)
    stage.cut(0, 2)
    stage.produce(0, 1)
    stage.until_end(1, 2)
    world.run(30)
    leader.cut_off = False
    stage.finish()


def lost_answer_forgotten() -> None:
    """A proposal whose write was not answered is carried out after the watermark has moved."""
    stage = Stage(max_lag=60)
    world = stage.world
    stage.without_broker_2()
    stage.hold_state_writes(0)
    world.cuts.clear()
    stage.until(lambda: bool(world.held_writes))
    world.run(5)
    stage.cut(0, 2)
    stage.produce(0, 1)
    stage.until_end(1, 2)
    world.run(30)
    stage.release_writes()
    stage.finish()


def deposed_leader_commits() -> None:
    """A proposal is refused after its leader was evicted and has learned of its successor."""
    stage = Stage(max_lag=60)
    world = stage.world
    stage.without_broker_2()
    world.write_fate = lambda broker, operations: (
        "slow" if broker == 0 and any(operation.path == STATE_PATH for operation in operations) else "answered"
    )
    world.cuts.clear()
    partition = stage.brokers[0].partition
    assert partition is not None
    deposed = partition.leader
    assert deposed is not None
    stage.until(lambda: 2 in deposed._maximal_isr)
    stage.cut(0, 2)
    stage.produce(0, 1)
    stage.until_end(1, 2)
    world.run(10)
    assert len(world.committed) == 1
    stage.cut(0, 1)
    stage.cut(1, 2)
    assert stage.brokers[0].own is not None
    world.tree.apply(evict_operations(stage.brokers[0].own), 0)
    stage.until(lambda: partition.leader is not deposed)
    world.run(80)
    world.write_fate = None
    stage.finish()


def append_after_any_epoch() -> None:
    """A paused leader has a record that was never committed, where its successor has committed another one. A client
    that has read this one appends behind it, at both."""
    stage = Stage()
    world, former = stage.world, stage.brokers[0]
    stage.cut(0, 1)
    stage.cut(0, 2)
    stage.produce(0, 1)
    former.pause()
    assert former.coordination.session_id is not None
    world.tree.expire(former.coordination.session_id)
    stage.until(lambda: world.state is not None and world.state.leader in (1, 2))
    assert world.state is not None
    leader = world.state.leader
    stage.until_leader(leader)
    stage.produce(leader, 2)
    stage.until_committed(1)
    end = stage.brokers[leader].end()
    assert end is not None
    assert end[0].offset == former.log.log_end_offset == 1
    former.produce_after(-1, *end)
    stage.brokers[leader].produce_after(-1, *end)
    stage.until_committed(2)
    former.resume()
    stage.finish()


def unversioned_state() -> None:
    """As before, but the leader has written the ISR again meanwhile, and relies on the first write being refused."""
    stage = Stage(max_lag=60)
    world = stage.world
    stage.without_broker_2()
    stage.hold_state_writes(0)
    world.cuts.clear()
    stage.until(lambda: bool(world.held_writes))
    stage.cut(0, 2)
    world.run(150)  # broker 2 lags: the next attempt is the stored ISR again
    world.write_fate = None
    stage.produce(0, 1)
    stage.until_committed(2)
    stage.release_writes()
    stage.finish()


def fetch_epoch_unchecked() -> None:
    """A Fetch arrives two elections late; the follower has since truncated the records that it had when it sent it."""
    stage = Stage()
    world = stage.world
    stage.kill(0)
    stage.until_leader(1)
    stage.brokers[0].start()
    stage.until_isr(0, 1, 2)
    stage.cut(0, 1)
    world.run(10)
    stage.produce(1, 1)
    world.hold = lambda kind, sender, receiver: (
        (kind, sender, receiver) == ("fetch", 2, 1) and stage.brokers[2].log.log_end_offset == 1
    )
    stage.until(lambda: len(world.held) == 1)
    stage.brokers[1].register_again()
    stage.until_leader(0)
    stage.produce(0, 2)
    stage.until(lambda: stage.brokers[2].log.values == [2])
    stage.kill(0)
    stage.until_leader(1)
    world.held.pop(0)[3]()
    stage.finish()


def late_diverging_answer() -> None:
    """A diverging answer arrives after the follower has truncated and fetched what the leader has."""
    stage = Stage()
    world = stage.world
    stage.cut(0, 1)
    world.run(10)
    stage.produce(0, 1)
    stage.until_end(2, 1)
    stage.hold("answer", 1, 2)
    stage.kill(0)
    stage.until(lambda: len(world.held) == 1)
    world.hold = None
    stage.until_end(2, 0)
    stage.produce(1, 2)
    stage.until_committed(1)
    world.held.pop(0)[3]()
    stage.finish()


def watermark_before_log_start() -> None:
    """The leader has deleted all records of a follower's range: it cannot be known whether the two logs agree."""
    stage = Stage(min_insync_replicas=1)
    world = stage.world
    stage.cut(0, 1)
    stage.cut(0, 2)
    world.run(10)
    stage.produce(0, 1, 2, 3, 4, 5)
    stage.kill(0)
    stage.until_leader(1)
    stage.produce(1, 11, 12, 13, 14, 15)
    stage.until_committed(5)
    stage.brokers[1].log.advance_log_start(5)
    stage.finish()


def broker_epoch_unchecked() -> None:
    """A follower's Fetch arrives after it has come back with an empty disk."""
    stage = Stage()
    world = stage.world
    stage.produce(0, 1)
    stage.until_committed(1)
    stage.hold("fetch", 2, 0)
    stage.until(lambda: len(world.held) == 1)
    stage.brokers[2].replace_disk()
    stage.end_session(stage.brokers[2])
    stage.until_isr(0, 1)
    stage.brokers[2].start()
    stage.until(lambda: len(world.held) > 1)
    stage.until_seen(0, 2)
    world.held.pop(0)[3]()
    world.run(60)
    stage.finish()


def earlier_registration_counts() -> None:
    """A follower is in the ISR again with an empty disk; then a Fetch of before arrives, for a record that it had."""
    stage = Stage(max_lag=200)
    world, follower = stage.world, stage.brokers[2]
    stage.cut(0, 1)
    world.run(100)  # so that broker 1 lags before broker 2
    world.hold = lambda kind, sender, receiver: (
        (kind, sender, receiver) == ("fetch", 2, 0) and follower.log.log_end_offset == 1
    )
    stage.produce(0, 1)
    stage.until(lambda: bool(world.held))
    earlier = world.held[0]
    follower.replace_disk()
    stage.end_session(follower)
    stage.until_isr(0, 1)
    stage.hold("answer", 0, 2)
    follower.start()
    stage.until_isr(0, 2)
    assert not world.committed
    earlier[3]()
    world.held.clear()
    world.hold = None
    stage.finish()


def role_unchecked() -> None:
    """A client's append was on its way to the log when its broker was deposed; the broker has followed since."""
    stage = Stage()
    world, former = stage.world, stage.brokers[0]
    assert former.partition is not None
    assert former.partition.leader is not None
    epoch = former.partition.leader.epoch
    former.cut_off = True
    stage.end_session(former)
    stage.until_leader(1)
    former.cut_off = False
    stage.produce(1, 1)
    stage.until_end(0, 1)
    with suppress(FencedLeaderEpochError):
        former.log.append(2, epoch)
    world.run(30)
    stage.finish()


def renewal_unchecked() -> None:
    """A change of a registration comes after an eviction, when the broker has registered again."""
    stage = Stage()
    world, broker = stage.world, stage.brokers[2]
    broker.full = True
    world.write_fate = lambda _, operations: (
        "held" if any(isinstance(each, Set) and each.path == paths.broker(2) for each in operations) else None
    )
    stage.produce(0, 1)
    stage.until(lambda: bool(world.held_writes))
    world.write_fate = None
    broker.register_again()
    stage.release_writes()
    broker.full = False
    world.run(60)
    stage.finish()


def restart_in_same_epoch() -> None:
    """The leader registers again before anyone has missed it: its Fetches and proposals of before are still open."""
    stage = Stage()
    world = stage.world
    stage.produce(0, 1)
    stage.until_committed(1)
    assert world.state is not None
    before = world.state
    stage.brokers[0].register_again()
    stage.until(lambda: world.state is not None and world.state.leader_broker_epoch != before.leader_broker_epoch)
    assert world.state.leader == 0
    assert world.state.leader_epoch > before.leader_epoch
    stage.finish()


def controller_epoch_unchecked() -> None:
    """A controller's write is late; another controller has been elected meanwhile, and has written nothing yet."""
    stage = Stage()
    world = stage.world
    stage.hold_state_writes(0, 1, 2)
    stage.kill(0)
    stage.until(lambda: bool(world.held_writes))
    before = _controller_epoch(world)
    world.tree.apply([Delete(paths.CONTROLLER)], 0)
    stage.until(lambda: _controller_epoch(world) > before)
    stage.release_writes()
    stage.finish()


def restored_unchecked() -> None:
    """The coordination is restored from the time when broker 0 was in sync, and led; all brokers start again."""
    stage, copy = _without_broker_0()
    for number in (1, 2):
        stage.kill(number)
    _expire_all(stage, stage.world.restore(copy))
    for broker in stage.brokers:
        broker.start()
    stage.finish()


def cold_start_elects() -> None:
    """The same, and broker 0 is back first: what the copy says is all that it has."""
    stage, copy = _without_broker_0()
    for number in (1, 2):
        stage.kill(number)
    _expire_all(stage, stage.world.restore(copy))
    stage.brokers[0].start()
    stage.until(lambda: stage.brokers[0].own is not None)
    stage.world.run(SESSION_TIMEOUT)
    stage.finish()


def restored_while_they_run() -> None:
    """The same, below brokers 1 and 2, which run: they have the sessions of the copy, and what they know is newer."""
    stage, copy = _without_broker_0()
    _expire_all(stage, stage.world.restore(copy))
    stage.brokers[0].start()
    stage.produce(1, 2)
    stage.finish()


def backup_registrations_count() -> None:
    """As `cold_start_elects`: for a while the copy has live sessions of the brokers that are not back."""
    cold_start_elects()


def restored_not_doubted() -> None:
    """As `restored_unchecked`."""
    restored_unchecked()


def any_change_ends_cold_start() -> None:
    """Broker 1 alone has a record. Of those that start before it, one makes a change of the metadata."""
    stage = Stage(min_insync_replicas=1, restorable=True)
    copy = stage.world.tree.copy()
    for number in (0, 2):
        stage.kill(number)
    stage.until_leader(1)
    stage.until_isr(1)
    stage.produce(1, 1)
    stage.until_committed(1)
    stage.until_known(1)
    stage.kill(1)
    _expire_all(stage, stage.world.restore(copy))
    for number in (0, 2):
        stage.brokers[number].start()
        stage.until(lambda number=number: stage.brokers[number].own is not None)  # type: ignore[misc]
    full, other = stage.brokers[2].node.set_full, stage.brokers[2]
    stage.world.converse(other, full(True), lambda _: stage.world.converse(other, full(False)))
    stage.world.run(SESSION_TIMEOUT * 3 / 4)
    stage.finish()


def preferred_at_cold_start() -> None:
    """Broker 1 leads in the copy, and 0, the preferred replica, is in sync there; it lacks what was committed since."""
    stage = Stage(min_insync_replicas=1, restorable=True)
    stage.kill(0)
    stage.until_leader(1)
    stage.brokers[0].start()
    stage.until_isr(0, 1, 2)
    copy = stage.world.tree.copy()
    stage.kill(0)
    stage.until_isr(1, 2)
    stage.produce(1, 1)
    stage.until_committed(1)
    stage.until_known(1, 2)
    for number in (1, 2):
        stage.kill(number)
    _expire_all(stage, stage.world.restore(copy))
    first = stage.brokers[0]
    first.start()
    stage.until(lambda: first.node.is_controller and first.own is not None)
    stage.world.converse(first, first.node.changing(first.node.tasks.elect([TP], unclean=False)))
    stage.world.run(SESSION_TIMEOUT / 2)
    stage.finish()


def roles_not_taken_again() -> None:
    """The only live broker's work as the controller fails in a new session, after its last change of the metadata."""
    stage = Stage(min_insync_replicas=1)
    alone, failed = stage.brokers[0], False
    for number in (1, 2):
        stage.kill(number)
    stage.until_isr(0)
    stage.world.run(2 * SESSION_TIMEOUT)  # the start of the cluster is over
    stage.world.conditions = replace(stage.world.conditions, interleaved=1.0)
    tasks, next_step = alone.node.tasks, alone.node.tasks._next_step

    def fails_once(image: ClusterImage) -> Steps[Plan | None]:
        nonlocal failed
        plan = yield from next_step(image)
        if plan is None and not failed:
            failed = True
            raise CoordinationUnavailableError("planted")
        return plan

    with patch.object(tasks, "_next_step", fails_once):
        stage.end_session(alone)
        stage.until(lambda: failed)
    stage.world.run(200)
    if not alone.led():
        stage.world.violated(f"{alone} is registered, and serves nothing")
    stage.finish()


def left_epoch_kept() -> None:
    """A broker has noticed a restore, after which the partition has had a leader: that rests until it is handled."""
    stage = Stage(restorable=True)
    stage.produce(0, 1)
    stage.until_committed(1)
    admin = SimCoordination(stage.world.tree)
    admin.start()
    node = RestoredNode(broker=2, seen=1, found=1, leader_epoch=-1)
    plan = Plan(operations=[Create(paths.RESTORED, node.encode())])
    writer = ChangeWriter(admin, lambda _: image_steps(), "2-admin")
    run_steps(admin, writer.change(no_guard, plain(lambda _: plan)))
    partition = stage.brokers[0].partition
    assert partition is not None
    stage.until(lambda: partition.left_epoch > 0)
    stage.world.run(100)
    stage.finish()


def roles_by_a_backup() -> None:
    """Broker 0 leads in the copy. It was cut off, has led on alone, and others have committed a record since."""
    stage = Stage(min_insync_replicas=1, restorable=True)
    world, former = stage.world, stage.brokers[0]
    former.cut_off = True
    world.tree.apply([Delete(paths.CONTROLLER)], 0)
    stage.until(lambda: any(broker.node.is_controller for broker in stage.brokers[1:]))
    former.cut_off = False
    world.run(20)
    copy = world.tree.copy()
    former.cut_off = True
    stage.cut(0, 1)
    stage.cut(0, 2)
    stage.end_session(former)
    stage.until_leader(1)
    stage.until_isr(1, 2)
    stage.produce(1, 1)
    stage.until_committed(1)
    stage.until_known(1, 2)
    world.cuts.clear()
    world.restore(copy)
    former.reconnect()
    world.write_fate = lambda _, operations: (
        "slow" if any(operation.path == STATE_PATH for operation in operations) else "answered"
    )
    world.run(100)
    stage.finish()


def epoch_that_is_over() -> None:
    """As `left_epoch_kept`."""
    left_epoch_kept()


def unanswered_disk_forgotten() -> None:
    """A broker cannot reach the coordination when its full disk has room again."""
    stage = Stage()
    broker = stage.brokers[2]
    broker.full = True
    stage.produce(0, 1)
    stage.until_isr(0, 1)
    broker.cut_off, broker.full = True, False
    stage.world.run(50)
    broker.cut_off = False
    stage.finish()


def evicted_by_a_backup() -> None:
    """Broker 0 lacks a record, and knows nothing since the copy, in which it is the controller, in sync, and 1 leads.
    Broker 2 notices the restore while 0 is about to evict 1, which has died."""
    stage = Stage(min_insync_replicas=1, max_lag=60, restorable=True)
    world, late = stage.world, stage.brokers[0]
    stage.kill(0)
    stage.until_leader(1)
    late.start()
    stage.until_isr(0, 1, 2)
    world.tree.apply([Delete(paths.CONTROLLER)], 0)
    for broker in stage.brokers[1:]:
        broker.cut_off = True
    stage.until(lambda: late.node.is_controller)
    for broker in stage.brokers[1:]:
        broker.reconnect()
    world.run(30)
    copy, suspected = world.tree.copy(), late.node.image.brokers[1]
    late.cut_off = True
    stage.cut(0, 1)
    stage.cut(0, 2)
    stage.produce(1, 1)
    stage.until_isr(1, 2)
    stage.until_committed(1)
    stage.until_known(1, 2)
    stage.brokers[1].kill()
    world.restore(copy)
    stage.brokers[2].reconnect()
    stage.until(lambda: world.tree.find(paths.RESTORED) is not None)
    late.cut_off = False
    world.converse(late, late.node.changing(late.node.tasks.catch_up(late.node.image, [suspected])))
    world.run(20)
    late.reconnect()
    stage.end_session(stage.brokers[1])
    stage.finish()


def unclean_by_assignment() -> None:
    """Broker 0 lacks a record. Both others have lost power: 1 is back, and nothing says that its log is whole; 2 is
    not. An administrator asks for an unclean election."""
    stage = Stage(min_insync_replicas=1)
    stage.kill(0)
    stage.until_leader(1)
    stage.until_isr(1, 2)
    stage.produce(1, 1)
    stage.until_committed(1)
    stage.until_end(2, 1)
    stage.world.run(2 * SESSION_TIMEOUT)  # the start of the cluster is over
    for broker in stage.brokers[1:]:
        broker.log.flush(1)
        broker.lose_power()
        stage.end_session(broker)
    for broker in stage.brokers[:2]:
        broker.start()
    stage.until(lambda: all(broker.own is not None for broker in stage.brokers[:2]))
    stage.world.run(3 * SESSION_TIMEOUT)
    stage.world.elect_uncleanly()
    stage.until(lambda: stage.world.state is not None and stage.world.state.leader >= 0)
    stage.finish()


def doubtful_leave_for_the_dead() -> None:
    """Both members lose their power, and broker 0 its last records. Broker 1, which has them, is back while the session
    of 0 lives on."""
    stage = Stage()
    world, lost, whole = stage.world, stage.brokers[0], stage.brokers[1]
    lost.cut_off = whole.cut_off = True
    world.tree.apply([Delete(paths.CONTROLLER)], 0)
    stage.until(lambda: stage.brokers[2].node.is_controller)
    lost.cut_off = whole.cut_off = False
    world.run(2 * SESSION_TIMEOUT)  # the start of the cluster is over
    stage.cut(1, 2)
    with patch.object(lost.log, "flush"):
        stage.without_broker_2()
    whole.log.flush(1)
    whole.lose_power()
    while lost.log.log_end_offset:
        lost.lose_power()
    whole.start()
    stage.until_isr(0)
    stage.end_session(lost)
    stage.until(lambda: world.state is not None and world.state.leader < 0)
    lost.start()
    stage.until(lambda: world.state is not None and world.state.leader >= 0)
    stage.finish()


def report_of_the_dead() -> None:
    """All lose their power. A process of broker 1 ends before its report is carried out, which then comes after that of
    the next process, and ends with the session of the first."""
    stage = Stage()
    world, broker, path = stage.world, stage.brokers[1], paths.recovered(1)
    for each in stage.brokers:
        each.lose_power_flushed()
        stage.end_session(each)
    broker.start()
    stage.until(lambda: world.tree.find(path) is not None)
    earlier = broker.coordination.session_id
    broker.lose_power_flushed()
    world.write_fate = lambda _, operations: (
        "held" if any(isinstance(each, Create) and each.path == path for each in operations) else None
    )
    broker.start()
    stage.until(lambda: bool(world.held_writes))
    ended = broker.coordination.session_id
    broker.kill()
    world.write_fate = None
    world.tree.expire(earlier)
    broker.start()
    stage.until(lambda: world.tree.find(path) is not None)
    stage.release_writes()
    world.tree.expire(ended)
    stage.finish()


def old_data_id_forgotten() -> None:
    """All lose their power, and broker 0 does so again and again before the others are back: each time its log
    directory gets another data id, while the state names the first."""
    stage = Stage()
    stage.produce(0, 1)
    stage.until_committed(1)
    for broker in stage.brokers:
        broker.lose_power_flushed()
        stage.end_session(broker)
    for _ in range(LATEST_DATA_IDS):
        stage.brokers[0].start()
        stage.brokers[0].lose_power_flushed()
    stage.finish()


def _without_broker_0() -> tuple[Stage, TreeCopy]:
    """Broker 0 has died since the copy was made, and lacks a record that was committed by the others."""
    stage = Stage(min_insync_replicas=1, restorable=True)
    copy = stage.world.tree.copy()
    stage.kill(0)
    stage.until_leader(1)
    stage.until_isr(1, 2)
    stage.produce(1, 1)
    stage.until_committed(1)
    stage.until_known(1, 2)
    return stage, copy


def _expire_all(stage: Stage, sessions: list[int]) -> None:
    for session_id in sessions:
        stage.world.at(SESSION_TIMEOUT / 2, partial(stage.world.tree.expire, session_id))


def removed_in_same_epoch() -> None:
    """A follower is removed and added again, while a Fetch of before is on its way."""
    stage = Stage(reassigning=True)
    stage.produce(0, 1)
    stage.until_committed(1)
    stage.hold("fetch", 2, 0)
    stage.until(lambda: bool(stage.world.held))
    stage.ask((0, 1))
    stage.until_replicas(0, 1)
    stage.until(lambda: stage.brokers[2].partition is None)
    stage.ask((0, 1, 2))
    stage.until_replicas(0, 1, 2)
    stage.until(lambda: (found := stage.brokers[0].image.partition(TP)) is not None and len(found.replicas) == 3)
    for _, _, _, deliver in stage.world.held[:1]:
        deliver()
    stage.world.run(50)
    stage.finish()


def cancelled_below_minimum() -> None:
    """Of the two earlier replicas one is dead. Broker 2, which was added, is in sync, and 3 not yet."""
    stage = Stage(reassigning=True)
    stage.ask((0, 1))
    stage.until_replicas(0, 1)
    stage.produce(0, 1)
    stage.until_committed(1)
    stage.hold("fetch", 3, 0)
    stage.ask((0, 1, 2, 3))
    stage.until_isr(0, 1, 2)
    stage.kill(1)
    stage.until_isr(0, 2)
    stage.ask(None)
    stage.world.run(100)
    stage.brokers[0].replace_disk()
    stage.end_session(stage.brokers[0])
    stage.finish()


def _controller_epoch(world: World) -> int:
    found = world.tree.find(paths.CONTROLLER_EPOCH)
    assert found is not None
    return int(found[0])


SCRIPTS: Final[dict[str, Callable[[], None]]] = {
    script.__name__.replace("_", "-"): script
    for script in (
        joins_before_epoch_start,
        stored_isr,
        lost_answer_forgotten,
        deposed_leader_commits,
        append_after_any_epoch,
        unversioned_state,
        fetch_epoch_unchecked,
        late_diverging_answer,
        watermark_before_log_start,
        broker_epoch_unchecked,
        earlier_registration_counts,
        restart_in_same_epoch,
        role_unchecked,
        renewal_unchecked,
        controller_epoch_unchecked,
        restored_unchecked,
        cold_start_elects,
        restored_while_they_run,
        removed_in_same_epoch,
        cancelled_below_minimum,
        roles_by_a_backup,
        left_epoch_kept,
        roles_not_taken_again,
        restored_not_doubted,
        backup_registrations_count,
        any_change_ends_cold_start,
        preferred_at_cold_start,
        epoch_that_is_over,
        unanswered_disk_forgotten,
        evicted_by_a_backup,
        unclean_by_assignment,
        doubtful_leave_for_the_dead,
        report_of_the_dead,
        old_data_id_forgotten,
    )
}
"""The scripts, by the name of the mutation that each must catch."""
