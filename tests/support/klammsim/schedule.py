"""Random schedules: a swarm configuration, a workload and faults, all from one seed; at the end all faults are
healed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final

from .broker import SimBroker, Target
from .coordination import TreeCopy
from .crashing_log import CrashingLog, OnCommitted
from .disk_log import disk_logs
from .memory_log import MemoryLog
from .violation import LateBrokerError
from .world import QUIET, Conditions, World

STEPS: Final = 700
SEEDS_PER_DISK_LOG: Final = 50
SEEDS_PER_FULL_DISKS: Final = 5
SEEDS_PER_RESTORE: Final = 10
SEEDS_PER_REASSIGNMENT: Final = 10
SEEDS_PER_CONDITIONAL: Final = 7
SEEDS_PER_POWER_LOSSES: Final = 6
HEALING: Final = 1_500.0
_SESSION_ENDS: Final = (3.0, 60.0, 120.0)


@dataclass(frozen=True, slots=True)
class Restore:
    """The coordination gets the state again that it had at step `copied`, at step `restored` or as soon as it may.
    `running`: while brokers run; else all are killed before, and start again."""

    copied: int
    restored: int
    running: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The choices of one seed before the first step. `skipped`: numbers of faults that are left out."""

    seed: int
    steps: int
    min_insync_replicas: int
    faults: float
    """Probability of a fault at each step."""
    conditions: Conditions
    skipped: frozenset[int] = frozenset()
    restore: Restore | None = None


def plan_of(seed: int, steps: int = STEPS, skipped: frozenset[int] = frozenset()) -> Plan:
    random = Random(f"plan {seed}")
    return Plan(
        seed,
        steps,
        2 if seed % 3 else 1,
        random.choice((0.005, 0.015, 0.04)),
        Conditions(
            longest_delay=random.choice((1.5, 4.0, 15.0)),
            dropped=random.choice((0.0, 0.02, 0.1)),
            reset=random.choice((0.0, 0.1, 1.0)),
            unanswered=random.choice((0.0, 0.05, 0.3)),
            interleaved=random.choice((0.0, 0.05, 0.2)),
            max_lag=random.choice((30.0, 30.0, 100.0)),
        ),
        skipped,
        _restore_of(seed, steps) if seed % SEEDS_PER_RESTORE == SEEDS_PER_RESTORE - 3 else None,
    )


def _restore_of(seed: int, steps: int) -> Restore:
    random = Random(f"restore {seed}")
    copied = random.randint(10, steps // 2)
    return Restore(copied, copied + random.randint(10, steps // 3), random.random() < 0.5)


class Schedule:
    """One run of a plan.

    Power losses, failed flushes and new disks affect one replica at a time, or all at once: a second replica is spared
    until the first is back in sync. With a minimum of one in-sync replica they affect all at once only. In every sixth
    schedule others lose their power meanwhile, but no record.
    """

    def __init__(self, plan: Plan, make_log: Callable[[str, OnCommitted], CrashingLog] = MemoryLog) -> None:
        self.plan = plan
        self.world = World(
            plan.seed,
            plan.min_insync_replicas,
            plan.conditions,
            make_log,
            restorable=plan.restore is not None,
            reassigning=has_reassignments(plan.seed),
        )
        self.faults: list[str] = []
        """The faults that occurred, in order; a fault's index is its number in `skipped`."""
        self._calm = False
        """After a restore, until all replicas are in sync: a broker that is late does not join any more."""
        self._steps = 0
        self._copy: TreeCopy | None = None
        self._copied = -1
        """The version of the metadata in `_copy`."""
        self._fills_disks = has_full_disks(plan.seed)
        self._loses_power = has_power_losses(plan.seed)
        self._values = 0
        self._conditional = 0
        """The last conditional append; these count downwards."""
        self._appends_after = has_conditional_appends(plan.seed)
        self._sessions: list[int] = []
        """Of the processes that were killed: each lives on for a while."""

    def run(self) -> Counter[str]:
        """Runs the schedule. Raises `ViolationError` if an invariant does not hold."""
        with suppress(LateBrokerError):
            self._run()
        return self.world.counts

    def _run(self) -> None:
        world = self.world
        world.conditions = replace(QUIET, max_lag=self.plan.conditions.max_lag)
        for broker in world.brokers:
            broker.start()
        world.run_until(300, world.is_healthy)
        world.conditions = self.plan.conditions
        world.every_tick(self.plan.steps, self._step)
        world.run(self.plan.steps + 1.0)
        self._heal()
        self._until_healthy()
        if world.has_only_new_logs():
            world.recall_committed()
            world.elect_uncleanly()
            self._until_healthy()
        world.check_end()

    def _until_healthy(self) -> None:
        world = self.world
        world.run_until(world.now + HEALING, lambda: world.counts["events"] % 16 == 0 and world.is_healthy())

    def _step(self) -> None:
        chance = self.world.chance
        self._steps += 1
        if self.plan.restore is not None:
            self._back_up_or_restore(self.plan.restore)
        if chance() < (0.08 if self._appends_after else 0.25):
            if self._values and chance() < 0.15:
                random = self.world.random
                self._produce(random.randint(max(1, self._values - 5), self._values))
            else:
                self._values += 1
                self._produce(self._values)
        if self._appends_after and chance() < 0.25:
            self._append_after()
        if chance() < 0.01:
            self._delete_old_records()
        if chance() < self.plan.faults and not self._calm:
            self._fault()
        if self._fills_disks and not self._calm and chance() < self.plan.faults / 3:
            self._strike(self._fill_up, self._victim())
        if self._loses_power and not self._calm and chance() < self.plan.faults / 3:
            self._strike(self._lose_power_flushed, self._victim())
        if self.world.reassigning and chance() < 0.03:
            self._reassign()

    def _reassign(self) -> None:
        """Asks whoever is the controller for another set of replicas. Often one is removed and added again at once, or
        the reassignment is cancelled at once.
        """
        world, random = self.world, self.world.random
        targets: list[Target] = [self._target()]
        if random.random() < 0.5:
            next_ones: tuple[Target, ...] = (None, world.assignment.target, self._target())
            targets.append(random.choice(next_ones))
        for broker in world.brokers:
            world.at_process(world.delay(), broker, broker.process, partial(broker.ask, *targets))

    def _target(self) -> tuple[int, ...]:
        random, brokers = self.world.random, range(len(self.world.brokers))
        return tuple(random.sample(brokers, random.randint(self.plan.min_insync_replicas, len(brokers))))

    def _produce(self, value: int) -> None:
        """Sends a record to every broker that believes it leads: clients learn of a new leader late."""
        world = self.world
        for broker in world.brokers:
            world.at_process(world.delay(), broker, broker.process, partial(broker.produce, value))

    def _append_after(self) -> None:
        """Two clients read the log's end, each of a broker that believes it leads, and each appends a record if the log
        still ends there. Nobody sends such a record again."""
        world = self.world
        for _ in range(2):
            found = world.random.choice(world.brokers)
            end = found.end() if found.up else None
            if end is None:
                continue
            self._conditional -= 1
            for broker in world.brokers:
                append = partial(broker.produce_after, self._conditional, *end)
                world.at_process(world.delay(), broker, broker.process, append)

    def _delete_old_records(self) -> None:
        """Applies retention at the leaders. The newest records stay: a producer may send them again."""
        for broker in self.world.brokers:
            if broker.up and broker.partition is not None and broker.partition.leader is not None:
                log = broker.log
                log.advance_log_start(min(log.log_start_offset + 10, log.high_watermark - 20))

    # -- faults --------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        broker = self._victim()
        kind = self.world.random.random()
        for most, strike in (
            (0.22, self._kill),
            (0.29, self._lose_power),
            (0.32, self._fail_flush),
            (0.36, self._replace_disk),
            (0.39, self._lose_all_power),
            (0.43, self._leave),
            (0.60, self._pause),
            (0.75, self._cut),
            (0.88, self._cut_off),
            (1.00, self._suspect),
        ):
            if kind < most:
                self._strike(strike, broker)
                return

    def _victim(self) -> SimBroker:
        world, random = self.world, self.world.random
        broker = random.choice(world.brokers)
        state = world.state
        if state is not None and state.leader >= 0 and random.random() < 0.5:
            broker = world.brokers[state.leader]
        return broker

    def _strike(self, strike: Callable[[SimBroker], None], broker: SimBroker) -> None:
        world, number = self.world, len(self.faults)
        name = strike.__name__.strip("_").replace("_", " ")
        self.faults.append(f"{world.now:.0f} {name} {broker.id}")
        if number not in self.plan.skipped:
            world.counts[name] += 1
            strike(broker)

    def _fill_up(self, broker: SimBroker) -> None:
        """The disk has no room for a while; what is stored stays."""
        broker.full = True

        def empty() -> None:
            broker.full = False

        self.world.at(self.world.random.choice((10.0, 60.0, 200.0)), empty)

    def _kill(self, broker: SimBroker) -> None:
        if broker.up:
            broker.kill()
            self._restart_later(broker)

    def _restart_later(self, broker: SimBroker) -> None:
        session_id = broker.coordination.session_id
        self._sessions.append(session_id)
        random = self.world.random
        self.world.at(random.choice(_SESSION_ENDS), lambda: self.world.tree.expire(session_id))
        process = broker.process
        self.world.at(random.choice((1.0, 20.0, 80.0, 200.0)), lambda: self._restart(broker, process))

    def _restart(self, broker: SimBroker, process: int) -> None:
        if not broker.up and broker.process == process:
            broker.start()

    def _may_lose_data(self, broker: SimBroker) -> bool:
        others = (other for other in self.world.brokers if other is not broker)
        return self.plan.min_insync_replicas > 1 and broker.up and not any(other.tainted for other in others)

    def _lose_power(self, broker: SimBroker) -> None:
        if self._may_lose_data(broker):
            broker.lose_power()
            self._restart_later(broker)

    def _lose_power_flushed(self, broker: SimBroker) -> None:
        if broker.up:
            broker.lose_power_flushed()
            self._restart_later(broker)

    def _fail_flush(self, broker: SimBroker) -> None:
        if self._may_lose_data(broker):
            broker.fail_flush()
            self._restart_later(broker)

    def _replace_disk(self, broker: SimBroker) -> None:
        """Where others lose their power, too, none could prove that it lacks nothing: an administrator decides (R7)."""
        if self._may_lose_data(broker) and not self._loses_power:
            broker.replace_disk()
            self._restart_later(broker)

    def _lose_all_power(self, _: SimBroker) -> None:
        """Cuts the power of all brokers: records that no member of ISR and ELR has flushed are lost, all others must
        survive.

        The sessions of earlier processes end with the others. Where one outlives them and the minimum is one in-sync
        replica, the controller may take its broker for the last live member, and take the others out of the ISR: that
        is a loss that docs/cluster.md names.
        """
        world = self.world
        state = world.state
        if state is None or any(broker.tainted for broker in world.brokers):
            return
        for session_id in self._sessions:
            world.tree.expire(session_id)
        for broker in world.brokers:
            if broker.coordination.session_id:
                world.tree.expire(broker.coordination.session_id)
            was_up = broker.up
            broker.lose_power()
            if was_up:
                self._restart_later(broker)
        end = max(world.brokers[member].log.log_end_offset for member in state.members)
        del world.committed[end:]
        world.acknowledged = {value: offset for value, offset in world.acknowledged.items() if offset < end}
        world.after = {after: value for after, value in world.after.items() if after.offset < end}

    def _leave(self, broker: SimBroker) -> None:
        if not broker.up or broker.paused:
            return
        broker.leave()
        process = broker.process

        def stop() -> None:
            if broker.up and not broker.paused and broker.process == process:
                broker.stop_cleanly()
                self.world.at(self.world.random.choice((1.0, 80.0)), lambda: self._restart(broker, process))

        self.world.at(60, stop)

    def _pause(self, broker: SimBroker) -> None:
        if not broker.up or broker.paused:
            return
        broker.pause()
        process, random = broker.process, self.world.random
        session_id = broker.coordination.session_id

        def expire() -> None:
            if broker.paused and broker.process == process:
                self.world.tree.expire(session_id)

        def resume() -> None:
            if broker.up and broker.paused and broker.process == process:
                broker.resume()

        if random.random() < 0.7:
            self.world.at(40, expire)
        self.world.at(random.choice((10.0, 60.0, 150.0)), resume)

    def _cut(self, broker: SimBroker) -> None:
        random = self.world.random
        other = random.choice([other.id for other in self.world.brokers if other is not broker])
        self.world.cuts.add((broker.id, other))
        if random.random() < 0.6:
            self.world.cuts.add((other, broker.id))
        self.world.at(random.choice((20.0, 100.0)), self.world.cuts.clear)

    def _cut_off(self, broker: SimBroker) -> None:
        """Cuts a broker off from the coordination: its session ends meanwhile, or it is back in time."""
        broker.cut_off = True
        session_id = broker.coordination.session_id

        def expire() -> None:
            if broker.cut_off:
                self.world.tree.expire(session_id)

        def back() -> None:
            broker.cut_off = False

        self.world.at(40, expire)
        self.world.at(self.world.random.choice((20.0, 90.0)), back)

    def _suspect(self, broker: SimBroker) -> None:
        """A false suspicion: the broker refuses connections for a while. A session's lease may go over as well."""
        world, random = self.world, self.world.random
        broker.refuses = True

        def accepts() -> None:
            broker.refuses = False

        world.at(random.choice((20.0, 60.0)), accepts)
        for other in world.brokers:
            if other is not broker:
                world.at_process(world.delay(), other, other.process, partial(other.suspect, broker))

    def _back_up_or_restore(self, plan: Restore) -> None:
        """Restores once a broker has seen a change that the copy lacks: only then can it be noticed. Of those that
        run meanwhile each has.
        """
        world = self.world
        if self._calm:
            self._calm = not world.is_healthy()
        elif self._steps == plan.copied:
            self._copy, self._copied = world.tree.copy(), world.version()
        elif self._copy is not None and self._steps >= plan.restored:
            aware = [broker for broker in world.brokers if self._has_seen_more(broker)]
            running = [broker for broker in world.brokers if broker.up]
            if "lose all power" in world.counts:
                return  # what all members have lost, and another replica still has, would be there again
            if not aware or (plan.running and any(b not in aware or b.paused or b.cut_off for b in running)):
                return
            copy, self._copy = self._copy, None
            number = len(self.faults)
            self.faults.append(f"{world.now:.0f} restore {'running' if plan.running else 'stopped'}")
            if number not in self.plan.skipped:
                world.counts["restore"] += 1
                self._restore(copy, running=plan.running)

    def _has_seen_more(self, broker: SimBroker) -> bool:
        return broker.seen_change is not None and broker.seen_change.version > self._copied

    def _restore(self, copy: TreeCopy, *, running: bool) -> None:
        world, random = self.world, self.world.random
        self._calm = True
        world.cuts.clear()
        killed = [] if running else [broker for broker in world.brokers if broker.up]
        for broker in killed:
            broker.kill()
        sessions = [broker.coordination.session_id for broker in world.brokers if not broker.up]
        for session_id in {*world.restore(copy), *sessions}:
            world.at(random.choice(_SESSION_ENDS), partial(world.tree.expire, session_id))
        for broker in world.brokers:
            if not broker.up:
                world.at(random.choice((1.0, 20.0, 80.0)), partial(self._restart, broker, broker.process))

    def _heal(self) -> None:
        world = self.world
        world.conditions = QUIET
        world.cuts.clear()
        for broker in world.brokers:
            broker.cut_off = broker.full = broker.refuses = False
            if broker.paused and broker.up:
                broker.resume()
            if broker.up and broker.leaving:
                broker.stop_cleanly()
            if not broker.up:
                broker.start()


def run_schedule(seed: int) -> Counter[str]:
    """Runs one seed's schedule, with logs in memory."""
    return Schedule(plan_of(seed)).run()


def has_full_disks(seed: int) -> bool:
    """Returns True for every fifth seed, in which disks fill up besides. The others are as they were before there was
    this fault: some of them have found others."""
    return seed % SEEDS_PER_FULL_DISKS == SEEDS_PER_FULL_DISKS - 1


def has_reassignments(seed: int) -> bool:
    """Returns True for every tenth seed, in which the partition is reassigned besides, and for every second one with
    real logs; none of those with restores.
    """
    return seed % SEEDS_PER_REASSIGNMENT == 2 or seed % (2 * SEEDS_PER_DISK_LOG) == SEEDS_PER_DISK_LOG - 1


def has_conditional_appends(seed: int) -> bool:
    """Returns True for a schedule in which two clients append where they read the log's end; none of those with
    restores."""
    return seed % SEEDS_PER_CONDITIONAL == 3 and seed % SEEDS_PER_RESTORE != 7


def has_power_losses(seed: int) -> bool:
    """Returns True for every sixth seed, with a minimum of two, in which brokers lose their power besides, but no
    record."""
    return seed % SEEDS_PER_POWER_LOSSES == SEEDS_PER_POWER_LOSSES - 1


def has_disk_logs(seed: int) -> bool:
    """Returns True for every 50th seed, whose brokers have real logs in files."""
    return seed % SEEDS_PER_DISK_LOG == SEEDS_PER_DISK_LOG - 1


@contextmanager
def schedule_of(plan: Plan) -> Iterator[Schedule]:
    """Yields the plan's schedule, with logs as `has_disk_logs` says."""
    if not has_disk_logs(plan.seed):
        yield Schedule(plan)
        return
    with disk_logs() as make_log:
        yield Schedule(plan, make_log)
