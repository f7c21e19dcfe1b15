"""A broker of the simulation: `ClusterNode` and the state machines of replication, and what carries their requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from klamm.core.broker.replication import roles
from klamm.core.broker.replication.full_disk import RegisteredDisk
from klamm.core.broker.replication.isr_proposals import IsrProposals
from klamm.core.broker.replication.roles import Assignment, OnDisk, Refreshing, Roles, Settled
from klamm.core.cluster.brokers.incarnations import evict_operations
from klamm.core.cluster.brokers.registration import BrokerIdentity
from klamm.core.cluster.image import ClusterImage, Endpoint
from klamm.core.cluster.node import ClusterNode
from klamm.core.cluster.restored import RestoredError
from klamm.core.cluster.tree.steps import run_steps
from klamm.core.errors import KlammError, LogEndMovedError
from klamm.core.interfaces.coordination import Watch
from klamm.core.log import data_ids
from klamm.core.log.data_ids import DataIdentity
from klamm.core.log.state.seen_metadata import SeenChange
from klamm.core.records.offset_and_epoch import OffsetAndEpoch
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.follower import FetchResult
from klamm.core.replication.leader import PartitionLeader, ProposalOutcome, ReplicationSettings
from klamm.core.replication.partition import Partition
from klamm.core.replication.partition_state import PartitionState
from klamm.core.replication.registrations import BrokerRegistration
from klamm.core.replication.replica_fetch import ReplicaFetch, ReplicaFetchData

from .coordination import SimCoordination, SimTree
from .crashing_log import CrashingLog
from .scene import SESSION_TIMEOUT, STATE_PATH, TICKS_PER_S, TP
from .violation import LateBrokerError

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


class SimReplica:
    """A replica on a broker, with what `Replica` does for its role."""

    name: Final = TP

    def __init__(self, broker: SimBroker, assignment: Assignment) -> None:
        self._broker = broker
        self._world = broker.world
        self.topic_id = assignment.topic_id
        self.partition: Partition[Waiter] = Partition(
            broker.id, broker.log, assignment.image.replicas, assignment.settings
        )
        self.leader_epoch = -1
        self.is_offline = False

    @property
    def leader(self) -> PartitionLeader | None:
        return self.partition.leader

    def on_metadata(
        self,
        state: PartitionState,
        version: int,
        own: BrokerRegistration | None,
        replicas: tuple[int, ...],
        settings: ReplicationSettings,
    ) -> None:
        broker, before = self._broker, self.leader
        self.partition.reconfigure(replicas, settings)
        self.partition.on_metadata(state, version, own, self._world.now)
        leader = self.leader
        if leader is not None and leader is not before:
            self._world.on_leading(broker, leader.epoch)
        self.refresh()
        if own is not None and state.data_ids.get(broker.id) == own.data_id and broker.id in state.isr:
            broker.sound()

    def rest(self) -> None:
        self.partition.rest()
        self.refresh()

    def forget_metadata(self) -> None:
        self.partition.forget_metadata()
        self.refresh()

    def refresh(self) -> None:
        leader = self.leader
        self.leader_epoch = -1 if leader is None else leader.epoch
        if leader is not None:
            leader.advance_high_watermark()
        self.complete()

    def complete(self) -> None:
        """Acknowledges what is committed."""
        done, error = self.partition.take_committed()
        for waiter in done if error is ErrorCode.none else ():
            self._world.acknowledge(self._broker, waiter.value, waiter.offset)

    def complete_deletes(self) -> None:
        """No client deletes records."""

    def review_followers(self) -> None:
        """Every Fetch of a follower is taken."""


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

    @property
    def is_live(self) -> bool:
        """False after the end of the session, whether it is noticed or not."""
        return self._session_id != 0 and not self._expired and self._tree.is_live(self._session_id)

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
        self.hosted: SimReplica | None = None
        self.refused: dict[TopicPartition, str] = {}
        settings = world.settings
        self.roles: Roles[SimReplica] = Roles(
            self.node, self, world.defaults, lambda: settings.replica_lag_time_max_ms, self._refresh_later
        )
        self.proposals: IsrProposals[SimReplica] = IsrProposals(self.roles, lambda _: self.hosted)
        self._joined = self._working = self._look_again = False
        self._refreshing = self._refresh_again = self._gathering = False
        self._lateness = 0.0
        self._is_cold = True
        """Of `ColdStart`: the worker thread waits for its end."""
        self._registered = RegisteredDisk()
        self._restating = False
        self._fetch_sent = float("-inf")
        self._watches: list[Watch] = []
        self._watched: Sequence[str] = ()
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
    def image(self) -> ClusterImage:
        """As it was applied last."""
        return self.roles.image

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

    def _named_data_ids(self) -> Collection[str]:
        """Returns the data ids by which the stored state knows this broker's replica."""
        found = self.world.tree.find(STATE_PATH)
        state = None if found is None else PartitionState.decode(STATE_PATH, found[0])
        return () if state is None or self.id not in state.data_ids else (state.data_ids[self.id],)

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
            self.identity,
            f"boot-{self.boot}",
            self._draw_data_id,
            recovery_cut=self.log.recovery_cut_more,
            named=self._named_data_ids(),
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

    def lose_power_flushed(self) -> None:
        """As `lose_power`, just after all was flushed: nothing is lost, which nobody can know."""
        self.log.flush(self.log.log_end_offset)
        self.kill()
        self.boot += 1

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

    def sound(self) -> None:
        """The broker is in the ISR with its present data."""
        self.tainted = self._data_lost

    def _lost_data(self, records: int) -> None:
        self._data_lost = self.tainted = True
        self.world.counts["records lost from disks"] += records

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
        self._watched = wanted
        self._watches = [
            self.coordination.watch(path, lambda: self.later(self.world.delay(), self._wake)) for path in wanted
        ]

    def reconnect(self) -> None:
        """Connects again in a session that was over, and which a restored coordination has: the client sets its watches
        again."""
        self.cut_off = False
        self.set_watches(self._watched)
        self._wake()

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
            if self.world.now > self.world.restored_at + 2 * SESSION_TIMEOUT:
                raise LateBrokerError
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
        if not self._registered.differs(full) or self._restating or self.own is None:
            return
        self._restating = True
        self._registered.writing()

        def done(answered: bool) -> None:
            self._restating = False
            if answered:
                self._registered.written(full)

        self.world.converse(self, self.node.set_full(full), lambda _: done(True), lambda _: done(False))

    def ask(self, *targets: Target) -> None:
        """Asks this broker, if it is the controller, for reassignments, one after the other."""
        for target in targets if self.node.is_controller else ():
            self.world.counts["reassign"] += 1
            self.world.converse(self, self.node.changing(self.node.tasks.alter_reassignments({TP: target})))

    def suspect(self, other: SimBroker) -> None:
        """Says that the other broker refuses connections."""
        found = self.node.image.registrations.get(other.id)
        if found is not None and not found.leaving:
            self.world.converse(self, self.node.suspect(other.id, found.incarnation))

    # -- roles: what `RoleChanges` does ----------------------------------------------------------------------------

    @property
    def partition(self) -> Partition[Waiter] | None:
        return None if self.hosted is None else self.hosted.partition

    def _on_news(self) -> None:
        self.later(0, self.refresh_soon)

    def refresh_soon(self) -> None:
        """Applies the newest image, again if that is asked for meanwhile."""
        if self._refreshing:
            self._refresh_again = True
            return
        self._refreshing, self._refresh_again = True, False
        self._refresh(self.roles.refresh())

    def _refresh(self, steps: Refreshing, answer: object = None, error: KlammError | None = None) -> None:
        """Carries out the steps of a refresh from the answer on."""
        try:
            step = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration:
            self._refreshing = False
            if self._refresh_again:
                self.refresh_soon()
            return
        if isinstance(step, OnDisk):
            self.later(self.world.delay(), lambda: self._refresh(steps, step.call()))
        else:
            self.world.converse(
                self, step.steps, partial(self._refresh, steps), lambda failed: self._refresh(steps, None, failed)
            )

    def _refresh_later(self) -> None:
        self.later(RETRY, self.refresh_soon)

    def replicas(self) -> list[SimReplica]:
        return [] if self.hosted is None else [self.hosted]

    def replica(self, _: TopicPartition) -> SimReplica | None:
        return self.hosted

    def led(self) -> list[SimReplica]:
        return [replica for replica in self.replicas() if replica.leader is not None]

    def applies(self, image: ClusterImage) -> None:
        """Nothing is to be done."""

    def remove(self, replicas: Collection[SimReplica]) -> None:
        for replica in replicas:
            replica.rest()
            self.hosted = None

    def put(self, _: TopicPartition, __: CrashingLog, assignment: Assignment) -> None:
        if self.hosted is None:
            self.hosted = SimReplica(self, assignment)

    def fetch(self, _: SimReplica) -> None:
        self._fetch_sent = float("-inf")
        self.send_fetch()

    def stop_fetching(self, _: SimReplica) -> None:
        """The answers to the Fetch that is sent are stale: see `_follows`."""

    def mirrors_ended(self) -> None:
        """Nothing is mirrored."""

    def has_former_config(self, _: TopicPartition, __: Assignment) -> bool:
        return False

    def settle(
        self,
        image: ClusterImage,
        _: Mapping[str, UUID],
        wanted: Mapping[TopicPartition, Assignment],
        left: Mapping[TopicPartition, int],
    ) -> Settled:
        """Opens the log for its next leader epoch; deletes that of a replica that was removed."""
        found = image.partition(TP)
        if found is not None and self.id not in found.replicas:
            if self.log.log_end_offset or self.log.epoch_entries():
                self.log = self._new_log()
                self.world.counts["delete log"] += 1
            self.tainted = False  # it holds nothing that could be missed
        over = {
            name: epoch
            for name, assignment in wanted.items()
            if (epoch := roles.epoch_that_is_over(assignment, self.log.leader_epoch, left[name])) is not None
        }
        return Settled({name: self.log for name in wanted if name not in over}, over)

    # -- leader --------------------------------------------------------------------------------------------------

    def produce(self, value: int) -> None:
        """Appends a client's record with acks=all, which may have been sent before."""
        partition = self.partition
        if partition is None or partition.leader is None or partition.refusal(TP) is not None:
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

    def end(self) -> tuple[OffsetAndEpoch, int | None] | None:
        """Returns what a client reads of a leader: the end of the committed records as it knows it, and the record
        before it. None if it does not lead, or the record was deleted."""
        if self.partition is None or self.partition.leader is None:
            return None
        offset = self.log.high_watermark
        if offset == 0:
            return OffsetAndEpoch(0), None
        found = self.log.records_from(offset - 1) if offset > self.log.log_start_offset else []
        return (OffsetAndEpoch(offset, found[0][0]), found[0][1]) if found else None

    def produce_after(self, value: int, after: OffsetAndEpoch, before: int | None) -> None:
        """Appends a client's record if the log ends at `after`, where the client has read the record `before`."""
        partition = self.partition
        if partition is None or partition.leader is None or partition.refusal(TP) is not None:
            return
        if self.full:
            self._ran_out_of_room()
            return
        epoch = partition.leader.epoch
        try:
            offset = self.log.append(value, epoch, after)
        except LogEndMovedError:
            return
        self.world.stored_after(self, value, offset, after, before)
        partition.appended(epoch, offset + 1, Waiter(value, offset))
        self._complete()

    def _complete(self) -> None:
        if self.hosted is not None:
            self.hosted.complete()

    def _write_soon(self) -> None:
        """Writes changes of in-sync replicas, as `IsrChanges` does."""
        if not self._gathering:
            self._gathering = True
            self.later(self.world.chance() * 2, self._write)

    def _write(self) -> None:
        made = self.proposals.make(self.world.now, self._lateness)
        if not made:
            self._gathering = False
            if self.proposals.some:
                self.later(RETRY / 2, self._write_soon)
            return

        def done(outcomes: list[ProposalOutcome]) -> None:
            self._gathering = False
            self.proposals.written(made, outcomes)
            self.world.counts["refused writes"] += outcomes.count(ProposalOutcome.REFUSED)
            self.refresh_soon()
            if self.proposals.some:
                self.later(RETRY / 2, self._write_soon)

        def failed(_: KlammError) -> None:
            done([ProposalOutcome.UNKNOWN] * len(made))

        self.world.converse(self, self.node.propose([(name, proposal) for name, proposal, _, _ in made]), done, failed)

    def _serve_fetch(self, fetch: ReplicaFetch, answered: Callable[[ReplicaFetchData], None]) -> None:
        leader = self.partition.leader if self.partition is not None else None
        if leader is None:
            answer = ReplicaFetchData(ErrorCode.not_leader_or_follower)
        else:
            known = self.image.registrations.get(fetch.replica_id)
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
            if leader.wants_member(fetch.replica_id, known, self.world.now):
                self.proposals.want(TP)
                self._write_soon()
        self.world.send("answer", self.id, fetch.replica_id, lambda: answered(answer))

    # -- follower ------------------------------------------------------------------------------------------------

    def send_fetch(self) -> None:
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
            self.world.counts["truncations"] += result is FetchResult.TRUNCATED
            if result is FetchResult.TRUNCATED:
                self.world.check_members()
            if result is not FetchResult.REFUSED and (answer.records or result is not FetchResult.APPENDED):
                self.send_fetch()

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
            self.send_fetch()
        self._lateness = lateness
        for replica in self.led():
            if self.proposals.review(replica, world.now, lateness):
                self._write_soon()
        if chance() < 0.2:
            self.log.flush(world.random.randint(self.log.flushed_offset, self.log.log_end_offset))
        if chance() < 0.1:
            self.log.checkpoint()
        if self._joined and not self._working and self._is_cold != (is_cold := self.node.cold_start.left_s() > 0):
            self._is_cold = is_cold
            self._wake()
        if not self.full:
            self._set_full(False)
        delay = TICK / 4 + chance() * TICK * 3 / 4
        self._tick_due = world.now + delay
        world.at_process(delay, self, self.process, self._tick)
