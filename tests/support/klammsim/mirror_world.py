"""A mirrored partition under a random schedule: a source, three brokers of the target, and the invariants.

The objects are those of production: `Partition` with `PartitionLeader` and `PartitionFollower`, `PartitionMirror`,
`elect` and `offsets_to_copy`. A step is one event: a request that is answered, an answer that arrives (late, twice, or
in another term), a version of the state that a broker reads, a write to the coordination, or a fault. The state in the
coordination is one value with a version, and brokers read its versions in order and late. Invariants are checked after
every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from klamm.core.errors import ErrorCode
from klamm.core.log.errors import FencedLeaderEpochError
from klamm.core.mirror import adoption, group_offsets, promotion
from klamm.core.mirror.adoption import PromotionStart
from klamm.core.mirror.group_offsets import GroupOffset
from klamm.core.mirror.partition_mirror import (
    MirrorAnswer,
    MirrorDecision,
    MirrorFetch,
    MirrorGap,
    MirrorResult,
    MirrorRules,
    MirrorStatus,
    PartitionMirror,
)
from klamm.core.records.partition import TopicPartition
from klamm.core.replication import elections
from klamm.core.replication.elections import RecoveredEnd
from klamm.core.replication.follower import FetchResult, PartitionFollower
from klamm.core.replication.leader import ProposalOutcome, ReplicationSettings
from klamm.core.replication.partition import Partition
from klamm.core.replication.partition_state import NO_LEADER, PartitionState
from klamm.core.replication.registrations import BrokerRegistration
from klamm.core.replication.replica_fetch import ReplicaFetch, ReplicaFetchData

from .mirror_log import PRODUCERS, MirrorLog, Stored, is_own_marker
from .mirror_source import Key, Source
from .violation import ViolationError

BROKERS: Final = (0, 1, 2)
STEPS: Final = 400
LINK: Final = "berlin"
TP: Final = TopicPartition("trips", 0)
LAG_MS: Final = 1000.0
_MOST: Final = 1_000_000
"""Above any number of records in one schedule."""


@dataclass(slots=True)
class Cluster:
    """What the coordination of the target holds, with every version of the state."""

    states: list[PartitionState]
    registrations: dict[int, BrokerRegistration] = field(default_factory=dict)
    gaps: list[MirrorGap] = field(default_factory=list)
    copied: dict[TopicPartition, tuple[GroupOffset, ...]] = field(default_factory=dict)
    committed_offsets: dict[TopicPartition, GroupOffset] = field(default_factory=dict)
    decision: MirrorDecision | None = None

    @property
    def state(self) -> PartitionState:
        return self.states[-1]

    @property
    def version(self) -> int:
        return len(self.states) - 1


class Broker:
    """One broker of the target. `seen`: the version of the state that it has read."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.log = MirrorLog(f"broker {number}")
        self.data_ids: tuple[str, ...] = (f"{number}-0",)
        self.alive = True
        self.cut_off = False
        self.promotion: PromotionStart | None = None
        """Set while the log is that of a former source which is to be cut before the broker takes a role."""
        self.start()

    def start(self) -> None:
        settings = ReplicationSettings(self.world.min_isr, LAG_MS)
        self.partition: Partition[int] = Partition(self.number, self.log, BROKERS, settings)
        self.mirror: PartitionMirror | None = None
        self.own: BrokerRegistration | None = None
        self.seen = max(self.world.cluster.version - self.world.random.randint(1, 3), -1)
        self.from_source: list[tuple[PartitionMirror, MirrorFetch, MirrorAnswer]] = []
        self.asks: PartitionMirror | None = None
        """The mirror that has asked for its gap to be stored, or for a raised epoch."""
        self.from_leader: list[tuple[PartitionFollower, ReplicaFetch, ReplicaFetchData]] = []

    def register(self) -> None:
        world = self.world
        world.epochs += 1
        self.own = BrokerRegistration(self.number, world.epochs, f"i{world.epochs}", self.data_ids)
        world.cluster.registrations[self.number] = self.own

    def read_state(self) -> None:
        """Reads the next version of the state."""
        cluster = self.world.cluster
        if self.seen >= cluster.version:
            return
        self.seen += 1
        self.take_over()
        self.partition.on_metadata(cluster.states[self.seen], self.seen, self.own, self.world.now_ms)
        leader = self.partition.leader
        if leader is None or leader.mirror_term is None:
            self.mirror = None
        elif self.mirror is None or self.mirror.leader is not leader:
            self.mirror = PartitionMirror(
                self.log,
                leader,
                self.world.rules,
                self.world.mirrored_id,
                self._set_aside,
            )

    def take_over(self) -> None:
        """Cuts the log of the former topic, as `LogManager.take_over` does."""
        if self.promotion is None:
            return
        cut = adoption.common_end(self.log, self.promotion)
        self._set_aside(cut)
        self.log.keep_below(cut)
        self.promotion = None
        self.world.note("log taken over")

    def _set_aside(self, offset: int) -> None:
        self.world.cuts.update(self.log.between(offset, self.log.log_end_offset))


class World:
    def __init__(self, seed: int, steps: int = STEPS, source: Source | None = None) -> None:
        self.random = random = Random(seed)
        self.steps = steps
        self.min_isr = random.choice([1, 2])
        self.rules = MirrorRules(
            follows_retention=random.random() < 0.5,
            stops_at_gap=random.random() < 0.15,
            stops_at_divergence=random.random() < 0.15,
        )
        self.source = source or Source(random)
        self.mirrored_id = self.source.topic_id
        self.promotes = random.random() < 0.5
        self.recreates = source is None and random.random() < 0.15
        self.parts_histories = seed % 3 == 1
        """True if leaders of the mirror often die with records that no other replica has: replicas then differ below
        gaps (M13)."""
        self.now_ms = 0.0
        self.healing = False
        """True at the end: the only member may have lost everything, and another is then elected all the same."""
        self.epochs = 0
        self.counts: dict[str, int] = {}
        self.cuts: set[Stored] = set()
        """Records that were set aside."""
        self.shown: dict[int, Stored] = {}
        """By offset: the records that the target's consumers may have read and that no cut has removed."""
        self.promoted_epoch: int | None = None
        self.acknowledged: dict[int, int] = {}
        """The clients' records that were below the watermark of their leader: value by offset."""
        self.written: set[int] = set()
        """The values that clients have written after the promotion."""
        self.source_offsets: dict[TopicPartition, GroupOffset] = {}
        self.moved: GroupOffset | None = None
        """What the group itself has committed at the target last, if the mirror had not copied that."""
        self._next_value = -1
        self.own_markers: set[tuple[int, int]] = set()
        """Offset and producer of each marker that a leader of the mirror has written into a gap."""
        self.deleted_at_source = 0
        """The largest log start that the source has had; after `adopt`, its former mirror's end."""
        self.decided: set[int] = set()
        """Where a gap was decided upon: ends of the mirror's log."""
        epoch = random.choice([0, 3, 2000])
        ids = {number: f"{number}-0" for number in BROKERS}
        self.cluster = Cluster([PartitionState(NO_LEADER, epoch, -1, BROKERS, (), ids, 1, LINK)])
        self.brokers = [Broker(self, number) for number in BROKERS]
        for broker in self.brokers:
            broker.register()
        self.elect()

    def note(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # -- the schedule --------------------------------------------------------------------------------------------

    def run(self) -> None:
        actions: list[tuple[int, Callable[[], None]]] = [
            (10, lambda: self.source.produce(self.random.randint(1, 3))),
            (10, lambda: self.source.commit(self.random.randint(1, 4))),
            (2, self._source_elects),
            (1, self._source_deletes),
            (1, self._source_leaves),
            (3, self._source_group_commits),
            (3, self.sync_groups),
            (2, self._group_moves),
            (20, self._read_state),
            (20, self._fetch_from_source),
            (25, self._take_from_source),
            (20, self._fetch_from_leader),
            (25, self._take_from_leader),
            (6, self._change_isr),
            (4, self.elect),
            (10, self._raise_epoch),
            (4, self._store_gap),
            (2, self._decide),
            (2, self._kill),
            (6, self._restart),
            (2, self._expire),
            (2, self._cut_off),
            (6, self._client_writes),
            (3, self._pass_time),
        ]
        if self.parts_histories:
            actions.append((6, self._part_histories))
        if self.recreates:
            actions.append((1, self._source_recreates))
        if self.promotes:
            actions.append((1, self.promote))
        weights = [weight for weight, _ in actions]
        for _ in range(self.steps):
            self.random.choices(actions, weights)[0][1]()
            self.check()
        self.heal()

    def _broker(self, *, mirroring: bool = False) -> Broker:
        """Returns any broker; with `mirroring` one of those that fetch from the source, if there are any."""
        found = [broker for broker in self.brokers if broker.alive and broker.mirror is not None] if mirroring else []
        return self.random.choice(found or self.brokers)

    def _pass_time(self) -> None:
        self.now_ms += self.random.choice([1, 100, 2 * LAG_MS])

    # -- the source ----------------------------------------------------------------------------------------------

    def _source_elects(self) -> None:
        unclean = self.random.random() < 0.4
        self.note("unclean election at the source" if unclean else "election at the source")
        self.source.elect(unclean=unclean)

    def _source_deletes(self) -> None:
        self.note("retention at the source")
        self.source.delete_records()

    def _source_leaves(self) -> None:
        self.source.away = not self.source.away

    def _part_histories(self) -> None:
        """The source loses records in an unclean election. The mirror's leader follows it, and dies before another
        replica has what it has copied. The source deletes that, so the next leader has a gap there. Then the first
        comes back."""
        alone = (self._read_state, self._fetch_from_source, self._take_from_source, self._raise_epoch)
        together = (*alone, self._store_gap, self._fetch_from_leader, self._take_from_leader, self._change_isr)
        self._take_some(together)
        self.source.elect(unclean=True)
        self.note("unclean election at the source")
        self._source_writes()
        self._take_some(alone)
        leader = self.leader()
        if leader is not None and leader.alive:
            self._kill(leader)
            self.cluster.registrations.pop(leader.number, None)
        self.elect()
        self._source_writes()
        self.source.delete_records()
        self._take_some((*together, self._restart))

    def _take_some(self, steps: Sequence[Callable[[], None]]) -> None:
        for _ in range(self.random.randint(0, 200)):
            self.random.choice(steps)()
        self.check()

    def _source_writes(self) -> None:
        self.source.produce(self.random.randint(1, 6))
        self.source.commit()

    def _source_recreates(self) -> None:
        self.note("topic created again")
        self.source.recreate()

    # -- the mirror ----------------------------------------------------------------------------------------------

    def _fetch_from_source(self) -> None:
        broker = self._broker(mirroring=True)
        mirror = broker.mirror
        if not broker.alive or mirror is None:
            return
        if self.source.away:
            mirror.source_unavailable()
            return
        if mirror.stopped and self.cluster.decision is not None and mirror.accept(self.cluster.decision):
            self.note(f"decided: {self.cluster.decision.status.value}")
        if self.random.random() < 0.2:
            mirror.on_topic(self.source.topic_id)
        if broker.from_source and self.random.random() < 0.9:
            return  # mostly one is in flight
        fetch = mirror.fetch()
        if fetch is not None:
            answer = self.source.answer(fetch, mirror.topic_id)
            broker.from_source.append((mirror, fetch, answer))
            if self.random.random() < 0.05:
                broker.from_source.append((mirror, fetch, answer))

    def _take_from_source(self) -> None:
        broker = self._broker(mirroring=True)
        if not broker.alive or not broker.from_source:
            return
        mirror, fetch, answer = broker.from_source.pop(self.random.randrange(len(broker.from_source)))
        before = broker.log.log_end_offset
        try:
            result = mirror.on_answer(fetch, answer)
            if result is MirrorResult.OUT_OF_RANGE and not self.source.away:
                result = mirror.on_bounds(fetch, self.source.log.log_start_offset, self.source.topic_id)
        except FencedLeaderEpochError:
            self.note("answer in a term that is over")
            return
        mirror.notice(result)
        self.note(f"source: {result.value}")
        if result is MirrorResult.GAP_FOUND and self.rules.stops_at_gap and before not in self.decided:
            raise ViolationError(f"{broker.log.name} goes on behind a gap at {before}, which nobody has decided")
        if result is MirrorResult.CUT:
            self._on_cut(broker, before)
        if result in (MirrorResult.GAP_FOUND, MirrorResult.EPOCH_TOO_LOW) and mirror is broker.mirror:
            broker.asks = mirror

    def _coordination_is_away(self, mirror: PartitionMirror) -> bool:
        """Returns whether a write fails, or is not answered: it is not tried again unless the mirror asks again."""
        if self.healing or self.random.random() < 0.8:
            return False
        mirror.failed()
        self.note("coordination away")
        return True

    def _store_gap(self) -> None:
        """The gap is written to the coordination, maybe by a leader whose term is over."""
        broker = self._broker(mirroring=True)
        mirror = broker.mirror
        if mirror is None or mirror.gap is None or broker.asks is not mirror:
            return
        broker.asks, gap, is_written = None, mirror.gap, self.random.random() < 0.5
        away = self._coordination_is_away(mirror)
        if is_written or not away:
            self.cluster.gaps.append(gap)
        if not away:
            mirror.skip_gap()

    def _decide(self) -> None:
        """What `klamm mirror resolve --continue` writes, from a report that may be late."""
        broker = self._broker(mirroring=True)
        mirror = broker.mirror
        if mirror is not None and mirror.stopped:
            log = broker.log
            self.cluster.decision = MirrorDecision(mirror.status, log.log_end_offset, log.last_record_epoch)
            if mirror.status is MirrorStatus.GAP:
                self.decided.add(log.log_end_offset)

    def _on_cut(self, broker: Broker, before: int) -> None:
        """A record that was shown may vanish if it was set aside."""
        for offset in range(broker.log.log_end_offset, before):
            found = self.shown.get(offset)
            if found is not None and found in self.cuts:
                del self.shown[offset]

    def _raise_epoch(self) -> None:
        """A mirror's leader has its epoch raised above the source's, as `raise_leader_epochs` does."""
        broker = self._broker(mirroring=True)
        mirror, state = broker.mirror, self.cluster.state
        if not broker.alive or mirror is None or mirror.wanted_epoch < 0 or broker.asks is not mirror:
            return
        wanted, broker.asks = mirror.wanted_epoch, None
        if self._coordination_is_away(mirror):
            return
        live = broker.own is not None and self.cluster.registrations.get(broker.number) == broker.own
        if not live or state.leader != broker.number:
            mirror.failed()
        elif state.leader_epoch < wanted:
            epoch = wanted + self.random.choice([0, 0, 1, 100])
            self.cluster.states.append(replace(state, leader_epoch=epoch))
            self.note("epoch raised")

    def promote(self) -> None:
        """Ends the mirror, at any moment: what `klamm mirror promote` writes."""
        state = self.cluster.state
        if state.mirror:
            self.cluster.states.append(promotion.promoted(state, self.source.epoch))
            self.promoted_epoch = self.cluster.state.leader_epoch
            self.note("promoted")

    # -- replication in the target -------------------------------------------------------------------------------

    def _read_state(self) -> None:
        broker = self._broker()
        if broker.alive and not broker.cut_off:
            broker.read_state()

    def _fetch_from_leader(self) -> None:
        broker = self._broker()
        follower = broker.partition.follower
        if not broker.alive or follower is None or broker.own is None:
            return
        if broker.from_leader and self.random.random() < 0.9:
            return
        leader = self.brokers[follower.leader]
        fetch = follower.fetch(broker.own.epoch)
        if fetch is None or not leader.alive or leader.cut_off != broker.cut_off:
            return
        leading = leader.partition.leader
        if leading is None:
            answer = ReplicaFetchData(ErrorCode.not_leader_or_follower)
        else:
            registration = self.cluster.registrations.get(broker.number)
            answer = leading.on_fetch(fetch, registration, self.now_ms) or ReplicaFetchData(
                high_watermark=leader.log.high_watermark,
                log_start_offset=leader.log.log_start_offset,
                records=leader.log.read(fetch.fetch_offset, self.random.randint(0, 5)),
            )
        broker.from_leader.append((follower, fetch, answer))

    def _take_from_leader(self) -> None:
        broker = self._broker()
        if not broker.alive or not broker.from_leader:
            return
        follower, fetch, answer = broker.from_leader.pop(self.random.randrange(len(broker.from_leader)))
        try:
            result = follower.on_answer(fetch, answer)
        except FencedLeaderEpochError:
            return
        if result is FetchResult.TRUNCATED:
            self.note("follower truncated")

    def _change_isr(self) -> None:
        broker = self._broker()
        leader = broker.partition.leader
        if not broker.alive or leader is None or broker.own is None:
            return
        registrations = self.cluster.registrations
        proposal = leader.next_proposal(registrations, self.now_ms)
        if proposal is None:
            return
        live = registrations.get(broker.number) == broker.own and all(
            registrations.get(added.broker_id) == added for added in proposal.added
        )
        if not live or proposal.base_version != self.cluster.version or broker.cut_off:
            leader.on_outcome(proposal, ProposalOutcome.REFUSED)
            return
        self.cluster.states.append(proposal.state)
        leader.on_outcome(proposal, ProposalOutcome.APPLIED)

    def elect(self) -> None:
        """The controller elects, by the state and the registrations that are live now."""
        state = self.cluster.state
        ends = {
            broker.number: RecoveredEnd(
                state.leader_epoch, broker.data_ids[0], broker.log.last_record_epoch, broker.log.log_end_offset,
                broker.log.high_watermark,
            )
            for broker in self.brokers
            if broker.alive and broker.seen == self.cluster.version
        }  # fmt: skip
        registrations = self.cluster.registrations
        elected = elections.elect(state, BROKERS, registrations, ends, self.min_isr, 1, unclean=self.healing)
        if elected is not None:
            self.cluster.states.append(elected)
            self.note("election")
            if len(elected.isr) >= self.min_isr and set(state.members) - set(elected.members):
                self._forget_unless_on(elected.members)

    # -- faults --------------------------------------------------------------------------------------------------

    def _kill(self, broker: Broker | None = None) -> None:
        broker = broker or self._broker()
        if not broker.alive:
            return
        broker.alive = False
        if self.random.random() < 0.3:
            broker.log.lose_power(self.random)
            self._forget_unless_on(self.cluster.state.members)
            broker.data_ids = (f"{broker.number}-{self.epochs}-{len(broker.data_ids)}", *broker.data_ids)
            self.note("lose power")
        else:
            broker.log.crash(self.random)
            self.note("kill")

    def _forget_unless_on(self, members: Sequence[int]) -> None:
        """Forgets what no member has any more, after a power loss, or after an election for which as many dead brokers
        as the minimum still had sessions (docs/cluster.md)."""
        logs = [self.brokers[member].log for member in members]
        for offset, shown in list(self.shown.items()):
            if all(log.at(offset) != shown for log in logs):
                del self.shown[offset]

    def _restart(self) -> None:
        broker = self._broker()
        if broker.alive:
            if self.random.random() < 0.3:
                broker.log.flush()
            return
        broker.alive = True
        broker.start()
        broker.register()

    def _expire(self) -> None:
        """The session of a dead broker, or of one that is cut off, ends."""
        broker = self._broker()
        if not broker.alive or broker.cut_off:
            self.cluster.registrations.pop(broker.number, None)

    def _cut_off(self) -> None:
        """Cuts a broker off from its cluster; it still reaches the source."""
        broker = self._broker()
        broker.cut_off = not broker.cut_off
        self.note("cut off")
        if not broker.cut_off and broker.alive and broker.number not in self.cluster.registrations:
            broker.register()

    # -- clients -------------------------------------------------------------------------------------------------

    def _client_writes(self) -> None:
        broker = self._broker()
        leader = broker.partition.leader
        if not broker.alive or leader is None:
            return
        try:
            broker.log.append(self._next_value, leader.epoch)
        except FencedLeaderEpochError:
            return
        self.written.add(self._next_value)
        self._next_value -= 1
        if self.promoted_epoch is None:
            raise ViolationError("a client has written a mirror before its promotion")
        leader.advance_high_watermark()
        self.note("client's record")

    def _source_group_commits(self) -> None:
        log = self.source.log
        offset = self.random.randint(log.log_start_offset, log.high_watermark)
        self.source_offsets = {TP: GroupOffset(offset, log.epoch_at(offset - 1))}

    def _group_moves(self) -> None:
        """A consumer of the group at the target commits, and leaves."""
        end = max(broker.log.high_watermark for broker in self.brokers)
        own = GroupOffset(self.random.randint(0, end))
        if self.random.random() < 0.1:
            self.cluster.committed_offsets[TP] = own
            self.moved = None if own in self.cluster.copied.get(TP, ()) else own

    def sync_groups(self) -> None:
        """Copies the group's offset; a crash may come between the writes."""
        leading = [broker for broker in self.brokers if broker.mirror is not None and broker.alive]
        if not leading or not self.cluster.state.mirror:
            return
        end = self.random.choice(leading).log.high_watermark
        members = ("member",) if self.random.random() < 0.2 else ()
        plan = group_offsets.offsets_to_copy(
            self.source_offsets, self.cluster.committed_offsets, self.cluster.copied, {TP: end}, members
        )
        self.cluster.copied = dict(plan.copied)
        if self.random.random() < 0.1:
            return
        for tp, offset in plan.commits.items():
            if offset.offset > end:
                raise ViolationError(f"the group's offset {offset.offset} was copied, but the mirror ends at {end}")
            if members:
                raise ViolationError("an offset was copied though the group has members here")
            if self.moved is not None and self.cluster.committed_offsets[tp] == self.moved:
                raise ViolationError(f"the group has moved here with {self.moved}, and was set to {offset}")
            self.cluster.committed_offsets[tp] = offset
            self.note("group's offset copied")

    # -- invariants ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.deleted_at_source = max(self.deleted_at_source, self.source.log.log_start_offset)
        for broker in self.brokers:
            if broker.promotion is None:
                self._check_log(broker)
        for broker in self.brokers:
            if broker.alive and broker.partition.leader is not None and broker.partition.leader.epoch == self._epoch():
                self._check_shown(broker)

    def _epoch(self) -> int:
        return self.cluster.state.leader_epoch

    def _check_log(self, broker: Broker) -> None:
        before: Stored | None = None
        for record in broker.log.records:
            if is_own_marker(record.value):
                if not self._in_gap(record.offset):
                    raise ViolationError(f"{broker.log.name} has a marker of its own at {record.offset}, in no gap")
                if before is not None and before.value < 0 and not is_own_marker(before.value):
                    raise ViolationError(f"{broker.log.name} has a marker of its own behind a client's record")
                self.own_markers.add((record.offset, abs(record.value) % PRODUCERS))
            elif record.value < 0:
                if self.promoted_epoch is None or record.epoch < self.promoted_epoch:
                    raise ViolationError(f"{broker.log.name} has a client's record from before the promotion: {record}")
            else:
                key: Key = (self.mirrored_id, record.epoch, record.offset)
                if self.source.committed.get(key) != record.value:
                    raise ViolationError(f"{broker.log.name} has {record}, which the source has never committed there")
                if self.promoted_epoch is not None and record.epoch >= self.promoted_epoch:
                    raise ViolationError(f"{broker.log.name} has {record} of the source in an epoch of the target")
                if before is not None and before.value < 0 and not is_own_marker(before.value):
                    raise ViolationError(f"{broker.log.name} has {record} of the source behind a client's record")
            if before is not None and record.offset != before.offset + 1 and not self._is_gap(before, record):
                raise ViolationError(
                    f"{broker.log.name} lacks what lies between {before} and {record}: no gap is known"
                )
            before = record
        self._check_transactions(broker.log)
        for epoch, start in broker.log.entries:
            if any(record.epoch >= epoch for record in broker.log.between(0, start)):
                raise ViolationError(f"{broker.log.name} has epoch {epoch} from {start} on, and records of it below")
        found = [self.cluster.state.leader_epoch, *(state.leader_epoch for state in self.cluster.states[-2:])]
        if broker.log.records and broker.log.last_record_epoch > max(found):
            raise ViolationError(f"{broker.log.name} has an epoch above its partition's")

    def _check_transactions(self, log: MirrorLog) -> None:
        """The marker of a transaction that is open where a gap begins may lie in the gap: it is ended there,
        unless the gap is full of markers. A replica that has records in a gap may know a transaction alone, or have
        one of these records where its leader has the marker."""
        for gap in self.cluster.gaps:
            inside, behind = log.between(gap.start, gap.end), log.between(gap.end, log.log_end_offset)
            if all(is_own_marker(each.value) for each in behind) or not all(
                is_own_marker(each.value) for each in inside
            ):
                continue
            known = [
                first
                for producer, first in log.open_transactions().items()
                if not self._in_gap(first) and not self._replaces_marker(log, producer, first)
            ]
            first = min(known, default=gap.start)
            if first < gap.start and len(inside) < gap.end - gap.start:
                raise ViolationError(f"{log.name} has a transaction open from {first} on over {gap}")

    def _replaces_marker(self, log: MirrorLog, producer: int, first: int) -> bool:
        """Returns True if the log has a record of the source where a leader has ended the producer's transaction."""
        ends = (offset for offset, ended in self.own_markers if ended == producer and offset > first)
        return any((found := log.at(offset)) is not None and not is_own_marker(found.value) for offset in ends)

    def _is_gap(self, before: Stored, after: Stored) -> bool:
        """Returns True if stored gaps cover what is missing."""
        at = before.offset + 1
        for gap in sorted(self.cluster.gaps):
            if gap.start <= at < gap.end:
                at = gap.end
        return at >= after.offset

    def _check_shown(self, broker: Broker) -> None:
        """What consumers were shown stays as it is, unless it was set aside or lies below the log start; records of
        clients stay in any case."""
        log = broker.log
        for offset, shown in list(self.shown.items()):
            if offset < log.log_start_offset:
                if offset < max(each.log.began for each in self.brokers):
                    pass  # a replica that began later leads, or has led (docs/mirror.md, "What comes later")
                elif self.rules.follows_retention and offset >= self.source.log.log_start_offset and shown.value > 0:
                    if self.source.recreated == 0 and shown not in self.cuts:
                        raise ViolationError(f"the mirror has deleted {shown}, which the source still has")
                elif not self.rules.follows_retention and shown not in self.cuts:
                    raise ViolationError(f"the mirror has deleted {shown}, but its own retention has not")
                del self.shown[offset]
            elif offset < log.log_end_offset and log.at(offset) != shown:
                found = log.at(offset)
                own = found is None or is_own_marker(found.value) or is_own_marker(shown.value)
                if shown not in self.cuts and not (own and self._in_gap(offset)):
                    raise ViolationError(f"{log.name} shows {found} where {shown} was shown")
                del self.shown[offset]
            elif offset >= log.log_end_offset:
                if shown not in self.cuts:
                    raise ViolationError(f"{log.name} ends at {log.log_end_offset}, and {shown} was shown")
                del self.shown[offset]
        for record in log.between(log.log_start_offset, log.high_watermark):
            self.shown.setdefault(record.offset, record)
        isr = self.cluster.state.isr
        leader = broker.partition.leader
        if leader is not None and not leader.has_proposals and leader.state == self.cluster.state:
            for member in isr:
                other = self.brokers[member]
                sound = other.data_ids[0] == self.cluster.state.data_ids[member]
                lacking = log.between(other.log.log_end_offset, log.high_watermark)
                if sound and other.log.log_end_offset < log.log_start_offset:
                    lacking += other.log.between(0, other.log.high_watermark)  # it would begin anew
                if sound and not self.cuts.issuperset(lacking):
                    raise ViolationError(
                        f"{log.name} shows {log.log_start_offset} up to {log.high_watermark}, in-sync "
                        f"{other.log.name} ends at {other.log.log_end_offset}"
                    )

    # -- the end -------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Ends all faults, and lets everything settle; then the mirror must equal its source, or say why not."""
        self.source.away, self.healing = False, True
        self.source.commit()
        for broker in self.brokers:
            broker.cut_off = False
            if not broker.alive:
                broker.alive = True
                broker.start()
            if self.cluster.registrations.get(broker.number) != broker.own or broker.own is None:
                broker.register()
        steps = (
            self._read_state, self._fetch_from_source, self._take_from_source, self._fetch_from_leader,
            self._take_from_leader, self._change_isr, self.elect, self._raise_epoch, self._store_gap,
        )  # fmt: skip
        for round_ in range(20_000):
            self.random.choice(steps)()
            if round_ % 50 == 0:
                self.now_ms += 10
                self.check()
                if self._has_settled():
                    self.check()
                    return
        raise ViolationError(f"the target does not settle: {self._describe()}")

    def leader(self) -> Broker | None:
        number = self.cluster.state.leader
        return None if number == NO_LEADER else self.brokers[number]

    def _has_settled(self) -> bool:
        leader = self.leader()
        if leader is None or leader.seen != self.cluster.version or set(self.cluster.state.isr) != set(BROKERS):
            return False
        first = max(broker.log.log_start_offset for broker in self.brokers)  # each deletes by itself
        logs = [self._outside_gaps(broker.log, first) for broker in self.brokers]
        if any(log != logs[0] for log in logs):
            return False
        if leader.log.high_watermark != leader.log.log_end_offset:
            return False
        if not self.cluster.state.mirror:
            return True
        mirror, source = leader.mirror, self.source.log
        if mirror is None:
            return False
        if mirror.stopped:
            return self._may_stop(mirror.status, leader.log)
        first = max(first, source.log_start_offset)
        same = self._outside_gaps(leader.log, first) == [
            record for record in source.between(first, source.high_watermark) if not self._in_gap(record.offset)
        ]
        return (
            same
            and mirror.status is MirrorStatus.FOLLOWING
            and leader.log.log_start_offset <= max(source.log_start_offset, leader.log.log_end_offset)
        )

    def _outside_gaps(self, log: MirrorLog, first: int, end: int = _MOST) -> list[Stored]:
        """Returns the records that every replica has. In a gap one may have records that another lacks: a leader that
        was behind found a larger gap than the one before it."""
        return [record for record in log.between(first, end) if not self._in_gap(record.offset)]

    def _in_gap(self, offset: int) -> bool:
        return any(gap.start <= offset < gap.end for gap in self.cluster.gaps)

    def _may_stop(self, status: MirrorStatus, log: MirrorLog) -> bool:
        if status is MirrorStatus.SOURCE_REPLACED:
            is_empty = log.last_record_epoch < 0 and log.log_start_offset <= self.deleted_at_source
            # Without an epoch an unclean election looks like another log.
            return self.source.recreated > 0 or (is_empty and "unclean election at the source" in self.counts)
        return self.rules.stops_at_gap if status is MirrorStatus.GAP else self.rules.stops_at_divergence

    def _describe(self) -> str:
        leader = self.leader()
        mirror = None if leader is None else leader.mirror
        return (
            f"state {self.cluster.state}, "
            f"mirror {mirror and (mirror.status, mirror.wanted_epoch, mirror.gap, mirror.leader.epoch)}, source "
            f"{self.source.log.log_start_offset} {self.source.log.high_watermark} {self.source.epoch}, logs "
            f"{[(x.log.log_start_offset, x.log.log_end_offset, x.log.high_watermark) for x in self.brokers]}"
        )


def fall_back(world: World, seed: int) -> World:
    """Returns the world in which the former source mirrors its promoted target, by a new copy."""
    back = World(seed, world.steps // 2, _promoted_source(world, seed))
    back.cluster.gaps = list(world.cluster.gaps)  # the copy has the holes of its source
    return back


def _promoted_source(world: World, seed: int) -> Source:
    """Returns the promoted target as a source. A value of a client of the target becomes one of its source, and so does
    a marker of its mirror."""
    leader = world.leader()
    assert leader is not None
    assert not world.cluster.state.mirror
    source = Source(Random(seed))
    log, epoch = leader.log, world.cluster.state.leader_epoch
    log.records = [each._replace(value=_as_sources(each.value)) for each in log.records]
    source.continue_from(log, epoch, 2 * _MOST)
    return source


def _as_sources(value: int) -> int:
    return abs(value) if value > 0 or is_own_marker(value) else _MOST - value


def adopt(world: World, seed: int) -> World:
    """Returns the world in which the former source mirrors its promoted target without a new copy, as after `klamm
    mirror adopt`.

    Its leader has written and elected on. One of its replicas is in sync, one may have been cut off at any time: it has
    records of its own in an epoch that nobody else in its cluster has, but perhaps the promoted cluster.
    """
    former, epoch = world.source, world.promoted_epoch
    assert epoch is not None
    source = _promoted_source(world, seed)
    begin = PromotionStart(source.log.end_offset_for_epoch(epoch - 1)[1], epoch)
    back = World(seed, world.steps // 2, source)
    random = back.random
    theirs = [known for known, _ in source.log.entries if known >= epoch]
    for _ in range(random.randint(0, 2)):
        chosen = random.choice([former.epoch + 1, *theirs])
        if chosen > former.epoch:
            former.epoch = chosen
            former.log.lead(chosen)
            former.produce(random.randint(0, 3))
    own = former.log
    known = former.committed.items()
    source.committed |= {(source.topic_id, e, offset): value for (_, e, offset), value in known if e < epoch}
    for record in own.records:  # in epochs that only the former source has given: what is not common is found by them
        if record.epoch < epoch:
            source.committed.setdefault((source.topic_id, record.epoch, record.offset), record.value)
    back.cluster.gaps = list(world.cluster.gaps)
    back.deleted_at_source = begin.offset
    leader = random.choice(BROKERS)
    cut_off = random.choice([number for number in BROKERS if number != leader])
    for broker in back.brokers:
        first = own.log_start_offset if broker.number == cut_off else own.high_watermark
        broker.log = own.copy(f"broker {broker.number}")
        if broker.number != leader:
            broker.log.keep_below(random.randint(first, own.log_end_offset))
        if broker.number == cut_off:
            mine = [chosen for chosen in (*theirs, epoch + 1) if chosen > own.leader_epoch or chosen >= epoch]
            _write_alone(broker.log, own, random.choice(mine), random)
        broker.promotion = begin
        broker.start()
        broker.register()
    registered = back.brokers[leader].own
    assert registered is not None
    ids = {leader: f"{leader}-0"}
    before = PartitionState(leader, former.epoch, registered.epoch, (leader,), (), ids, 1)
    back.cluster.states[:] = [adoption.adopted(before, LINK, begin, 0)]
    for broker in back.brokers:
        broker.seen = -1
    return back


def _write_alone(log: MirrorLog, own: MirrorLog, epoch: int, random: Random) -> None:
    """Appends records of a leader that was cut off, in an epoch that no other record of its cluster has."""
    if epoch in [known for known, _ in own.entries] or epoch <= log.leader_epoch:
        return
    log.lead(epoch)
    for _ in range(random.randint(1, 4)):
        log.append(3 * _MOST + random.randint(0, _MOST), epoch)
    log.rest()
