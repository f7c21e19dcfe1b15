"""Virtual time, the network, requests to the coordination, and the invariants that hold at every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from klamm.core.cluster.changes import CHANGES, INCARNATIONS, RING_SIZE
from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.steps import Answer, Request, Steps, Transact, carry_out
from klamm.core.errors import CoordinationError
from klamm.core.interfaces.coordination import (
    CoordinationUnavailableError,
    Create,
    Operation,
    SessionExpiredError,
    Set,
)
from klamm.core.replication.leader import ReplicationSettings
from klamm.core.replication.partition_state import PartitionState

from .coordination import SimTree, TreeCopy
from .crashing_log import CrashingLog, OnCommitted
from .memory_log import MemoryLog
from .scene import ASSIGNMENT, RECOVERED, REPLICAS, STATE_PATH, TOPIC_PATH, TP, decode_assignment, encode_assignment
from .violation import ViolationError

if TYPE_CHECKING:
    from .broker import SimBroker

T = TypeVar("T")
SLOW: Final = 60.0
"""Ticks until a slow write is carried out."""
_YEAR_2026_MS: Final = 1_767_225_600_000
_RING: Final = [Create(f"{CHANGES}/{number}", b"{}") for number in range(RING_SIZE)]


@dataclass(frozen=True, slots=True)
class Conditions:
    """The probabilities and delays of faults. Times are in ticks of about a millisecond."""

    longest_delay: float = 1.0
    dropped: float = 0.0
    """Probability that a message between brokers is lost."""
    reset: float = 0.0
    """Probability that a message travels on a connection of its own, so that others may overtake it."""
    unanswered: float = 0.0
    """Probability that a write to the coordination is not answered: it is carried out at once, late or never."""
    interleaved: float = 0.0
    """Probability that other processes act between two reads of one sequence of requests."""
    max_lag: float = 30.0
    """`replica.lag.time.max.ms`."""


QUIET: Final = Conditions()
Event = tuple[float, int, "SimBroker | None", int, Callable[[], None]]
"""Time, number, and what then happens. With a broker it happens in that process of the broker: never if the process has
ended, later if it is paused."""


@dataclass(slots=True)
class Counts:
    events: int = 0
    acknowledged: int = 0
    elections: int = 0
    isr_changes: int = 0
    refused_writes: int = 0
    truncations: int = 0
    faults: dict[str, int] = field(default_factory=dict)

    def struck(self, fault: str, count: int = 1) -> None:
        self.faults[fault] = self.faults.get(fault, 0) + count


class _Conversation(Generic[T]):
    """The requests of one broker to the coordination, in order. See `World.converse`."""

    __slots__ = ("_broker", "_coordination", "_done", "_failed", "_process", "_steps", "_world")

    def __init__(
        self, world: World, broker: SimBroker, steps: Steps[T], done: Callable[[T], None], failed: Callable[[], None]
    ) -> None:
        self._world = world
        self._broker = broker
        self._process = broker.process
        self._coordination = broker.coordination
        self._steps = steps
        self._done = done
        self._failed = failed

    def begin(self, known: Callable[[], tuple[T, int] | None]) -> None:
        """Does as `proceed` does, without the requests if their result is known. See `World.converse`."""
        found = known()
        if found is None:
            self.proceed()
            return
        world, (result, reads) = self._world, found
        chance, interleaved = world.chance, world.interleaved
        for number in range(reads):
            if chance() < interleaved:
                self._read_until(number)
                return
        self._done(result)

    def _read_until(self, number: int) -> None:
        """Makes so many requests at once; the next is carried out after others have acted."""
        request = self._steps.send(None)
        for _ in range(number):
            answer, error = self._attempt(request)
            request = self._steps.send(answer) if error is None else self._steps.throw(error)
        self._world.at(self._world.delay(), partial(self._execute, request))

    def proceed(self, answer: Answer = None, error: CoordinationError | None = None) -> None:
        """Takes the answer to the last request, and sends requests until one is to be carried out at another time."""
        world, broker, coordination, steps = self._world, self._broker, self._coordination, self._steps
        chance, interleaved = world.chance, world.interleaved
        while True:
            try:
                request = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                self._done(end.value)
                return
            except SessionExpiredError:
                self._failed()
                broker.session_over()
                return
            except CoordinationError:
                self._failed()
                return
            if isinstance(request, Transact) or chance() < interleaved:
                world.at(world.delay(), partial(self._execute, request))
                return
            if broker.cut_off:
                answer, error = self._attempt(request)
                continue
            try:
                answer, error = carry_out(coordination, request), None
            except CoordinationError as raised:
                answer, error = None, raised

    def _attempt(self, request: Request) -> tuple[Answer, CoordinationError | None]:
        if self._broker.cut_off:
            return None, CoordinationUnavailableError("cut off from the coordination")
        try:
            return carry_out(self._coordination, request), None
        except CoordinationError as error:
            return None, error

    def _execute(self, request: Request) -> None:
        fate = self._world.fate(self._broker, request)
        if fate == "slow":
            self._world.at(SLOW, partial(self._carry_out_as, request, "answered"))
        else:
            self._carry_out_as(request, fate)

    def _carry_out_as(self, request: Request, fate: str) -> None:
        world, broker = self._world, self._broker
        answer, error = self._attempt(request) if fate in ("answered", "applied") else (None, None)
        if fate == "late" and not broker.cut_off:
            world.at(world.random.random() * 40, partial(self._attempt_late, request, world.restores))
        elif fate == "held" and not broker.cut_off:
            world.held_writes.append(partial(self._attempt_late, request, world.restores))
        if fate != "answered":
            answer, error = None, CoordinationUnavailableError("planted: no answer")
        world.at_process(world.delay(), broker, self._process, partial(self.proceed, answer, error))

    def _attempt_late(self, request: Request, restores: int) -> None:
        if restores == self._world.restores:  # a server that was stopped has no requests of before
            self._attempt(request)


class World:
    """One partition on three brokers; with a fourth if it is reassigned."""

    def __init__(
        self,
        seed: int,
        min_insync_replicas: int,
        conditions: Conditions,
        make_log: Callable[[str, OnCommitted], CrashingLog] = MemoryLog,
        *,
        restorable: bool = False,
        reassigning: bool = False,
    ) -> None:
        """`make_log` makes a broker's log from its name. `restorable`: the coordination may be restored from an older
        state, and brokers do what R13 says; these are further requests, so that a seed gives another schedule.
        `reassigning`: the partition may be reassigned, and brokers read which replicas it has.
        """
        from .broker import SimBroker

        self.make_log = make_log
        self.restorable = restorable
        self.reassigning = reassigning
        self.assignment = ASSIGNMENT
        """As it is stored."""
        self.restores = 0
        self.random = Random(seed)
        self.chance = self.random.random
        self.now = 0.0
        self.conditions = conditions
        self.settings = ReplicationSettings(min_insync_replicas, conditions.max_lag)
        self.counts = Counts()
        self.cuts: set[tuple[int, int]] = set()
        self.committed: list[int] = []
        """Every record that was ever below a leader's high watermark, by offset."""
        self.acknowledged: dict[int, int] = {}
        """Offsets by value."""
        self.held: list[tuple[str, int, int, Callable[[], None]]] = []
        """Messages taken out of the network: kind, sender, receiver, and how to deliver it."""
        self.hold: Callable[[str, int, int], bool] | None = None
        """Returns True for a message that is to be taken out of the network."""
        self.write_fate: Callable[[int, Sequence[Operation]], str | None] | None = None
        """The fate of a broker's write: answered, slow (and answered), lost, applied (and not answered), late or
        held (and not answered); None: by chance."""
        self.held_writes: list[Callable[[], None]] = []
        self.state: PartitionState | None = None
        self._heap: list[Event] = []
        self._scheduled = 0
        self._arrivals: dict[tuple[int, int], float] = {}
        self._leaders: dict[int, tuple[int, int]] = {}
        self.tree = SimTree(lambda: _YEAR_2026_MS + int(self.now), self._written)
        self.brokers = [SimBroker(self, number) for number in range(len(REPLICAS) + reassigning)]
        self._make_paths()

    def _make_paths(self) -> None:
        """Creates the paths that a first start and a CreateTopics would have created."""
        tree = self.tree
        for path in (paths.BROKER_IDS, INCARNATIONS, CHANGES, RECOVERED, paths.partitions(TP.topic)):
            tree.make_parents(f"{path}/x", 0)
        tree.apply([*_RING, Create(paths.METADATA_VERSION), Create(paths.CONTROLLER_EPOCH, b"0")], 0)
        ids = {replica: self.brokers[replica].identity.data_ids[0] for replica in REPLICAS}
        state = PartitionState(-1, 0, -1, REPLICAS, (), ids, 0)
        tree.make_parents(STATE_PATH, 0)
        tree.apply([Create(STATE_PATH, state.encode()), Set(TOPIC_PATH, encode_assignment(ASSIGNMENT))], 0)

    # -- backups -------------------------------------------------------------------------------------------------

    @property
    def epoch_floor(self) -> int:
        """The least leader epoch that begins now: as in production it follows the clock, where it matters."""
        return int(self.now) if self.restorable else 0

    def version(self) -> int:
        found = self.tree.find(paths.METADATA_VERSION)
        assert found is not None
        return found[1].version

    def restore(self, copy: TreeCopy) -> list[int]:
        """Restores the coordination; returns the sessions whose owners are gone. What holds of a state is checked again
        from the next one on.
        """
        self.state = None
        self.restores += 1
        return self.tree.restore(copy)

    # -- time ----------------------------------------------------------------------------------------------------

    def at(self, delay: float, action: Callable[[], None]) -> None:
        self._scheduled += 1
        heappush(self._heap, (self.now + delay, self._scheduled, None, 0, action))

    def at_process(self, delay: float, broker: SimBroker, process: int, action: Callable[[], None]) -> None:
        """Does as `at` does, in a process of the broker: see `SimBroker.act`."""
        self._scheduled += 1
        heappush(self._heap, (self.now + delay, self._scheduled, broker, process, action))

    def every_tick(self, count: int, action: Callable[[], None]) -> None:
        """Runs the action at once and then each tick, `count` times in all.

        All numbers are taken now, and so the order is that of events which were all scheduled now. But an event enters
        the heap only when the one before it happens: a small heap is a fast one, and no later event could come earlier.
        """
        first, begun = self._scheduled + 1, self.now
        self._scheduled += count

        heap, done = self._heap, 0

        def run() -> None:
            nonlocal done
            done += 1
            if done < count:
                heappush(heap, (begun + done, first + done, None, 0, run))
            action()

        if count:
            heappush(heap, (begun, first, None, 0, run))

    def run_until(self, end: float, enough: Callable[[], bool] | None = None) -> None:
        """Runs until that time, until no event is left, or until `enough` returns True."""
        heap, counts = self._heap, self.counts
        while heap and heap[0][0] <= end:
            self.now, _, broker, process, action = heappop(heap)
            counts.events += 1
            if broker is None:
                action()
            elif broker.up and broker.process == process:  # as `SimBroker.act`, for every second event
                if broker.paused:
                    broker.act(process, action)
                else:
                    action()
            if enough is not None and enough():
                return
        self.now = max(self.now, end)

    def run(self, duration: float) -> None:
        self.run_until(self.now + duration)

    def delay(self) -> float:
        longest = self._longest_delay
        if longest > 1:
            return self.chance() * longest * (10 if self.chance() < 0.05 else 1)
        return self.chance() * longest

    @property
    def conditions(self) -> Conditions:
        return self._conditions

    @conditions.setter
    def conditions(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self._longest_delay = conditions.longest_delay
        self.fetch_timeout = 20 + 2.5 * conditions.longest_delay
        self.interleaved = conditions.interleaved

    # -- network -------------------------------------------------------------------------------------------------

    def send(self, kind: str, sender: int, receiver: int, handle: Callable[[], None]) -> None:
        """Sends a message between two processes; it is lost if either process ends, by a cut, or by chance."""
        target = self.brokers[receiver]
        if self.hold is not None and self.hold(kind, sender, receiver):
            self.held.append((kind, sender, receiver, partial(target.act, target.process, handle)))
            return
        if (sender, receiver) in self.cuts or self.chance() < self._conditions.dropped:
            return
        arrival = self.now + self.delay()
        if self.chance() >= self._conditions.reset:
            arrival = max(arrival, self._arrivals.get((sender, receiver), 0.0))
            self._arrivals[sender, receiver] = arrival
        self.at_process(arrival - self.now, target, target.process, handle)

    # -- coordination --------------------------------------------------------------------------------------------

    def converse(
        self,
        broker: SimBroker,
        steps: Steps[T],
        done: Callable[[T], None],
        failed: Callable[[], None],
        known: Callable[[], tuple[T, int] | None] | None = None,
    ) -> None:
        """Carries out the steps, each request at a time of its own. `failed` is called if the coordination raises an
        error that the steps do not handle.

        `known` is called when the first request is due: it returns the result, and the number of requests, of steps
        that only read, that cannot fail, and of which every answer is known as long as no other process acts. The steps
        are carried out only if one does, between two of these requests; the chances are the same in either case.
        """
        conversation = _Conversation(self, broker, steps, done, failed)
        first = conversation.proceed if known is None else partial(conversation.begin, known)
        self.at_process(self.delay(), broker, broker.process, first)

    def fate(self, broker: SimBroker, request: Request) -> str:
        if not isinstance(request, Transact):
            return "answered"
        if self.write_fate is not None and (chosen := self.write_fate(broker.id, request.operations)) is not None:
            return chosen
        if self.random.random() >= self.conditions.unanswered:
            return "answered"
        return self.random.choice(("lost", "applied", "late"))

    # -- invariants ----------------------------------------------------------------------------------------------

    def _written(self, operations: Sequence[Operation]) -> None:
        """Checks each written state: epochs grow, and its members have every committed record."""
        for operation in operations:
            if isinstance(operation, Set) and operation.path == TOPIC_PATH:
                self.assignment = decode_assignment(operation.data)
        for operation in operations:
            if isinstance(operation, Create | Set) and operation.path == STATE_PATH:
                self._check_state(PartitionState.decode(STATE_PATH, operation.data))

    def _check_state(self, new: PartitionState) -> None:
        old, self.state = self.state, new
        if not new.isr or set(new.isr) & set(new.elr) or set(new.data_ids) != set(new.members):
            self.violated(f"the state is inconsistent: {new}")
        if not set(new.members) <= set(self.assignment.replicas):
            self.violated(f"a member of {new} is no replica: {self.assignment}")
        if old is not None:
            if new.leader_epoch < old.leader_epoch or new.controller_epoch < old.controller_epoch:
                self.violated(f"an epoch falls: {new} after {old}")
            if (new.leader, new.leader_broker_epoch) != (old.leader, old.leader_broker_epoch):
                if new.leader_epoch == old.leader_epoch:
                    self.violated(f"a second leader in the same epoch: {new} after {old}")
                self.counts.elections += new.leader >= 0
                current = self.tree.find(paths.CONTROLLER_EPOCH)
                if current is None or int(current[0]) != new.controller_epoch:
                    self.violated(f"a deposed controller writes {new}, the epoch is {current}")
            self.counts.isr_changes += new.isr != old.isr
        self.check_members()

    def check_members(self) -> None:
        """Checks what the proof rests on: every member of the stored ISR and ELR whose data id is the one in the state
        has every committed record.
        """
        if self.state is None:
            return
        for member in self.state.members:
            broker = self.brokers[member]
            if broker.data_id_at_next_start() == self.state.data_ids[member]:
                self.check_has_committed(broker, "a member")

    def check_has_committed(self, broker: SimBroker, what: str) -> None:
        log = broker.log
        start, end = log.log_start_offset, len(self.committed)
        if start < end and log.values[: end - start] != self.committed[start:]:
            difference = _difference(log, self.committed)
            self.violated(f"broker {broker.id}, {what} in {self.state}, lacks committed records: {difference}")

    def on_committed(self, broker: SimBroker, first: int, end: int) -> None:
        """A replica's watermark passes records: a leader's commits them, a follower's makes committed records
        visible.
        """
        log, leads = broker.log, broker.partition is not None and broker.partition.leader is not None
        for offset in range(first, end):
            value = log.value_at(offset)
            assert value is not None
            if offset < len(self.committed):
                if self.committed[offset] != value:
                    self.violated(
                        f"broker {broker.id} shows {value} at {offset}, but {self.committed[offset]} was committed"
                    )
            elif leads and offset == len(self.committed):
                self.committed.append(value)
            else:
                self.violated(f"broker {broker.id} shows {value} at {offset}, which is not committed")
        if leads:
            self.check_members()

    def on_leading(self, broker: SimBroker, leader_epoch: int) -> None:
        known = self._leaders.setdefault(leader_epoch, (broker.id, broker.process))
        if known != (broker.id, broker.process):
            self.violated(f"two leaders of epoch {leader_epoch}: {known} and {(broker.id, broker.process)}")
        if self.state is not None and self.state.leader_epoch == leader_epoch:
            self.check_has_committed(broker, "which becomes leader")

    def acknowledge(self, broker: SimBroker, value: int, offset: int) -> None:
        if self.acknowledged.setdefault(value, offset) != offset:
            self.violated(f"{value} acknowledged at {self.acknowledged[value]} and {offset}")
        if offset >= len(self.committed) or self.committed[offset] != value:
            self.violated(f"broker {broker.id} acknowledges {value} at {offset}, which is not committed")
        holders = sum(other.log.value_at(offset) == value or offset < other.log.log_start_offset or other.tainted
                      for other in self.brokers)  # fmt: skip
        if holders < self.settings.min_insync_replicas:
            self.violated(f"{value} acknowledged at {offset}, but only {holders} replicas have it")
        self.counts.acknowledged = len(self.acknowledged)

    def violated(self, what: str) -> None:
        raise ViolationError(f"at {self.now:.1f}: {what}")

    # -- the end -------------------------------------------------------------------------------------------------

    def is_healthy(self) -> bool:
        """True if every replica is in sync with a leader and has the same log, and none is to be added or removed."""
        state = self.state
        if state is None or state.leader < 0 or len(state.isr) != len(self.assignment.replicas):
            return False
        if self.assignment.is_reassigning:
            return False
        leader = self.brokers[state.leader]
        if not leader.up or leader.partition is None or leader.partition.leader is None:
            return False
        return all(
            broker.up and broker.log.log_end_offset == broker.log.high_watermark == leader.log.log_end_offset
            for broker in self.replicas()
        )

    def replicas(self) -> list[SimBroker]:
        """Returns the brokers that have the partition."""
        return [self.brokers[replica] for replica in self.assignment.replicas]

    def check_end(self) -> None:
        """Checks the state after healing: full ISR, identical logs, each value once, every acknowledged record at its
        offset.
        """
        if not self.is_healthy():
            self.violated(f"not healthy at the end: {self.state} {[str(broker) for broker in self.brokers]}")
        assert self.state is not None
        leader_id = self.state.leader
        leader = self.brokers[leader_id].log
        for broker in self.replicas():
            first = max(leader.log_start_offset, broker.log.log_start_offset)
            if leader.records_from(first) != broker.log.records_from(first):
                self.violated(f"the logs of brokers {leader_id} and {broker.id} differ")
        if len(set(leader.values)) != len(leader.values):
            self.violated("a value is in the log twice")
        for value, offset in self.acknowledged.items():
            if self.committed[offset] != value or (
                offset >= leader.log_start_offset and leader.value_at(offset) != value
            ):
                self.violated(f"{value}, acknowledged at {offset}, is lost")


def _difference(log: CrashingLog, committed: list[int]) -> str:
    for offset in range(log.log_start_offset, len(committed)):
        if log.value_at(offset) != committed[offset]:
            return f"at {offset} it has {log.value_at(offset)}, but committed is {committed[offset]}"
    return "none"
