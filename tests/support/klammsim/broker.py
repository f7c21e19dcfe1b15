"""A broker of the simulation: `ClusterNode` and the state machines of replication, and what carries their requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode

from klamm.core.cluster.brokers.incarnations import evict_operations
from klamm.core.cluster.brokers.registration import BrokerIdentity
from klamm.core.cluster.image import EMPTY_IMAGE, ClusterImage, Endpoint
from klamm.core.cluster.node import ClusterNode
from klamm.core.cluster.reassignment import ReplicaAssignment, effective_min_isr
from klamm.core.cluster.restored import RestoredError
from klamm.core.cluster.tree.steps import run_steps
from klamm.core.errors import KlammError
from klamm.core.interfaces.coordination import Watch
from klamm.core.log import data_ids
from klamm.core.log.data_ids import DataIdentity
from klamm.core.log.state.seen_metadata import SeenChange
from klamm.core.replication.elections import RecoveredEnd
from klamm.core.replication.follower import FetchResult
from klamm.core.replication.leader import ProposalOutcome, ReplicationSettings
from klamm.core.replication.partition import Partition
from klamm.core.replication.partition_state import NO_LEADER
from klamm.core.replication.registrations import BrokerRegistration, Standing, standing
from klamm.core.replication.replica_fetch import ReplicaFetch, ReplicaFetchData

from .coordination import SimCoordination, SimTree
from .crashing_log import CrashingLog
from .scene import SESSION_TIMEOUT, TICKS_PER_S, TP

if TYPE_CHECKING:
    from .world import World

TICK: Final = 8.0
RETRY: Final = 10.0
"""Ticks until a broker tries again what the coordination did not answer."""
Target = tuple[int, ...] | None
"""The replicas that a reassignment asks for; None cancels the one in progress."""


class Waiter(NamedTuple):
    """A Produce request that waits for its acknowledgement."""

    value: int
    offset: int


class SeenInMemory:
    """The last change of the metadata that a broker has seen: a file in the log directory (R13)."""

    def __init__(self) -> None:
        self.last: SeenChange | None = None

    def note(self, seen: SeenChange) -> None:
        self.last = seen


class BrokerSession(SimCoordination):
    """A broker's session, whose end it learns of by its next request, if that reaches the coordination."""

    def __init__(self, tree: SimTree) -> None:
        super().__init__(tree, SESSION_TIMEOUT / TICKS_PER_S)

    def expired(self, session_id: int) -> None:
        """Nobody tells the broker."""

    def look(self) -> None:
        """Notices the end of the session."""
        if self._session_id and not self._expired and not self._tree.is_live(self._session_id):
            super().expired(self._session_id)

    def _live(self) -> int:
        self.look()
        return super()._live()


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
        self.refuses = False
        """True while it refuses connections, though it lives."""
        self.leaving = False
        self.full = False
        """True while the disk has no room for records."""
        self.tainted = False
        """True if data was lost, until the broker is in the ISR with its present data."""
        self.log = self._new_log()
        self.boot = 0
        self._data_ids_drawn = 0
        self._directories = 0
        self.identity = DataIdentity((self._draw_data_id(),), "boot-0")
        self._data_lost = False
        self._queue: list[Callable[[], None]] = []
        self.seen = SeenInMemory()
        self._start()

    def _start(self) -> None:
        world = self.world
        self.coordination = BrokerSession(world.tree)
        identity = BrokerIdentity(
            self.id, (Endpoint(f"host{self.id}", 9092),), self.identity.data_ids, f"directory-{self._directories}"
        )
        self.node = ClusterNode(
            self.coordination,
            identity,
            mutex=world.mutex,
            on_news=self._on_news,
            wake=self._wake,
            name=f"{self.id}-{self.process}",
            clock=world.clock,
            monotonic=world.monotonic,
            uniform=world.random.uniform,
            random_index=world.random.randrange,
            new_id=world.new_id,
            defaults=lambda: world.defaults,
            seen=self.seen,
        )
        self.coordination.on_session(self.node.on_session)
        self.partition: Partition[Waiter] | None = None
        self.image: ClusterImage = EMPTY_IMAGE
        """As it was applied last."""
        self._joined = self._working = self._look_again = self._proposing = False
        self._is_cold = True
        """Of `ColdStart`: the worker thread waits for its end."""
        self._says_full = False
        self._restating = False
        self._fetch_sent = float("-inf")
        self._reported: tuple[int, str] | None = None
        self._watches: list[Watch] = []
        self._tick_due = world.now

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

    @property
    def own(self) -> BrokerRegistration | None:
        """Its registration as it knows it."""
        return self.node.own_registration if self.up else None

    @property
    def seen_change(self) -> SeenChange | None:
        """The last change of the metadata that it has seen."""
        return self.seen.last

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
        self.up, self.paused, self.cut_off, self.leaving, self.refuses = True, False, False, False, False
        self.process += 1
        self._queue = []
        self.identity = data_ids.identity_at_start(
            self.identity, f"boot-{self.boot}", self._draw_data_id, recovery_cut=self.log.recovery_cut_more
        )
        self._data_lost = False
        self._start()
        self.coordination.start()
        self.world.check_members()
        self._work()
        self.later(self.world.random.random() * 5, self._tick)

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
        self._directories += 1
        self.identity = DataIdentity((self._draw_data_id(),), f"boot-{self.boot}")
        self.tainted = True
        self.seen = SeenInMemory()

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

    # -- membership: what `Cluster` does on its worker thread --------------------------------------------------------

    def set_watches(self, wanted: Sequence[str]) -> None:
        for watch in self._watches:
            watch.cancel()
        self._watches = [
            self.coordination.watch(path, lambda: self.later(self.world.delay(), self._wake)) for path in wanted
        ]

    def _wake(self) -> None:
        self._look_again = True
        if self._joined and not self._working:
            self._work()

    def _work(self) -> None:
        """Joins, or reacts to whatever has happened; again if something happened meanwhile."""
        self._working, self._look_again = True, False

        def done(_: None) -> None:
            self._joined, self._working = True, False
            if self._look_again:
                self._work()

        self.world.converse(self, self.node.catch_up() if self._joined else self.node.join(), done, self._work_failed)

    def _work_failed(self, error: KlammError) -> None:
        if isinstance(error, RestoredError):
            self.world.violated(f"broker {self.id} comes after others have led by an older state: {error}")
        if self._joined:
            self.later(RETRY, self._work)
            return
        self.kill()  # a broker that cannot join ends, and is started again
        session_id = self.coordination.session_id
        if session_id and not self.cut_off:
            self.world.tree.end_session(session_id)
        elif session_id:
            self.world.at(SESSION_TIMEOUT, lambda: self.world.tree.expire(session_id))
        process = self.process
        self.world.at(RETRY, lambda: self.start() if self.process == process else None)

    def register_again(self) -> None:
        """Replaces the registration by a new one, as after an eviction to which no other broker has reacted yet."""
        assert self.own is not None
        self.world.tree.apply(evict_operations(self.own), 0)
        self.node.broker_epoch = run_steps(self.coordination, self.node.registration.register())
        self._wake()

    def leave(self) -> None:
        """Takes the first step of a controlled shutdown: the registration says that the broker leaves."""
        if self.own is not None and not self.leaving:
            self.leaving = True
            self.world.converse(self, self.node.set_leaving())

    def _ran_out_of_room(self) -> None:
        """Called for each write that fails for lack of room."""
        self._set_full(True)

    def _set_full(self, full: bool) -> None:
        """Says whether the disk is full, if it did not say so."""
        if self._says_full is full or self._restating or self.own is None:
            return
        self._restating = True

        def done(said: bool) -> None:
            self._restating = False
            self._says_full = full if said else not full

        self.world.converse(self, self.node.set_full(full), lambda _: done(True), lambda _: done(False))

    def ask(self, *targets: Target) -> None:
        """Asks this broker, if it is the controller, for reassignments, one after the other."""
        for target in targets if self.node.is_controller else ():
            self.world.counts.struck("reassign")
            self.world.converse(self, self.node.changing(self.node.tasks.alter_reassignments({TP: target})))

    def suspect(self, other: SimBroker) -> None:
        """Says that the other broker refuses connections."""
        found = self.node.image.registrations.get(other.id)
        if found is not None and not found.leaving:
            self.world.converse(self, self.node.suspect(other.id, found.incarnation))

    # -- roles ---------------------------------------------------------------------------------------------------

    def _on_news(self, _: bool) -> None:
        self.later(0, self._take_metadata)

    def _take_metadata(self) -> None:
        image = self.node.image
        if image.history != self.image.history and self.partition is not None:
            self.partition.forget_metadata()
        self.image = image
        found = image.partition(TP)
        if found is None or not self._has_partition(found.assignment):
            return
        assert self.partition is not None
        stored = found.state
        before, followed = self.partition.leader, self.partition.follower
        own = self.own if image.restored is None else None
        self.partition.on_metadata(stored, image.version, own, self.world.now)
        leader = self.partition.leader
        if leader is not None and leader is not before:
            self.world.on_leading(self, leader.epoch)
        self._complete()
        if self.partition.follower is not None and self.partition.follower is not followed:
            self._fetch_sent = float("-inf")
            self.fetch()
        if self.own is not None and stored.data_ids.get(self.id) == self.own.data_id and self.id in stored.isr:
            self.tainted = self._data_lost
        self._report_recovered_end()
        self._propose()

    def _has_partition(self, assignment: ReplicaAssignment) -> bool:
        """Returns whether this broker has the partition; one that has it no more deletes its log."""
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
        state = self.partition.state if self.partition is not None else None
        if self.own is None or state is None or state.leader != NO_LEADER:
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

        def failed(_: KlammError) -> None:
            self._reported = None

        self._reported = key
        self.world.converse(self, self.node.report_recovered({TP: end}), failed=failed)

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
        leader = self.partition.leader if self.partition is not None else None
        if leader is None or self._proposing or leader.version != self.image.version:
            return
        proposal = leader.next_proposal(self.image.registrations, self.world.now, lateness)
        if proposal is None:
            return
        self._proposing = True

        def done(outcomes: list[ProposalOutcome]) -> None:
            (outcome,) = outcomes
            self._proposing = False
            leader.on_outcome(proposal, outcome)
            self._complete()
            if outcome is ProposalOutcome.REFUSED:
                self.world.counts.refused_writes += 1
            self._take_metadata()

        def failed(_: KlammError) -> None:
            done([ProposalOutcome.UNKNOWN])

        self.world.converse(self, self.node.propose([(TP, proposal)]), done, failed)

    def _serve_fetch(self, fetch: ReplicaFetch, answered: Callable[[ReplicaFetchData], None]) -> None:
        leader = self.partition.leader if self.partition is not None else None
        if leader is None:
            answer = ReplicaFetchData(ErrorCode.not_leader_or_follower)
        else:
            refused = leader.on_fetch(fetch, self.image.registrations.get(fetch.replica_id), self.world.now)
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
        if not self.cut_off:
            self.coordination.look()
        if world.now - self._fetch_sent >= world.fetch_timeout:
            self.fetch()
        if self.partition is not None and self.partition.leader is not None:
            self._propose(lateness)
        if chance() < 0.2:
            self.log.flush(world.random.randint(self.log.flushed_offset, self.log.log_end_offset))
        if chance() < 0.1:
            self.log.checkpoint()
        if chance() < 0.3:
            self._report_recovered_end()
        if self._joined and not self._working and self._is_cold != (is_cold := self.node.cold_start.left_s() > 0):
            self._is_cold = is_cold
            self._wake()
        if self._says_full and not self.full:
            self._set_full(False)
        delay = TICK / 4 + chance() * TICK * 3 / 4
        self._tick_due = world.now + delay
        world.at_process(delay, self, self.process, self._tick)
