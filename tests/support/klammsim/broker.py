"""A broker of the simulation: the production state machines, and the code that carries their requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from operator import is_
from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode

from klamm.core.cluster.brokers.incarnations import (
    read_registration,
    read_registrations,
    register_operations,
    registration_fields,
)
from klamm.core.cluster.changes import (
    MetadataStates,
    change_operations,
    controller_guard,
    incarnation_path,
    lacks_change,
    leader_guard,
    read_states,
    write_change,
)
from klamm.core.cluster.control.cold_start import ColdStart
from klamm.core.cluster.control.leadership import Terms, above_floor, doubted_state, is_held
from klamm.core.cluster.reassignment import (
    Reassigned,
    ReplicaAssignment,
    begin,
    cancelled,
    check_target,
    completed,
    effective_min_isr,
)
from klamm.core.cluster.restored import elected_since, is_led_by_another
from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.nodes import MetadataVersionNode, RestoredNode
from klamm.core.cluster.tree.steps import Steps, children, find, get, transact
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.errors import BrokerError
from klamm.core.interfaces.coordination import (
    BadVersionError,
    Check,
    CoordinationUnavailableError,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
    Watch,
)
from klamm.core.log import data_ids
from klamm.core.log.data_ids import DataIdentity
from klamm.core.log.state.seen_metadata import SeenChange
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.elections import RecoveredEnd, elect
from klamm.core.replication.follower import FetchResult
from klamm.core.replication.leader import ProposalOutcome, ReplicationSettings
from klamm.core.replication.partition import Partition
from klamm.core.replication.partition_state import NO_LEADER, PartitionState
from klamm.core.replication.registrations import DOUBTED, BrokerRegistration, Standing, standing
from klamm.core.replication.replica_fetch import ReplicaFetch, ReplicaFetchData

from .coordination import SimCoordination
from .crashing_log import CrashingLog
from .scene import (
    ASSIGNMENT,
    RECOVERED,
    REPLICAS,
    SESSION_TIMEOUT,
    TOPIC_PATH,
    TP,
    decode_assignment,
    encode_assignment,
)

if TYPE_CHECKING:
    from .world import World

TICK: Final = 8.0
Target = tuple[int, ...] | None
"""The replicas that a reassignment asks for; None cancels the one in progress."""
_DEFAULTS: Final = TopicConfig()


class Waiter(NamedTuple):
    """A Produce request that waits for its acknowledgement."""

    value: int
    offset: int


class Lease(NamedTuple):
    epoch: int
    version: int


@dataclass(frozen=True, slots=True)
class View:
    """The metadata that a broker has read: first the states, then the registrations by which it judges them (R10)."""

    states: MetadataStates
    registrations: dict[int, BrokerRegistration]
    recovered: dict[int, RecoveredEnd]
    controller: str | None
    """The incarnation of the controller."""
    lease: Lease | None
    """This broker's lease, if it is the controller."""
    begun: float
    restored: int | None = None
    """The leader epoch in `/admin/restored`, if that is there."""
    assignment: ReplicaAssignment = ASSIGNMENT


class Seen(NamedTuple):
    """A view that was read while nothing changed in the tree."""

    view: View
    session_id: int
    changes: int
    """Of the tree: see `SimTree.changes`."""


def renew_operations(broker_id: int, incarnation: str, data: bytes) -> list[Operation]:
    """Returns the first change of a registration, which no later registration of the broker takes."""
    return [Check(incarnation_path(incarnation)), Set(paths.broker(broker_id), data, 0)]


class SimBroker:
    """A process with a log directory. While it is paused, `act` defers its events."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.id = number
        self.process = 0
        self.up = False
        self.paused = False
        self.cut_off = False
        """From the coordination."""
        self.leaving = False
        self.full = False
        """True while the disk has no room for records."""
        self.tainted = False
        """True if data was lost, until the broker is in the ISR with its present data."""
        self.log = self._new_log()
        self.boot = 0
        self._data_ids_drawn = 0
        self.identity = DataIdentity((self._draw_data_id(),), "boot-0")
        self._data_lost = False
        self._incarnations = 0
        self._queue: list[Callable[[], None]] = []
        self.coordination = SimCoordination(world.tree)
        self.seen_change: SeenChange | None = None
        """The last change of the metadata that it has seen: a file in the log directory (R13)."""
        self._start()

    def _start(self) -> None:
        self.partition: Partition[Waiter] | None = None
        self.view: View | None = None
        self._seen: Seen | None = None
        self._elected_none: tuple[object, ...] | None = None
        self.own: BrokerRegistration | None = None
        self.incarnation = ""
        self._registered_at: float | None = None
        self._says_full = self._restating = self._restated = False
        self._registering = self._looking = self._look_again = self._electing = self._writing = False
        self._fetch_sent = float("-inf")
        self._reported: tuple[int, str] | None = None
        self._checked = not self.world.restorable
        """True once the coordination is known not to be older than what the broker has seen."""
        self._first_look = True
        """Of a session: it finds what it finds."""
        self._history = 0
        """How often the coordination was found to be older: what was asked before is not believed."""
        self._asked: list[Target] = []
        """The reassignments that this broker, as the controller, was asked for and has not begun."""
        self._doubts = False
        """True from when it was found to be older until the broker has registered anew."""
        name = f"incarnation-{self.id}-"
        self._cold_start = ColdStart(name, lambda: 2 * SESSION_TIMEOUT, lambda: self.world.now)
        self._watches: list[Watch] = []
        self._tick_due = self.world.now

    def __str__(self) -> str:
        role = "-"
        if self.partition is not None and self.partition.leader is not None:
            role = f"leads {self.partition.leader.epoch}"
        elif self.partition is not None and self.partition.follower is not None:
            role = f"follows {self.partition.follower.leader}"
        return (
            f"broker {self.id} up={self.up} {role} end={self.log.log_end_offset} hw={self.log.high_watermark} "
            f"epochs={self.log.epoch_entries()} own={self.own and self.own.epoch} data={self.identity.data_ids}"
        )

    # -- life ----------------------------------------------------------------------------------------------------

    def _new_log(self) -> CrashingLog:
        return self.world.make_log(f"broker {self.id}", lambda first, end: self.world.on_committed(self, first, end))

    def _draw_data_id(self) -> str:
        self._data_ids_drawn += 1
        return f"data-{self.id}-{self._data_ids_drawn}"

    def data_id_at_next_start(self) -> str | None:
        """Returns the newest data id if no data was lost since it was drawn."""
        return None if self._data_lost else self.identity.data_ids[0]

    def act(self, process: int, action: Callable[[], None]) -> None:
        """Runs the action if that process still runs; defers it if the process is paused."""
        if not self.up or self.process != process:
            return
        if self.paused:
            self._queue.append(action)
        else:
            action()

    def later(self, delay: float, action: Callable[[], None]) -> None:
        self.world.at_process(delay, self, self.process, action)

    def start(self) -> None:
        if self.up:
            return
        self.up, self.paused, self.cut_off, self.leaving = True, False, False, False
        self.process += 1
        self._queue = []
        self._start()
        self.identity = data_ids.identity_at_start(
            self.identity, f"boot-{self.boot}", self._draw_data_id, recovery_cut=self.log.recovery_cut_more
        )
        self._data_lost = False
        if not self.world.reassigning:  # else it learns from the metadata whether it has the partition
            self.partition = Partition(self.id, self.log, REPLICAS, self.world.settings)
        self.coordination = SimCoordination(self.world.tree)
        self.coordination.start()
        self._open_session()
        self.world.check_members()
        self.later(self.world.random.random() * 5, self._tick)

    def _open_session(self) -> None:
        self._watches = [
            self.coordination.watch(path, lambda: self.later(self.world.delay(), self.look))
            for path in (paths.METADATA_VERSION, paths.BROKER_IDS, paths.CONTROLLER, RECOVERED)
        ]
        self._registered_at, self._registering, self._electing = None, False, False
        self._checked = not self.world.restorable
        self._new_incarnation()
        self._register()

    def _new_incarnation(self) -> None:
        self._incarnations += 1
        self._restating = self._restated = False
        self.incarnation = f"incarnation-{self.id}-{self._incarnations}"

    def register_again(self) -> None:
        """Replaces the registration by a new one, as after an eviction to which no other broker has reacted yet."""
        self._registered_at = None
        self._new_incarnation()
        self._register()

    def kill(self) -> None:
        """`kill -9`: the page cache survives."""
        if self.up:
            self.up = False
            self.log.crash(self.world.random)

    def lose_power(self) -> None:
        self.kill()
        self.boot += 1
        lost = self.log.lose_power(self.world.random)
        self._lost_data(lost)

    def fail_flush(self) -> None:
        """A flush fails: the log goes offline, the broker restarts, and unflushed records may be lost."""
        self.kill()
        self.identity = DataIdentity(self.identity.data_ids, self.identity.boot_id, flush_failed=True)
        self._lost_data(self.log.fail_flush(self.world.random))

    def replace_disk(self) -> None:
        self.kill()
        self.log = self._new_log()
        self.full = False
        self.identity = DataIdentity((self._draw_data_id(),), f"boot-{self.boot}")
        self.tainted = True
        self.seen_change = None

    def _lost_data(self, records: int) -> None:
        self._data_lost = self.tainted = True
        self.world.counts.struck("records lost from disks", records)

    def stop_cleanly(self) -> None:
        """Ends a controlled shutdown: all is flushed, and the session is closed."""
        self.log.stop()
        self.identity = DataIdentity(self.identity.data_ids, self.identity.boot_id, clean=True)
        self.up = False
        self.coordination.close()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        queue, self._queue = self._queue, []
        process = self.process
        for action in queue:
            self.act(process, action)

    def session_over(self) -> None:
        """Tells the broker that its session has expired: it stops leading, and registers under a new one."""
        if self.coordination.session_id != 0:
            return
        self.own = None
        self._take_metadata()
        self.coordination.restart()
        self._looking = self._writing = False
        self._open_session()

    # -- registration --------------------------------------------------------------------------------------------

    def _register(self) -> None:
        if self._registering or self._registered_at is not None:
            return
        self._registering = True
        session_id = self.coordination.session_id

        def done(registered: bool) -> None:
            if session_id != self.coordination.session_id:
                return
            self._registering = False
            if registered and self._checked:
                self._registered_at = self.world.now
                self.look()
            else:
                self.later(5, self._register)

        self.world.converse(self, self._register_steps(self.incarnation), done, lambda: done(False))

    def _register_steps(self, incarnation: str) -> Steps[bool]:
        if not self._checked and not (yield from self._check_history_steps()):
            return False
        found = yield from read_registration(self.id)
        if found is not None and found.registration.incarnation == incarnation:
            return True
        fields = registration_fields(incarnation, self.identity.data_ids, leaving=self.leaving, full=self._says_full)
        replaced = None if found is None else found.registration
        try:
            yield from transact(*register_operations(self.id, incarnation, json.dumps(fields).encode(), replaced))
        except (NodeExistsError, NoNodeError):
            return False
        return True

    def leave(self) -> None:
        """Takes the first step of a controlled shutdown: the registration says that the broker leaves."""
        if self.own is None or self.leaving:
            return
        self.leaving = True
        if self._restated:
            self._restate()
            return
        fields = registration_fields(self.incarnation, self.identity.data_ids, leaving=True)

        def steps() -> Steps[None]:
            yield from transact(*renew_operations(self.id, self.incarnation, json.dumps(fields).encode()))

        self.world.converse(self, steps(), lambda _: None, lambda: None)

    def _ran_out_of_room(self) -> None:
        """Called for each write that fails for lack of room."""
        self._says_full = True
        self._restate()

    def _restate(self) -> None:
        """Writes to the registration whether the disk is full, or that the broker leaves, if it does not say so."""
        own = self.own
        if own is None or self._restating or (own.full, own.leaving) == (self._says_full, self.leaving):
            return
        self._restating = self._restated = True
        incarnation = self.incarnation
        fields = registration_fields(incarnation, self.identity.data_ids, leaving=self.leaving, full=self._says_full)

        def steps() -> Steps[None]:
            found = yield from find(paths.broker(self.id))
            if found is None or json.loads(found[0])["incarnation"] != incarnation:
                return
            change = Set(paths.broker(self.id), json.dumps(fields).encode(), found[1].version)
            try:
                yield from transact(Check(incarnation_path(incarnation)), change)
            except (NoNodeError, BadVersionError):
                return

        def done() -> None:
            if self.incarnation == incarnation:
                self._restating = False

        self.world.converse(self, steps(), lambda _: done(), done)

    # -- a coordination that was restored from an older state (R13) ------------------------------------------------

    def _check_history_steps(self) -> Steps[bool]:
        """Makes `/admin/restored` if the coordination is older than what this broker has seen; returns False if the
        broker must not register yet. See `klamm.core.cluster.restored.check_history`.
        """
        seen = self.seen_change
        if seen is not None and (yield from lacks_change(seen.version, seen.by)):
            states = yield from read_states(None, [TP])
            registrations = yield from read_registrations()
            state = states.states[TP].state
            if elected_since(state, seen.leader_epoch):
                self.world.violated(f"broker {self.id} comes after others have led by an older state: {state}")
            if not self._doubts and is_led_by_another(state, registrations, self.id):
                return False
            if (yield from find(paths.RESTORED)) is None:
                node = RestoredNode(
                    broker=self.id, seen=seen.version, found=states.version, leader_epoch=seen.leader_epoch
                )
                made = Create(paths.RESTORED, node.encode())
                by = f"{self.incarnation}/r{self.world.now}"
                try:
                    yield from transact(*change_operations([], states, {}, by, operations=[made]))
                except (BadVersionError, NodeExistsError):
                    return False
            if self._doubts:
                yield from self._resign_steps()
            assert self.partition is not None
            self.partition.forget_metadata()
            self.view = None
            self._history += 1
        self._checked, self._doubts, self._first_look = True, False, True
        return True

    def _resign_steps(self) -> Steps[None]:
        """Ends the lease of the controller that the older state has of this session."""
        controller = yield from find(paths.CONTROLLER)
        if controller is not None and controller[1].ephemeral_owner == self.coordination.session_id:
            yield from transact(Delete(paths.CONTROLLER, controller[1].version))

    def _has_gone_back_steps(self) -> Steps[bool]:
        seen = None if self._first_look else self.seen_change
        return seen is not None and (yield from lacks_change(seen.version, seen.by))

    def _went_back(self) -> None:
        """Gives up all roles, and registers anew in the session, which the older state has as well."""
        self.own, self.view = None, None
        assert self.partition is not None
        self.partition.forget_metadata()
        self._checked, self._doubts = False, True
        self.register_again()

    # -- reading the metadata ------------------------------------------------------------------------------------

    def look(self) -> None:
        """Reads the metadata; reads once more if asked again meanwhile."""
        if self._looking:
            self._look_again = True
            return
        self._looking, self._look_again = True, False
        session_id = self.coordination.session_id

        def done(view: View | None) -> None:
            if session_id != self.coordination.session_id:
                return
            self._looking = False
            if view is not None and history == self._history:
                self._see(view)
            if (self._look_again or history != self._history) and self.up:
                self.look()

        if not self._checked:
            self._looking = False
            return  # what it reads might be older than what it has seen
        whole = self.view is None or (self.world.restorable and self._first_look)
        known, history = None if whole or self.view is None else self.view.states, self._history
        steps = self._look_steps(known)
        self.world.converse(self, steps, done, lambda: done(None), lambda: self._known_view(known))

    def _known_view(self, known: MetadataStates | None) -> tuple[View, int] | None:
        """Returns what `_look_steps` would read now, and the number of its requests; None if it has to be read.

        If the last view was read while the tree was as it is now, and its states are those to begin with, then the
        requests are the version of the metadata, which is still that of the states, so that no change is read; both
        lists of children with all their paths; the epoch and the holder of the controller's lease. The tree and the
        session determine the answers. The session is live and within reach, so that no request fails but that for a
        lease which nobody holds, and the steps handle that.
        """
        seen = self._seen
        if (
            seen is None
            or self.world.restorable
            or self.world.reassigning
            or known is not seen.view.states
            or seen.changes != self.world.tree.changes
            or seen.session_id != self.coordination.session_id
            or self.cut_off
        ):
            return None
        view = seen.view
        again = View(view.states, view.registrations, view.recovered, view.controller, view.lease, self.world.now)
        return again, 5 + len(view.registrations) + len(view.recovered)

    def _look_steps(self, known: MetadataStates | None) -> Steps[View]:
        begun = self.world.now
        changes, session_id, self._seen = self.world.tree.changes, self.coordination.session_id, None
        states, assignment = yield from self._read_states_steps(known)
        restored = None
        if self.world.restorable:
            if (yield from self._has_gone_back_steps()):
                self._went_back()
                raise CoordinationUnavailableError("the coordination was restored from an older state")
            if (found := (yield from find(paths.RESTORED))) is not None:
                restored = RestoredNode.decode(paths.RESTORED, found[0]).leader_epoch
        registrations = yield from read_registrations()
        recovered = {}
        for name in (yield from children(RECOVERED)):
            node = yield from find(f"{RECOVERED}/{name}")
            if node is not None:
                recovered[int(name)] = RecoveredEnd(*json.loads(node[0]))
        epoch, stat = yield from get(paths.CONTROLLER_EPOCH)
        controller = yield from find(paths.CONTROLLER)
        lease = None
        if controller is not None and controller[1].ephemeral_owner == self.coordination.session_id:
            lease = Lease(int(epoch), stat.version)  # read before the broker saw that the lease is its own
        holder = controller[0].decode() if controller is not None else None
        view = View(states, registrations, recovered, holder, lease, begun, restored, assignment)
        if self.world.restorable or self.world.reassigning:
            return view
        if changes == self.world.tree.changes and session_id == self.coordination.session_id != 0:
            self._seen = Seen(view, session_id, changes)
        return view

    def _read_states_steps(self, known: MetadataStates | None) -> Steps[tuple[MetadataStates, ReplicaAssignment]]:
        """Reads the states and, where that matters, the name of the last change, and the assignment of their
        version."""
        assignment = ASSIGNMENT
        while True:
            states = yield from read_states(known, [TP])
            if not self.world.restorable and not self.world.reassigning:
                return states, assignment
            if self.world.reassigning:
                assignment = decode_assignment((yield from get(TOPIC_PATH))[0])
            data, stat = yield from get(paths.METADATA_VERSION)
            if stat.version == states.version:
                by = MetadataVersionNode.decode(paths.METADATA_VERSION, data or b"{}").by
                return MetadataStates(states.version, states.states, by), assignment

    def _see(self, view: View) -> None:
        if self.world.restorable:
            last, state = self.seen_change, view.states.states[TP].state
            epoch = max(state.leader_epoch, last.leader_epoch if last is not None else -1)
            self.seen_change, self._first_look = SeenChange(view.states.version, view.states.by, epoch), False
        self.view = view
        own = view.registrations.get(self.id)
        self.own = own if own is not None and own.incarnation == self.incarnation else None
        if self.own is None and self._registered_at is not None and view.begun > self._registered_at:
            self.register_again()  # the broker was evicted
        if self.own is not None and self.own.epoch != self._cold_start.broker_epoch:
            self._cold_start.registered(self.own.epoch, view.states.version)
        by = view.states.by
        writers = (each.epoch for each in view.registrations.values() if by.startswith(each.incarnation))
        self._cold_start.saw(view.states.version, by, next(writers, None))
        self._take_metadata()
        self._report_recovered_end()
        self._control()
        self._propose()

    def _take_metadata(self) -> None:
        if self.view is None or not self._has_partition(self.view.assignment):
            return
        assert self.partition is not None
        stored = self.view.states.states[TP].state
        before, followed = self.partition.leader, self.partition.follower
        own = self.own if self.view.restored is None else None
        self.partition.on_metadata(stored, self.view.states.version, own, self.world.now)
        leader = self.partition.leader
        if leader is not None and leader is not before:
            self.world.on_leading(self, leader.epoch)
        self._complete()
        if self.partition.follower is not None and self.partition.follower is not followed:
            self._fetch_sent = float("-inf")
            self.fetch()
        if self.own is not None and stored.data_ids.get(self.id) == self.own.data_id and self.id in stored.isr:
            self.tainted = self._data_lost

    def _has_partition(self, assignment: ReplicaAssignment) -> bool:
        """Returns whether this broker has the partition; one that has it no more deletes its log."""
        if not self.world.reassigning:
            return self.partition is not None
        if self.id not in assignment.replicas:
            if self.partition is not None:
                self.partition.rest()
                self.partition = None
            if self.log.log_end_offset or self.log.epoch_entries():
                self.log = self._new_log()
                self.world.counts.struck("delete log")
            self.tainted = False  # it holds nothing that could be missed
            return False
        settings = self._settings(assignment)
        if self.partition is None:
            self.partition = Partition(self.id, self.log, assignment.replicas, settings)
        self.partition.reconfigure(assignment.replicas, settings)
        return True

    def _settings(self, assignment: ReplicaAssignment) -> ReplicationSettings:
        settings = self.world.settings
        minimum = effective_min_isr(settings.min_insync_replicas, assignment)
        return ReplicationSettings(minimum, settings.replica_lag_time_max_ms)

    def _report_recovered_end(self) -> None:
        """Reports, unless it is a sound member, where its log ends, once nothing is appended in this epoch (R7)."""
        assert self.view is not None
        state = self.view.states.states[TP].state
        if self.own is None or state.leader != NO_LEADER or self.partition is None:
            return
        if standing(self.own, state.data_ids.get(self.id)) is Standing.SOUND:
            return
        key = (state.leader_epoch, self.own.incarnation)
        if self._reported == key:
            return
        end = RecoveredEnd(
            state.leader_epoch, self.own.data_id, self.log.last_record_epoch, self.log.log_end_offset,
            self.log.high_watermark,
        )  # fmt: skip
        data = json.dumps(astuple(end)).encode()

        def steps() -> Steps[bool]:
            path = f"{RECOVERED}/{self.id}"
            found = yield from find(path)
            if found is not None and found[0] == data and found[1].ephemeral_owner == self.coordination.session_id:
                return True
            replaced = [Delete(path, found[1].version)] if found is not None else []
            try:
                yield from transact(*replaced, Create(path, data, ephemeral=True))
            except (NodeExistsError, NoNodeError, BadVersionError):
                return False
            return True

        def done(reported: bool) -> None:
            self._reported = key if reported else None

        self._reported = key
        self.world.converse(self, steps(), done, lambda: done(False))

    # -- controller ----------------------------------------------------------------------------------------------

    def _control(self) -> None:
        view = self.view
        if view is None or self.own is None or self._electing:
            return
        if view.controller is None:
            self._electing = True
            self.world.converse(self, self._take_controller_steps(), self._elected, lambda: self._elected(None))
            return
        if view.lease is None:
            return
        judged = (view.states, view.registrations, view.recovered, view.lease)
        if self._elected_none is not None and all(map(is_, judged, self._elected_none)):
            return  # the same objects: `elect` is a function of them, and has returned None
        self._elected_none = None
        state = view.states.states[TP].state
        if self.world.restorable and self._control_restored(view, view.lease, state):
            return
        elected = elect(
            state,
            view.assignment.replicas,
            view.registrations,
            view.recovered,
            self._settings(view.assignment).min_insync_replicas,
            view.lease.epoch,
        )
        if elected is None:
            if self.world.reassigning:  # what there is to do then depends on more than what was judged
                self._reassign(view, view.lease, state)
            else:
                self._elected_none = judged
            return
        self._write_as_controller(view, view.lease, {TP: above_floor(state, elected, self.world.epoch_floor)})

    def ask(self, *targets: Target) -> None:
        """Asks this broker, if it is the controller, for reassignments, one after the other."""
        if self.view is not None and self.view.lease is not None:
            self._asked = list(targets)
            self.look()

    def _reassign(self, view: View, lease: Lease, state: PartitionState) -> None:
        """Completes the reassignment that is in progress, or begins or cancels one as it was asked."""
        minimum = self.world.settings.min_insync_replicas
        found = completed(view.assignment, state, view.registrations, minimum)
        if found is None and self._asked:
            live = [number for number, known in view.registrations.items() if not known.leaving]
            target = self._asked.pop(0)
            try:
                if target is None:
                    found = cancelled(view.assignment, state, view.registrations, minimum)
                else:
                    check_target(view.assignment, target, live)
                    found = Reassigned(begin(view.assignment, target), state)
            except BrokerError:
                return
        if found is None:
            return
        states = {} if found.state == state else {TP: replace(found.state, controller_epoch=lease.epoch)}
        self.world.counts.struck("reassign")
        self._write_as_controller(view, lease, states, Set(TOPIC_PATH, encode_assignment(found.assignment)))

    def _control_restored(self, view: View, lease: Lease, state: PartitionState) -> bool:
        """Does what R13 asks of the controller; returns True if it may not elect now."""
        terms = Terms(lease.epoch, self.world.epoch_floor, _DEFAULTS, self._cold_start.held_below())
        if view.restored is not None:
            if state.leader_epoch <= view.restored and DOUBTED not in state.data_ids.values():
                self._write_as_controller(view, lease, {TP: doubted_state(state, REPLICAS, terms)})
            else:
                self._write_as_controller(view, lease, {}, Delete(paths.RESTORED))
            return True
        return is_held(state, REPLICAS, view.registrations, terms)

    def _write_as_controller(
        self, view: View, lease: Lease, states: dict[TopicPartition, PartitionState], *operations: Operation
    ) -> None:
        by = f"{self.incarnation}/c{self.world.now}" if self.world.restorable else f"{self.incarnation}/c"
        written = change_operations(controller_guard(lease.version), view.states, states, by, operations=operations)
        self._electing = True
        self.world.converse(self, write_change(written), self._elected, lambda: self._elected(None))

    def _elected(self, outcome: ProposalOutcome | None) -> None:
        self._electing = False
        if outcome is ProposalOutcome.REFUSED:
            self.world.counts.refused_writes += 1
        self.look()

    def _take_controller_steps(self) -> Steps[None]:
        if (yield from find(paths.CONTROLLER)) is not None:
            return
        data, stat = yield from get(paths.CONTROLLER_EPOCH)
        try:
            yield from transact(
                Create(paths.CONTROLLER, self.incarnation.encode(), ephemeral=True),
                Set(paths.CONTROLLER_EPOCH, b"%d" % (int(data) + 1), stat.version),
            )
        except (NodeExistsError, BadVersionError):
            return

    # -- leader --------------------------------------------------------------------------------------------------

    def produce(self, value: int) -> None:
        """Appends a client's record with acks=all, which may have been sent before."""
        partition = self.partition
        if partition is None or partition.leader is None or partition.check_produce() is not ErrorCode.none:
            return
        epoch = partition.leader.epoch
        offset = self.log.offset_of(value)
        if offset is None and self.full:
            self._ran_out_of_room()
            return
        if offset is None:
            offset = self.log.append(value, epoch)
        partition.appended(epoch, offset + 1, Waiter(value, offset))
        self._complete()

    def _complete(self) -> None:
        if self.partition is None:
            return
        done, error = self.partition.take_committed()
        for waiter in done if error is ErrorCode.none else ():
            self.world.acknowledge(self, waiter.value, waiter.offset)

    def _propose(self, lateness: float = 0.0) -> None:
        if self.partition is None or self.partition.leader is None or self.view is None or self.own is None:
            return
        leader = self.partition.leader
        if leader.version != self.view.states.version:
            return
        proposal = leader.next_proposal(self.view.registrations, self.world.now, lateness)
        if proposal is None:
            return
        guard = leader_guard(self.own.incarnation, [added.incarnation for added in proposal.added])
        by = f"{self.own.incarnation}/l{self.world.now}" if self.world.restorable else f"{self.own.incarnation}/l"
        operations = change_operations(guard, self.view.states, {TP: proposal.state}, by)

        def done(outcome: ProposalOutcome) -> None:
            leader.on_outcome(proposal, outcome)
            self._complete()
            if outcome is ProposalOutcome.REFUSED:
                self.world.counts.refused_writes += 1
            self.look()

        self.world.converse(self, write_change(operations), done, lambda: done(ProposalOutcome.UNKNOWN))

    def _serve_fetch(self, fetch: ReplicaFetch, answered: Callable[[ReplicaFetchData], None]) -> None:
        leader = self.partition.leader if self.partition is not None else None
        if leader is None:
            answer = ReplicaFetchData(ErrorCode.not_leader_or_follower)
        else:
            known = self.view.registrations.get(fetch.replica_id) if self.view is not None else None
            refused = leader.on_fetch(fetch, known, self.world.now)
            if refused is None:
                records = self.log.read(fetch.fetch_offset, self.world.random.choice((1, 3, 100)))
                refused = ReplicaFetchData(
                    high_watermark=self.log.high_watermark,
                    log_start_offset=self.log.log_start_offset,
                    records=records,
                )
            answer = refused
            self._complete()
            self._propose()
        self.world.send("answer", self.id, fetch.replica_id, lambda: answered(answer))

    # -- follower ------------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        """Sends a Fetch to the leader unless one is already in flight."""
        follower = self.partition.follower if self.partition is not None else None
        if follower is None or self.own is None or self.world.now - self._fetch_sent < self.world.fetch_timeout:
            return
        request = follower.fetch(self.own.epoch)
        if request is None:
            return
        self._fetch_sent = self.world.now
        leader = self.world.brokers[follower.leader]

        def answered(answer: ReplicaFetchData) -> None:
            if answer.records and self.full and self._follows(follower):
                self._ran_out_of_room()
                return
            result = follower.on_answer(request, answer) if self._follows(follower) else FetchResult.STALE
            if result is FetchResult.STALE:
                return
            self._fetch_sent = float("-inf")
            self.world.counts.truncations += result is FetchResult.TRUNCATED
            if result is FetchResult.TRUNCATED:
                self.world.check_members()
            if result is FetchResult.REFUSED:
                self.look()
            if result is not FetchResult.REFUSED and (answer.records or result is not FetchResult.APPENDED):
                self.fetch()

        self.world.send("fetch", self.id, leader.id, lambda: leader._serve_fetch(request, answered))

    def _follows(self, follower: object) -> bool:
        """Returns False for answers on a link that a role change has closed; they are ignored."""
        return self.partition is not None and self.partition.follower is follower

    # -- time ----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        world = self.world
        chance, lateness = world.chance, world.now - self._tick_due
        if self.coordination.session_id == 0 and not self.cut_off:
            self.session_over()
        if world.now - self._fetch_sent >= world.fetch_timeout:
            self.fetch()
        if self.partition is not None and self.partition.leader is not None:
            self._propose(lateness)
        if chance() < 0.2:
            self.log.flush(world.random.randint(self.log.flushed_offset, self.log.log_end_offset))
        if chance() < 0.1:
            self.log.checkpoint()
        if chance() < 0.3:
            self.look()
        if self._registered_at is None:
            self._register()
        if self._says_full and not self.full:
            self._says_full = False
        if self._restated or self._says_full or (self.own is not None and self.own.full):
            self._restate()
        delay = TICK / 4 + chance() * TICK * 3 / 4
        self._tick_due = world.now + delay
        world.at_process(delay, self, self.process, self._tick)
