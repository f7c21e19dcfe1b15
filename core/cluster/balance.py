"""Plans that even out the load of the brokers: preferred leaders to elect, replicas to move, orders to change.

Pure functions of the partitions and the live brokers, for the controller and for `klamm cluster`. A plan moves few
replicas at a time; the caller plans again when they are in sync. Each move makes the placement better by one measure,
so that repeated plans end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ..errors import BrokerError, ErrorCode
from ..records.partition import TopicPartition, counted
from .image import ClusterImage

Racks = Mapping[int, str | None]
"""The live brokers that may get replicas, by id, each with its rack."""


@dataclass(frozen=True, slots=True)
class PlacedPartition:
    """`replicas` in order of preference; `reassigning` while a reassignment of it is in progress."""

    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    reassigning: bool = False


_NONE: Final = -1

Placement = Mapping[TopicPartition, PlacedPartition]


@dataclass(frozen=True, slots=True)
class Move:
    """A partition's replicas after the move of one of them from `source` to `destination`."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    source: int
    destination: int


def placement_of(image: ClusterImage) -> dict[TopicPartition, PlacedPartition]:
    """Returns where the image's partitions are."""
    return {
        tp: PlacedPartition(partition.leader, partition.replicas, partition.isr, partition.assignment.is_reassigning)
        for tp, partition in image.partitions()
    }


def preferred_elections(
    placement: Placement, live: Iterable[int], most_percent: int, *, unable: Iterable[int] = ()
) -> list[TopicPartition]:
    """Returns the partitions whose preferred leader, the first replica, should lead again.

    As in Kafka's controller, these are partitions of brokers that lead too few of the partitions that prefer them: more
    than `most_percent` of those are led by others (`leader.imbalance.per.broker.percentage`). Partitions whose
    preferred leader cannot lead now (`unable`: leaving, or with a full disk) and partitions that are being reassigned
    are left out.
    """
    able = set(live) - set(unable)
    preferred: Counter[int] = Counter(partition.replicas[0] for partition in placement.values())
    elsewhere: dict[int, list[TopicPartition]] = {}
    for tp, partition in sorted(placement.items()):
        first = partition.replicas[0]
        if partition.leader != first and first in able and not partition.reassigning:
            elsewhere.setdefault(first, []).append(tp)
    return [
        tp
        for broker, found in sorted(elsewhere.items())
        if len(found) * 100 > most_percent * preferred[broker]
        for tp in found
        if broker in placement[tp].isr
    ]


def plan_moves(placement: Placement, racks: Racks, most: int) -> list[Move]:
    """Returns at most `most` moves of single replicas, of different partitions.

    First come replicas that share a rack although another rack has none of the partition; then replicas of the broker
    with the most, which move to the one with the fewest, while they differ by two or more. A move never puts two
    replicas of a partition into one rack that were in two. Partitions that are being reassigned do not change.
    """
    plan = _Plan(placement, racks)
    for improve in (plan.spread_over_racks, plan.even_out):
        while len(plan.moves) < most and improve():
            pass
    return plan.moves


def plan_drain(placement: Placement, racks: Racks, broker: int) -> list[Move]:
    """Returns the moves after which `broker` has no replica, each to the least loaded broker that keeps the racks
    apart.

    Raises `BrokerError` INVALID_REPLICATION_FACTOR if a partition has a replica on every other live broker already, or
    there is none.
    """
    plan = _Plan(placement, {id_: rack for id_, rack in racks.items() if id_ != broker})
    for tp, partition in sorted(placement.items()):
        if broker in partition.replicas and not plan.move_away(tp, broker):
            why = f"broker {broker} cannot be drained: {tp} has {counted(len(partition.replicas), 'replica')}, and "
            if plan.racks:
                why += f"of the other live brokers ({', '.join(map(str, sorted(plan.racks)))}) each has one already; "
                why += "add a broker, or lower the topic's replication factor"
            else:
                why += "there is no other live broker to move it to: add one"
            raise BrokerError(ErrorCode.invalid_replication_factor, why)
    return plan.moves


def plan_factor(placement: Placement, racks: Racks, chosen: Iterable[TopicPartition], factor: int) -> list[Move]:
    """Returns the moves after which each chosen partition has `factor` replicas.

    New replicas are placed on the least loaded brokers, first in racks that the partition does not use. Superfluous
    replicas are dropped in this order: not live, not in sync, sharing a rack; the preferred leader stays if it is live
    and in sync. If fewer replicas are live than stay, a live one becomes the first. `source` and `destination` are -1.
    Raises `BrokerError` INVALID_REPLICATION_FACTOR if there are too few live brokers.
    """
    if factor > len(racks):
        raise BrokerError(
            ErrorCode.invalid_replication_factor,
            f"the replication factor {factor} is larger than the number of live brokers, {len(racks)}",
        )
    plan = _Plan(placement, racks)
    for tp in sorted(chosen):
        plan.change_factor(tp, factor)
    return plan.moves


def plan_leaders(placement: Placement, brokers: Iterable[int]) -> list[Move]:
    """Returns changes of the order of replicas that even out the preferred leaders; they move no data.

    Each change makes a broker the first replica of one of its partitions, in place of a broker that is the first
    replica of at least two partitions more.
    """
    after = {tp: partition.replicas for tp, partition in placement.items() if not partition.reassigning}
    preferred = Counter(dict.fromkeys(brokers, 0))
    preferred.update(replicas[0] for replicas in after.values() if replicas[0] in preferred)
    found: dict[TopicPartition, Move] = {}
    for tp, replicas in sorted(after.items()):
        first = replicas[0]
        others = [replica for replica in replicas[1:] if replica in preferred]
        least = min(others, key=lambda replica: (preferred[replica], replica), default=first)
        if preferred[first] - preferred[least] >= 2:
            preferred[first] -= 1
            preferred[least] += 1
            order = (least, *(replica for replica in replicas if replica != least))
            found[tp] = Move(tp, order, first, least)
    return list(found.values())


@dataclass
class _Plan:
    """The placement as it will be after `moves`."""

    placement: Placement
    racks: Racks
    moves: list[Move] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.after = {tp: partition.replicas for tp, partition in self.placement.items()}
        self.counts = Counter(replica for replicas in self.after.values() for replica in replicas)
        self._moved: set[TopicPartition] = {tp for tp, found in self.placement.items() if found.reassigning}

    def spread_over_racks(self) -> bool:
        """Moves one replica that shares its rack to a rack without one; returns whether there was one."""
        for tp, replicas in sorted(self.after.items()):
            used = Counter(self._rack(replica) for replica in replicas)
            for replica in reversed(replicas):  # the preferred leader last
                if used[self._rack(replica)] < 2 or tp in self._moved:
                    continue
                free = [broker for broker in self.racks if self._rack(broker) not in used]
                if free:
                    self._move(tp, replica, min(free, key=self._load))
                    return True
        return False

    def even_out(self) -> bool:
        """Moves one replica from a broker with many replicas to one with few; returns whether that was possible."""
        by_load = sorted(self.racks, key=self._load)
        for source in reversed(by_load):
            for destination in by_load:
                if self.counts[source] - self.counts[destination] < 2:
                    break
                for tp, replicas in sorted(self.after.items(), key=lambda item: item[1][0] == source):
                    if tp not in self._moved and source in replicas and self._fits(replicas, source, destination):
                        self._move(tp, source, destination)
                        return True
        return False

    def move_away(self, tp: TopicPartition, source: int) -> bool:
        """Moves the partition's replica from `source`; returns whether another broker can have it."""
        replicas = self.after[tp]
        free = [broker for broker in self.racks if broker not in replicas]
        if not free:
            return False
        fitting = [broker for broker in free if self._fits(replicas, source, broker)]
        others = Counter(self._rack(replica) for replica in replicas if replica != source)
        self._move(
            tp, source, min(fitting or free, key=lambda broker: (others[self._rack(broker)], self._load(broker)))
        )
        return True

    def change_factor(self, tp: TopicPartition, factor: int) -> None:
        """Gives the partition `factor` replicas."""
        before = replicas = self.after[tp]
        while len(replicas) < factor:
            used = Counter(self._rack(replica) for replica in replicas)
            free = [broker for broker in self.racks if broker not in replicas]
            added = min(free, key=lambda broker: (used[self._rack(broker)], self._load(broker)))
            self.counts[added] += 1
            replicas = (*replicas, added)
        if len(replicas) > factor:
            replicas = self._reduced(tp, factor)
        if replicas != before:
            self.after[tp] = replicas
            self.moves.append(Move(tp, replicas, _NONE, _NONE))

    def _reduced(self, tp: TopicPartition, factor: int) -> tuple[int, ...]:
        """Returns `factor` of the partition's replicas, the first of them live if one of them is."""
        replicas, in_sync = self.after[tp], self.placement[tp].isr
        preferred = replicas[0]
        while len(replicas) > factor:
            used = Counter(self._rack(replica) for replica in replicas)
            dropped = max(
                replicas,
                key=lambda replica: (
                    replica not in self.racks,
                    replica not in in_sync,
                    replica != preferred,
                    used[self._rack(replica)],
                    self._load(replica),
                ),
            )
            self.counts[dropped] -= 1
            replicas = tuple(replica for replica in replicas if replica != dropped)
        if replicas[0] in self.racks:
            return replicas
        return tuple(sorted(replicas, key=lambda replica: (replica not in self.racks, replica not in in_sync)))

    def _fits(self, replicas: tuple[int, ...], source: int, destination: int) -> bool:
        """Returns whether the move keeps the replicas in as many racks as they are in."""
        if destination in replicas:
            return False
        racks = {self._rack(replica) for replica in replicas}
        others = {self._rack(replica) for replica in replicas if replica != source}
        return len(others | {self._rack(destination)}) >= len(racks)

    def _move(self, tp: TopicPartition, source: int, destination: int) -> None:
        after = tuple(destination if replica == source else replica for replica in self.after[tp])
        self.after[tp] = after
        self.counts[source] -= 1
        self.counts[destination] += 1
        self._moved.add(tp)
        self.moves.append(Move(tp, after, source, destination))

    def _load(self, broker: int) -> tuple[int, int]:
        return self.counts[broker], broker

    def _rack(self, broker: int) -> str:
        """Returns the broker's rack; brokers without one, and those that are not live, share a rack."""
        return self.racks.get(broker) or ""
