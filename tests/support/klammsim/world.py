"""Virtual time, the network, requests to the coordination, and the invariants that hold at every step."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from uuid import UUID

from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.bootstrap import base_paths
from klamm.core.cluster.tree.nodes import ConfigNode
from klamm.core.cluster.tree.steps import (
    Acquire,
    Answer,
    AwaitChange,
    Children,
    Connect,
    Get,
    GetMany,
    Pause,
    Request,
    SetWatches,
    Steps,
    Transact,
    carry_out,
    run_steps,
)
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.errors import CoordinationError, KlammError
from klamm.core.interfaces.coordination import CoordinationUnavailableError, Create, Operation, Set
from klamm.core.records.offset_and_epoch import OffsetAndEpoch
from klamm.core.replication.leader import ReplicationSettings
from klamm.core.replication.partition_state import PartitionState

from .coordination import SimCoordination, SimTree, TreeCopy
from .crashing_log import CrashingLog, OnCommitted
from .memory_log import MemoryLog
from .scene import (
    ASSIGNMENT,
    REPLICAS,
    STATE_PATH,
    TICKS_PER_S,
    TOPIC_PATH,
    TP,
    decode_assignment,
    encode_assignment,
)
from .violation import ViolationError

if TYPE_CHECKING:
    from .broker import SimBroker

T = TypeVar("T")
SLOW: Final = 60.0
"""Ticks until a slow write is carried out."""
_YEAR_2026_MS: Final = 1_767_225_600_000
_CLUSTER_ID: Final = UUID(int=0)
_READS: Final = frozenset((Get, GetMany, Children))


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


class SimMutex:
    """A `Mutex` of one process. `resume` of who waits is called in an event of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held = False
        self._waiting: deque[Callable[[], None]] = deque()

    def acquire(self) -> bool:
        """Returns False if another sequence holds it: then `wait`."""
        free, self._held = not self._held, True
        return free

    def wait(self, resume: Callable[[], None]) -> None:
        self._waiting.append(resume)

    def release(self) -> None:
        if self._waiting:
            self._world.at(0, self._waiting.popleft())
        else:
            self._held = False


class _Conversation(Generic[T]):
    """The steps of one broker, in order. See `World.converse`."""

    __slots__ = ("_broker", "_coordination", "_done", "_failed", "_process", "_steps", "_world")

    def __init__(
        self,
        world: World,
        broker: SimBroker,
        steps: Steps[T],
        done: Callable[[T], None],
        failed: Callable[[KlammError], None],
    ) -> None:
        self._world = world
        self._broker = broker
        self._process = broker.process
        self._coordination = broker.coordination
        self._steps = steps
        self._done = done
        self._failed = failed

    def proceed(self, answer: Answer = None, error: CoordinationError | None = None) -> None:
        """Takes the answer to the last request, and sends requests until one is to be carried out at another time."""
        world, steps = self._world, self._steps
        chance, interleaved = world.chance, world.interleaved
        while True:
            try:
                request = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                self._done(end.value)
                return
            except ViolationError:
                raise
            except KlammError as failure:
                self._failed(failure)
                return
            answer = error = None
            kind = type(request)
            if kind in _READS:
                if chance() < interleaved:
                    world.at(world.delay(), partial(self._execute, request, world.restores))
                    return
                answer, error = self._read(request)
            elif isinstance(request, Acquire):
                mutex: SimMutex = request.mutex  # type: ignore[assignment]
                if not mutex.acquire():
                    mutex.wait(self._later(0.0))
                    return
            elif isinstance(request, Pause):
                world.at(request.seconds * TICKS_PER_S, self._later(0.0))
                return
            elif isinstance(request, AwaitChange):
                self._await_change(request.path, world.now + request.seconds * TICKS_PER_S)
                return
            elif isinstance(request, Connect):
                answer = world.is_reachable(request.broker.id)
            elif isinstance(request, SetWatches):
                answer, error = self._set_watches(request.paths)
            elif isinstance(request, Transact) or chance() < interleaved:
                world.at(world.delay(), partial(self._execute, request, world.restores))
                return
            else:
                answer, error = self._attempt(request)

    def _later(self, delay: float) -> Callable[[], None]:
        return partial(self._world.at_process, delay, self._broker, self._process, self.proceed)

    def _await_change(self, path: str, deadline: float) -> None:
        world = self._world
        if world.now >= deadline or (not self._broker.cut_off and world.tree.find(path) is None):
            self.proceed()
        else:
            again = partial(self._await_change, path, deadline)
            world.at_process(5.0, self._broker, self._process, again)

    def _set_watches(self, wanted: Sequence[str]) -> tuple[Answer, CoordinationError | None]:
        try:
            self._broker.set_watches(wanted)
        except CoordinationError as error:
            return None, error
        return None, None

    def _read(self, request: Request) -> tuple[Answer, CoordinationError | None]:
        """Carries out a read. Brokers read the same after each change, and so from `World.answers`."""
        world = self._world
        if self._broker.cut_off or not self._coordination.is_live:
            return self._attempt(request)
        if world.answered != world.tree.changes:
            world.answers, world.answered = {}, world.tree.changes
        key = (type(request), request)
        answer = world.answers.get(key)
        if answer is None:
            answer, error = self._attempt(request)
            if error is not None:
                return None, error
            world.answers[key] = answer
        return answer, None

    def _attempt(self, request: Request) -> tuple[Answer, CoordinationError | None]:
        if self._broker.cut_off:
            return None, CoordinationUnavailableError("cut off from the coordination")
        try:
            return carry_out(self._coordination, request), None
        except CoordinationError as error:
            return None, error

    def _execute(self, request: Request, restores: int) -> None:
        """Carries out a request that was sent after so many restores. A server that was stopped has no requests of
        processes that have ended; one that runs on may send what it decided before."""
        broker = self._broker
        if restores != self._world.restores and not (broker.up and broker.process == self._process):
            return
        fate = self._world.fate(self._broker, request)
        if fate == "slow":
            self._world.at(SLOW, partial(self._carry_out_as, request, "answered"))
        else:
            self._carry_out_as(request, fate)

    def _carry_out_as(self, request: Request, fate: str) -> None:
        world, broker = self._world, self._broker
        answer, error = self._attempt(request) if fate in ("answered", "applied") else (None, None)
        if fate in ("late", "held") and not broker.cut_off:
            late = partial(self._attempt_late, request, self._coordination.session_id, world.restores)
            if fate == "late":
                world.at(world.random.random() * 40, late)
            else:
                world.held_writes.append(late)
        if fate != "answered":
            answer, error = None, CoordinationUnavailableError("planted: no answer")
        world.at_process(world.delay(), broker, self._process, partial(self.proceed, answer, error))

    def _attempt_late(self, request: Request, session_id: int, restores: int) -> None:
        """Carries out a write of that session; a server that was stopped has no requests of before."""
        world = self._world
        if restores == world.restores and world.tree.is_live(session_id) and isinstance(request, Transact):
            with suppress(CoordinationError):
                world.tree.apply(request.operations, session_id)


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
        self.restored_at = 0.0
        self._ids = 0
        self.random = Random(seed)
        self.chance = self.random.random
        self.now = 0.0
        self.conditions = conditions
        self.settings = ReplicationSettings(min_insync_replicas, conditions.max_lag)
        self.defaults = TopicConfig(min_insync_replicas=min_insync_replicas)
        self.counts: Counter[str] = Counter()
        """How often each event and fault has occurred."""
        self.cuts: set[tuple[int, int]] = set()
        self.committed: list[int] = []
        """Every record that was ever below a leader's high watermark, by offset."""
        self.acknowledged: dict[int, int] = {}
        """Offsets by value."""
        self.named: dict[int, tuple[OffsetAndEpoch, int | None]] = {}
        """The end that each conditional append names, by its value, and the record before that end."""
        self.after: dict[OffsetAndEpoch, int] = {}
        """The value that was acknowledged as the one after an end."""
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
        self.answers: dict[tuple[type, Request], Answer] = {}
        """To reads of the coordination since the change numbered `answered`."""
        self.answered = -1
        self.tree = SimTree(lambda: _YEAR_2026_MS + int(self.now), self._written)
        self.brokers = [SimBroker(self, number) for number in range(len(REPLICAS) + reassigning)]
        self._make_paths()

    def _make_paths(self) -> None:
        """Creates the paths that a first start and a CreateTopics would have created."""
        tree = self.tree
        tree.restore(_new_cluster())
        ids = {replica: self.brokers[replica].identity.data_ids[0] for replica in REPLICAS}
        state = PartitionState(-1, 0, -1, REPLICAS, (), ids, 0)
        tree.make_parents(STATE_PATH, 0)
        config = Create(paths.topic_config(TP.topic), ConfigNode().encode())
        topic = Set(TOPIC_PATH, encode_assignment(ASSIGNMENT))
        tree.apply([Create(STATE_PATH, state.encode()), topic, config], 0)

    # -- backups -------------------------------------------------------------------------------------------------

    def version(self) -> int:
        found = self.tree.find(paths.METADATA_VERSION)
        assert found is not None
        return found[1].version

    def clock(self) -> float:
        """Seconds since 1970: a tick is a second, so that leader epochs, which follow the clock, tell the ticks."""
        return _YEAR_2026_MS / 1000 + self.now

    def monotonic(self) -> float:
        """Seconds, of `TICKS_PER_S` each."""
        return self.now / TICKS_PER_S

    def new_id(self) -> UUID:
        self._ids += 1
        return UUID(int=self._ids)

    def mutex(self) -> SimMutex:
        return SimMutex(self)

    def is_reachable(self, broker_id: int) -> bool:
        """Returns False if the broker refuses connections: its process has ended, or its backlog is full."""
        broker = self.brokers[broker_id]
        return broker.up and not broker.refuses

    def restore(self, copy: TreeCopy) -> list[int]:
        """Restores the coordination; returns the sessions whose owners are gone. What holds of a state is checked again
        from the next one on.
        """
        self.state = None
        self.restores += 1
        self.restored_at = self.now
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
            counts["events"] += 1
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
        done: Callable[[T], None] = lambda _: None,
        failed: Callable[[KlammError], None] = lambda _: None,
    ) -> None:
        """Carries out the steps, each write at a time of its own, and of the reads some. `failed` is called with the
        error that ends the steps."""
        conversation = _Conversation(self, broker, steps, done, failed)
        self.at_process(self.delay(), broker, broker.process, conversation.proceed)

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
                self.counts["elections"] += new.leader >= 0
                current = self.tree.find(paths.CONTROLLER_EPOCH)
                if current is None or int(current[0]) != new.controller_epoch:
                    self.violated(f"a deposed controller writes {new}, the epoch is {current}")
            self.counts["ISR changes"] += new.isr != old.isr
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

    def stored_after(
        self, broker: SimBroker, value: int, offset: int, after: OffsetAndEpoch, before: int | None
    ) -> None:
        """A leader stores a conditional append, not committed yet."""
        self.named[value] = after, before
        if offset != after.offset:
            self.violated(f"broker {broker.id} stores {value} at {offset}, not at {after}")
        if before is not None and broker.log.value_at(offset - 1) != before:
            self.violated(f"broker {broker.id} stores {value} after {broker.log.value_at(offset - 1)}, not {before}")

    def acknowledge(self, broker: SimBroker, value: int, offset: int) -> None:
        if self.acknowledged.setdefault(value, offset) != offset:
            self.violated(f"{value} acknowledged at {self.acknowledged[value]} and {offset}")
        if offset >= len(self.committed) or self.committed[offset] != value:
            self.violated(f"broker {broker.id} acknowledges {value} at {offset}, which is not committed")
        holders = sum(other.log.value_at(offset) == value or offset < other.log.log_start_offset or other.tainted
                      for other in self.brokers)  # fmt: skip
        if holders < self.settings.min_insync_replicas:
            self.violated(f"{value} acknowledged at {offset}, but only {holders} replicas have it")
        if value in self.named:
            after, before = self.named[value]
            if offset != after.offset or (before is not None and self.committed[offset - 1] != before):
                self.violated(f"{value} acknowledged at {offset}, not at {after} behind {before}")
            if self.after.setdefault(after, value) != value:
                self.violated(f"{value} and {self.after[after]} acknowledged after the same end, {after}")
            self.counts["conditional"] = len(self.after)
        self.counts["acknowledged"] = len(self.acknowledged)

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

    def has_only_new_logs(self) -> bool:
        """True if all replicas are back, nobody leads, and no member of ISR and ELR has a record, since all have lost
        their power: where another replica knows a committed record, an administrator decides (R7)."""
        state = self.state
        return (
            "lose all power" in self.counts
            and state is not None
            and state.leader < 0
            and all(broker.up and broker.own is not None for broker in self.replicas())
            and all(
                self.brokers[member].log.log_end_offset == self.brokers[member].log.log_start_offset
                and self.brokers[member].data_id_at_next_start() != state.data_ids[member]
                for member in state.members
            )
            and any(broker.log.high_watermark > broker.log.log_start_offset for broker in self.replicas())
        )

    def recall_committed(self) -> None:
        """Counts as committed what a replica outside ISR and ELR knows to be, which the members had lost."""
        log = max((broker.log for broker in self.replicas()), key=lambda log: log.high_watermark)
        for offset in range(len(self.committed), log.high_watermark):
            value = log.value_at(offset)
            assert value is not None
            self.committed.append(value)

    def elect_uncleanly(self) -> None:
        """Asks the controller for an unclean election, as an administrator does."""
        for broker in self.brokers:
            if broker.up and broker.node.is_controller:
                self.converse(broker, broker.node.changing(broker.node.tasks.elect([TP], unclean=True)))

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


@lru_cache(maxsize=1)
def _new_cluster() -> TreeCopy:
    """Returns the coordination after the first start of a first broker."""
    tree = SimTree(lambda: _YEAR_2026_MS)
    admin = SimCoordination(tree)
    admin.start()
    run_steps(admin, base_paths(lambda: _CLUSTER_ID))
    admin.close()
    return tree.copy()


def _difference(log: CrashingLog, committed: list[int]) -> str:
    for offset in range(log.log_start_offset, len(committed)):
        if log.value_at(offset) != committed[offset]:
            return f"at {offset} it has {log.value_at(offset)}, but committed is {committed[offset]}"
    return "none"
