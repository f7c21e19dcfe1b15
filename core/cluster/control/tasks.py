"""The controller's work: what it writes after brokers, reports or configurations have changed, and what administrators
ask of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from ...config.sections.topic import TopicConfig
from ...errors import BrokerError, ErrorCode
from ...interfaces.coordination import Delete, Operation, Set
from ...records.partition import TopicPartition, counted, some_of
from ...replication.partition_state import PartitionState
from .. import clock_floors
from ..brokers.incarnations import evict_operations
from ..brokers.reports import Reports, read_reports
from ..change_writer import ChangeWriter, Plan, Planner
from ..image import BrokerNode, ClusterImage, PartitionImage, TopicImage
from ..reassignment import Reassigned, ReplicaAssignment, begin, cancelled, check_target, completed
from ..tree import paths
from ..tree.nodes import TopicNode
from ..tree.steps import Session, Steps, get_many, plain
from .cold_start import ColdStart
from .controller import Controller
from .eviction import Evictions
from .leadership import (
    Refusal,
    Terms,
    above_floor,
    count_elections,
    doubted,
    first_elections,
    holds_elections,
    is_held,
    min_insync_replicas,
    preferred_election,
    unclean_election,
)

Refusals = dict[TopicPartition, Refusal]
"""An error code and a message by partition; the code is `none` where all went well."""
OnElected = Callable[[int, int], None]
"""Called after a change with new leaders: how many of them were elected uncleanly, and the change's duration in ns."""
_log = logging.getLogger(__name__)
_DONE: Refusal = (ErrorCode.none, "")
_WAITS = "the cluster is starting, and the partition waits for replicas that are not back yet"
_MOST_ASSIGNMENTS = 8_000
"""Upper bound of the number of partitions whose assignments one change may write, over all topics. A topic's definition
is written whole, twice (the topic and the ring), about 30 bytes a partition; ZooKeeper accepts 1 MB."""


class ControllerTasks:
    """Every method raises `BrokerError` NOT_CONTROLLER if this broker is not the controller. One caller at a time,
    except for `suspects`. `clock` returns seconds since 1970, `defaults` the configuration of topics that set none."""

    def __init__(
        self,
        session: Session,
        controller: Controller,
        writer: ChangeWriter,
        clock: Callable[[], float],
        defaults: Callable[[], TopicConfig],
        cold_start: ColdStart,
        on_elected: OnElected = lambda *_: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._controller = controller
        self._writer = writer
        self._evictions = Evictions(session, monotonic)
        self._clock = clock
        self._defaults = defaults
        self._cold_start = cold_start
        self._on_elected = on_elected

    def suspects(self, image: ClusterImage) -> Steps[Collection[BrokerNode]]:
        """Returns the brokers to be evicted; connects to each broker that is suspected."""
        return (yield from self._evictions.confirmed(image)).values()

    def catch_up(self, read: ClusterImage, evicted: Collection[BrokerNode]) -> Steps[None]:
        """Ends the registrations of `evicted`, and writes what follows from the registrations, configurations and
        reports, starting with the image that was just `read`, in changes of `ChangeWriter.most_states` partitions."""
        for node in evicted:
            yield from self._evict(node)
        image: ClusterImage | None = None if evicted else read
        while (image := (yield from self._change(self._next_step, image))) is not None:
            pass

    def holds_elections(self, image: ClusterImage) -> bool:
        """Returns True if elections are postponed until absent brokers are back."""
        return self._controller.lease is not None and holds_elections(image, self._terms())

    def _next_step(self, image: ClusterImage) -> Steps[Plan | None]:
        if image.restored is not None:
            return self._doubt(image, image.restored)
        changed = yield from self._first_elections(image, image.brokers)
        if changed:
            return Plan(changed)
        finished = self._completed(image)
        return _reassigned(image, finished) if finished else None

    def _doubt(self, image: ClusterImage, leader_epoch: int) -> Plan:
        """Doubts all states up to that leader epoch (docs/replication.md, R13), as many as one change may have; when
        none is left, deletes `/admin/restored`."""
        states = doubted(image, self._terms(), leader_epoch, self._writer.most_states)
        if not states:
            return Plan(operations=[Delete(paths.RESTORED)])
        _log.error(
            "the coordination was restored from an older backup: %s (%s) without a leader until all replicas are back",
            counted(len(states), "partition"), some_of(list(states)),
        )  # fmt: skip
        return Plan(states)

    def _first_elections(
        self, image: ClusterImage, live: Collection[int]
    ) -> Steps[dict[TopicPartition, PartitionState]]:
        registrations = {number: found for number, found in image.registrations.items() if number in live}
        reports = yield from read_reports()
        return first_elections(image, registrations, reports, self._terms(), self._writer.most_states)

    def _evict(self, node: BrokerNode) -> Steps[None]:
        """Ends a registration, and elects in the same change unless the states are from an older backup (R13)."""

        def plan(image: ClusterImage) -> Steps[Plan | None]:
            found = image.registrations.get(node.id)
            if found is None or found.incarnation != node.registration.incarnation:
                return None  # it has registered again, or its session is over
            live = set(image.brokers) - {node.id}
            changed = (yield from self._first_elections(image, live)) if image.restored is None else {}
            return Plan(changed, operations=evict_operations(found))

        if (yield from self._change(plan)) is not None:
            yield from self._evictions.evicted(node)

    def _change(self, plan_for: Planner, image: ClusterImage | None = None) -> Steps[ClusterImage | None]:
        """Makes a change as the controller, as `ChangeWriter.change` does, and reports the elections in it."""
        begun = time.perf_counter_ns()
        planned: list[tuple[ClusterImage, Plan]] = []

        def plan(image: ClusterImage) -> Steps[Plan | None]:
            found = yield from plan_for(image)
            if found is not None:
                planned[:] = [(image, found)]
            return found

        after = yield from self._writer.change(self._controller.guard, plan, image)
        if after is not None and planned:
            elected, unclean = count_elections(planned[0][0], planned[0][1].states)
            if elected:
                self._on_elected(unclean, time.perf_counter_ns() - begun)
        return after

    # -- what administrators ask

    def elect(self, asked: Sequence[TopicPartition], *, unclean: bool) -> Steps[Refusals]:
        """Elects the preferred replica of each partition, or with `unclean` any live replica where there is no
        leader."""

        def plan(image: ClusterImage, part: Sequence[TopicPartition], results: Refusals) -> Steps[Plan | None]:
            reports, states = (yield from read_reports()) if unclean else Reports(), {}
            for tp in part:
                elected = self._elected(image, tp, reports, unclean=unclean)
                if isinstance(elected, PartitionState):
                    states[tp] = elected
                results[tp] = _DONE if isinstance(elected, PartitionState) else elected
            return Plan(states) if states else None

        return (yield from self._in_parts(asked, plan))

    def _elected(
        self, image: ClusterImage, tp: TopicPartition, reports: Reports, *, unclean: bool
    ) -> PartitionState | Refusal:
        topic, partition = image.topics.get(tp.topic), image.partition(tp)
        if topic is None or partition is None:
            return _unknown(tp)
        terms = self._terms()
        if not unclean:
            elected = preferred_election(partition, image.registrations, terms)
            waits = isinstance(elected, PartitionState) and self._waits(image, partition)
            return (ErrorCode.preferred_leader_not_available, _WAITS) if waits else elected
        minimum = min_insync_replicas(topic.configs, terms.defaults)
        return unclean_election(tp, partition, image.registrations, reports, terms, minimum)

    def _waits(self, image: ClusterImage, partition: PartitionImage) -> bool:
        """Returns True if the state may be from an older backup: while the cluster starts and replicas are absent, or
        until the state is doubted (R13). Only an unclean election does not wait for that."""
        return image.restored is not None or is_held(
            partition.state, partition.replicas, image.registrations, self._terms()
        )

    def alter_reassignments(
        self, asked: Mapping[TopicPartition, Sequence[int] | None], *, may_change_factor: bool = True
    ) -> Steps[Refusals]:
        """Starts the reassignment of each partition to the given replicas; None cancels the one in progress."""

        def plan(image: ClusterImage, part: Sequence[TopicPartition], results: Refusals) -> Plan | None:
            changed: dict[TopicPartition, Reassigned] = {}
            for tp in part:
                try:
                    altered = self._altered(image, tp, asked[tp], may_change_factor=may_change_factor)
                except BrokerError as error:
                    results[tp] = (error.code, error.words or str(error))
                    continue
                results[tp] = _DONE
                if altered is not None:
                    changed[tp] = altered
            return _reassigned(image, changed) if changed else None

        return (yield from self._in_parts(list(asked), plain(plan)))

    def unregister(self, broker_id: int) -> Steps[None]:
        """Removes what is stored of a broker that will not return: the record of its log directory and its
        configuration.

        Raises `BrokerError` BROKER_ID_NOT_REGISTERED if nothing is stored, and INVALID_REQUEST while the broker is live
        or has replicas.
        """
        stored = (paths.log_directory(broker_id), paths.broker_config(broker_id))

        def plan(image: ClusterImage) -> Steps[Plan | None]:
            if broker_id in image.brokers:
                raise BrokerError(
                    ErrorCode.invalid_request,
                    f"broker {broker_id} is live: stop it first (one that was killed counts as live until its session "
                    "ends: the session time-out of the coordination, 6 s by default)",
                )
            has = [tp for tp, partition in image.partitions() if broker_id in partition.replicas]
            if has:
                raise BrokerError(
                    ErrorCode.invalid_request,
                    f"broker {broker_id} has replicas of {some_of(has)}: reassign them first (klamm cluster drain)",
                )
            there = yield from get_many(stored)
            if not there:
                raise BrokerError(ErrorCode.broker_id_not_registered, f"there is no broker {broker_id}")
            return Plan(operations=[Delete(path) for path in there])

        self._controller.epoch()
        yield from self._change(plan)

    def _altered(
        self, image: ClusterImage, tp: TopicPartition, target: Sequence[int] | None, *, may_change_factor: bool
    ) -> Reassigned | None:
        topic, partition = image.topics.get(tp.topic), image.partition(tp)
        if topic is None or partition is None:
            raise BrokerError(*_unknown(tp))
        if target is None:
            if partition.assignment.is_reassigning and self._waits(image, partition):
                raise BrokerError(ErrorCode.invalid_replica_assignment, _WAITS)
            minimum = min_insync_replicas(topic.configs, self._defaults())
            found = cancelled(partition.assignment, partition.state, image.registrations, minimum)
            return self._under_this_controller(partition, found)
        live = [number for number, node in image.brokers.items() if not node.registration.leaving]
        check_target(partition.assignment, target, live, may_change_factor=may_change_factor)
        begun = begin(partition.assignment, target)
        return None if begun == partition.assignment else Reassigned(begun, partition.state)

    def _completed(self, image: ClusterImage) -> dict[TopicPartition, Reassigned]:
        def found() -> Iterator[tuple[TopicPartition, Reassigned]]:
            for topic in image.topics.values():
                for number, partition in topic.partitions.items():
                    if partition.assignment.is_reassigning and not self._waits(image, partition):
                        minimum = min_insync_replicas(topic.configs, self._defaults())
                        done = completed(partition.assignment, partition.state, image.registrations, minimum)
                        if done is not None:
                            yield TopicPartition(topic.name, number), self._under_this_controller(partition, done)

        done = dict(found())
        return {tp: done[tp] for tp in in_one_change(image, list(done), self._most_reassigned)}

    @property
    def _most_reassigned(self) -> int:
        return self._writer.most_states // 2  # each may change its topic, too

    def _under_this_controller(self, partition: PartitionImage, found: Reassigned) -> Reassigned:
        terms = self._terms()
        state = above_floor(partition.state, found.state, terms.epoch_floor)
        return Reassigned(found.assignment, replace(state, controller_epoch=terms.controller_epoch))

    def _in_parts(
        self,
        asked: Sequence[TopicPartition],
        plan: Callable[[ClusterImage, Sequence[TopicPartition], Refusals], Steps[Plan | None]],
    ) -> Steps[Refusals]:
        """Changes the partitions in as many changes as they need; each part is planned again if another change came
        first."""
        self._controller.epoch()
        results: Refusals = {}
        left, part = list(asked), list[TopicPartition]()

        def plan_part(image: ClusterImage) -> Steps[Plan | None]:
            part[:] = in_one_change(image, left, self._most_reassigned)
            return plan(image, part, results)

        while left:
            yield from self._change(plan_part)
            del left[: len(part)]
        return results

    def _terms(self) -> Terms:
        floor = clock_floors.leader_epoch_floor(self._clock())
        return Terms(self._controller.epoch(), floor, self._defaults(), self._cold_start.held_below())


def _reassigned(image: ClusterImage, changed: Mapping[TopicPartition, Reassigned]) -> Plan:
    """Returns the change of the assignments, and of those states that differ from the image's."""
    by_topic: dict[str, dict[int, ReplicaAssignment]] = {}
    states = {}
    for tp, found in changed.items():
        by_topic.setdefault(tp.topic, {})[tp.partition] = found.assignment
        before = image.partition(tp)
        if before is None or before.state != found.state:
            states[tp] = found.state
    nodes = {name: topic_node(image.topics[name], assignments) for name, assignments in by_topic.items()}
    operations: list[Operation] = [Set(paths.topic(name), node.encode()) for name, node in nodes.items()]
    return Plan(states, dict(nodes), {}, operations)


def in_one_change(image: ClusterImage, asked: Sequence[TopicPartition], most: int) -> Sequence[TopicPartition]:
    """Returns the first of the partitions, at least one and at most `most`, whose reassignments fit into one change."""
    topics: set[str] = set()
    assignments = 0
    for count, tp in enumerate(asked):
        if tp.topic not in topics and tp.topic in image.topics:
            topics.add(tp.topic)
            assignments += len(image.topics[tp.topic].partitions)
        if count and (count == most or assignments > _MOST_ASSIGNMENTS):
            return asked[:count]
    return asked


def topic_node(topic: TopicImage, changed: Mapping[int, ReplicaAssignment] | None = None) -> TopicNode:
    """Returns the topic's definition as it is stored, with the assignments of some partitions changed."""
    found = {number: partition.assignment for number, partition in topic.partitions.items()} | dict(changed or {})
    return TopicNode(
        topic_id=topic.topic_id,
        partitions={number: assignment.replicas for number, assignment in found.items()},
        adding_replicas={number: a.adding for number, a in found.items() if a.adding},
        removing_replicas={number: a.removing for number, a in found.items() if a.removing},
        former=topic.former,
    )


def _unknown(tp: TopicPartition) -> Refusal:
    return ErrorCode.unknown_topic_or_partition, f"partition {tp} does not exist"
