"""Changes of topics: each is one transaction of the controller, built from the newest image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from uuid import UUID

from ..config.sections.topic import TopicConfig
from ..errors import BrokerError, ErrorCode
from ..interfaces.coordination import Create, Delete, NoNodeError, Operation, Set
from ..mirror.adoption import PromotionStart, adopted
from ..mirror.promotion import promoted
from ..records.partition import TopicPartition, counted
from ..replication.partition_state import PartitionState
from . import clock_floors
from .assignment import Replicas, assign_replicas
from .change_writer import BYTES_AN_OPERATION, MOST_BYTES, ChangeWriter, Plan
from .changes import leader_guard
from .control.controller import Controller
from .control.leadership import min_insync_replicas, new_state, without_elr_at
from .control.tasks import topic_node
from .image import ClusterImage, TopicImage
from .mirrors import MirrorOf
from .topic_names import check_no_collision, check_topic_name
from .tree import paths
from .tree.nodes import ConfigNode, DeletedTopicNode, FormerTopic, TopicNode, encode_uuid
from .tree.steps import Steps, children, get_many, plain, transact

MAX_PARTITIONS_A_CHANGE = 1000
"""Maximum number of new partitions in one request, so that its transaction stays below the coordination's limit of 1
MB."""


class TopicChanges:
    """`random_index(n)` returns a number in [0, n), `new_id` a new topic id, `clock` seconds since 1970, `defaults` the
    configuration of topics that set none."""

    def __init__(
        self,
        controller: Controller,
        writer: ChangeWriter,
        random_index: Callable[[int], int],
        new_id: Callable[[], UUID],
        clock: Callable[[], float],
        defaults: Callable[[], TopicConfig],
    ) -> None:
        self._controller = controller
        self._writer = writer
        self._random_index = random_index
        self._new_id = new_id
        self._clock = clock
        self._defaults = defaults

    def create(
        self,
        name: str,
        count: int,
        replication_factor: int,
        configs: Mapping[str, str],
        replicas: Replicas | None = None,
        mirror: MirrorOf | None = None,
    ) -> Steps[UUID]:
        """Creates a topic and returns its id; with `mirror`, as a mirror topic, together with the mirror's data.

        `replicas` is a result of `checked_assignment`; without it the live brokers get replicas in turn. Raises
        `BrokerError` INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR or
        NOT_CONTROLLER.
        """
        topic_id = self._new_id()

        def plan(image: ClusterImage) -> Steps[Plan]:
            self.check_create(image, name, count)
            start = self._random_index(len(image.brokers)) if image.brokers else 0
            assigned = replicas or assign_replicas(_takers(image), 0, count, replication_factor, start, _racks(image))
            node = TopicNode(topic_id=topic_id, partitions=dict(assigned))
            operations: list[Operation] = [
                Create(paths.topic(name), node.encode()),
                Create(paths.topic_config(name), ConfigNode(config=dict(configs)).encode()),
                Create(paths.partitions(name)),
            ]
            if mirror is not None:
                operations += yield from mirror.operations(name)
            states = self._new_states(image, name, assigned, "" if mirror is None else mirror.link)
            return Plan(states, {name: node}, {name: dict(configs)}, operations)

        self._controller.epoch()  # not the controller: nothing is read
        yield from self._writer.change(self._controller.guard, plan)
        return topic_id

    def _new_states(
        self, image: ClusterImage, name: str, assigned: Replicas, mirror: str
    ) -> dict[TopicPartition, PartitionState]:
        epoch = self._controller.epoch()
        states = {}
        for number, brokers in assigned.items():
            if not any(broker in image.brokers for broker in brokers):
                raise BrokerError(
                    ErrorCode.invalid_replica_assignment, f"partition {number}: no broker of {list(brokers)} is live"
                )
            state = new_state(brokers, image.registrations, epoch)
            states[TopicPartition(name, number)] = replace(state, mirror=mirror)
        return states

    def check_create(self, image: ClusterImage, name: str, count: int) -> None:
        """Raises the errors of `create` that can be found without a write."""
        check_topic_name(name)
        if name in image.topics:
            raise _exists(name)
        check_no_collision(name, image.topics)
        if count < 1:
            raise BrokerError(ErrorCode.invalid_partitions, f"topic {name!r} needs at least 1 partition, not {count}")
        _check_count(name, count)

    def delete(self, name: str, topic_id: UUID | None = None) -> Steps[UUID]:
        """Deletes a topic and returns its id. Raises `BrokerError` UNKNOWN_TOPIC_OR_PARTITION if it does not exist, and
        UNKNOWN_TOPIC_ID if `topic_id` is given and the topic of this name has another id."""
        deleted: list[UUID] = []

        def plan(image: ClusterImage) -> Plan:
            deleted.clear()
            topic = _topic(image, name)
            if topic_id not in (None, topic.topic_id):
                raise BrokerError(ErrorCode.unknown_topic_id, f"no topic has the id {topic_id}")
            numbers = sorted(topic.partitions)
            first = max(0, len(numbers) - self._most_deleted(name))
            operations: list[Operation] = []
            for number in numbers[first:]:
                operations += [Delete(paths.partition_state(name, number)), Delete(paths.partition(name, number))]
            if first:  # too many partitions for one change: the last ones go first
                node = topic_node(topic)
                left = node.model_copy(update={"partitions": {n: node.partitions[n] for n in numbers[:first]}})
                return Plan(topics={name: left}, operations=[Set(paths.topic(name), left.encode()), *operations])
            operations += [Delete(paths.partitions(name)), Delete(paths.topic_config(name)), Delete(paths.topic(name))]
            marker = DeletedTopicNode(name=name, topic_id=topic.topic_id)
            operations.append(Create(paths.deleted_topic(encode_uuid(topic.topic_id)), marker.encode()))
            deleted.append(topic.topic_id)
            return Plan(topics={name: None}, operations=operations)

        self._controller.epoch()
        while not deleted:
            yield from self._writer.change(self._controller.guard, plain(plan))
        return deleted[-1]

    def _most_deleted(self, name: str) -> int:
        """Returns the number of partitions of this topic that one change may delete."""
        bytes_each = 2 * (len(paths.partition_state(name, 99_999)) + BYTES_AN_OPERATION)
        return min((self._writer.most_operations - 8) // 2, MOST_BYTES // 2 // bytes_each)

    def deleted(self) -> Steps[dict[UUID, str]]:
        """Returns the deleted topics whose deletion is not finished: their names by id."""
        found = {}
        names = yield from children(paths.DELETED_TOPICS)
        for path, (data, _) in (yield from get_many([paths.deleted_topic(name) for name in names])).items():
            node = DeletedTopicNode.decode(path, data)
            found[node.topic_id] = node.name
        return found

    def deletion_finished(self, topic_id: UUID) -> Steps[None]:
        with suppress(NoNodeError):
            yield from transact(Delete(paths.deleted_topic(encode_uuid(topic_id))))

    def create_partitions(self, name: str, total: int, replicas: Replicas | None = None) -> Steps[None]:
        """Adds partitions until the topic has `total`, with `replicas` as in `create`. Raises `BrokerError`
        INVALID_PARTITIONS unless `total` is more than the present number."""

        def plan(image: ClusterImage) -> Plan:
            topic = _topic(image, name)
            count = len(topic.partitions)
            if total <= count:
                raise BrokerError(
                    ErrorCode.invalid_partitions,
                    f"topic {name!r} has {counted(count, 'partition')} already; {total} is not more",
                )
            _check_count(name, total - count)
            first = topic.partitions[0].assignment.target
            brokers = sorted(_takers(image))
            start = brokers.index(first[0]) if first[0] in brokers else 0
            assigned = (
                {number: replicas[number] for number in range(count, total)}
                if replicas
                else assign_replicas(brokers, count, total - count, len(first), start, _racks(image))
            )
            node = topic_node(topic)
            grown = node.model_copy(update={"partitions": {**node.partitions, **assigned}})
            operations = [Set(paths.topic(name), grown.encode())]
            mirror = topic.partitions[0].state.mirror
            return Plan(self._new_states(image, name, assigned, mirror), {name: grown}, {}, operations)

        self._controller.epoch()
        yield from self._writer.change(self._controller.guard, plain(plan))

    def promote(self, name: str) -> Steps[None]:
        """Ends the mirror of a topic: clients write it from now on, in new leader epochs. No-op if it is no mirror.
        Raises `BrokerError` LEADER_NOT_AVAILABLE while the states are a backup's (docs/replication.md, R13)."""

        def plan(image: ClusterImage) -> Plan | None:
            floor = clock_floors.leader_epoch_floor(self._clock())
            topic = image.topics.get(name)
            if topic is None:
                return None
            if image.restored is not None:
                raise BrokerError(
                    ErrorCode.leader_not_available,
                    f"topic {name!r} is not promoted yet: the coordination was restored from a backup, and its states "
                    "are not settled",
                )
            mirrored = [(number, found.state) for number, found in topic.partitions.items() if found.state.mirror]
            states = {
                TopicPartition(name, number): promoted(state, floor - 1)
                for number, state in mirrored[: self._writer.most_states]
            }
            return Plan(states) if states else None

        self._controller.epoch()
        while (yield from self._writer.change(self._controller.guard, plain(plan))) is not None:
            pass

    def adopt(
        self, name: str, link: str, promotions: Mapping[int, PromotionStart], known_id: UUID | None = None
    ) -> Steps[None]:
        """Makes a topic a mirror of this link, which continues its logs up to where the former mirror was promoted. The
        topic gets a new id: each replica takes over the log of the old one once, and cuts it then. No-op if it is a
        mirror of the link. With `known_id`, only the topic with this id. Raises `BrokerError`
        UNKNOWN_TOPIC_OR_PARTITION or UNKNOWN_TOPIC_ID if it was deleted, LEADER_NOT_AVAILABLE if a partition has no
        live leader, INVALID_REQUEST if a partition is not in `promotions` or the topic is another link's mirror, or has
        too many partitions for one change."""
        topic_id = self._new_id()

        def plan(image: ClusterImage) -> Plan | None:
            topic = _topic(image, name)
            links = {partition.state.mirror for partition in topic.partitions.values()}
            if links == {link}:
                return None
            if known_id not in (None, topic.topic_id):
                raise BrokerError(ErrorCode.unknown_topic_id, f"topic {name!r} was deleted and created again")
            if links != {""} or promotions.keys() != topic.partitions.keys():
                why = "is a mirror" if links != {""} else f"has other partitions than {sorted(promotions)}"
                raise BrokerError(ErrorCode.invalid_request, f"topic {name!r} {why}")
            if len(topic.partitions) > self._writer.most_states:
                raise BrokerError(
                    ErrorCode.invalid_request,
                    f"topic {name!r} has {len(topic.partitions)} partitions, and one change at most "
                    f"{self._writer.most_states}: delete it, and let the link copy it",
                )
            floor = clock_floors.leader_epoch_floor(self._clock())
            states = {}
            for number, partition in topic.partitions.items():
                if partition.leader not in image.registrations:
                    raise BrokerError(ErrorCode.leader_not_available, f"partition {name}-{number} has no live leader")
                states[TopicPartition(name, number)] = adopted(partition.state, link, promotions[number], floor)
            former = FormerTopic(
                topic_id=topic.topic_id,
                promotions={number: (each.offset, each.leader_epoch) for number, each in promotions.items()},
            )
            node = topic_node(topic).model_copy(update={"topic_id": topic_id, "former": former})
            operations = [Set(paths.topic(name), node.encode())]
            return Plan(states, {name: node}, {name: dict(topic.configs)}, operations)

        self._controller.epoch()
        yield from self._writer.change(self._controller.guard, plain(plan))

    def alter_config(self, name: str, changes: Mapping[str, str | None], incarnation: str) -> Steps[None]:
        """Sets configuration keys; `None` resets a key to its default. If the minimum of in-sync replicas becomes
        lower, eligible leader replicas (ELR) that would no longer be eligible are removed with it (docs/replication.md,
        R6).

        Any registered broker may do it, since Kafka's admin clients ask any broker. `incarnation` is that of this
        broker.
        """

        def plan(image: ClusterImage) -> Plan:
            done.clear()
            topic = _topic(image, name)
            configs = dict(topic.configs)
            for key, value in changes.items():
                if value is None:
                    configs.pop(key, None)
                else:
                    configs[key] = value
            emptied = dict(without_elr_at(topic, min_insync_replicas(configs, self._defaults())))
            most = self._writer.most_states
            if len(emptied) > most:  # under the old minimum the others only become less available
                return Plan(dict(islice(emptied.items(), most)))
            done.append(True)
            operations = [Set(paths.topic_config(name), ConfigNode(config=configs).encode())]
            return Plan(emptied, {}, {name: configs}, operations)

        done: list[bool] = []
        while not done:
            yield from self._writer.change(plain(lambda _: leader_guard(incarnation)), plain(plan))

    def raise_leader_epochs(self, broker_id: int, incarnation: str, begun: Mapping[TopicPartition, int]) -> Steps[None]:
        """Raises the leader epochs of partitions that `broker_id` leads above the epochs in its logs (`begun`), at
        least to the clock's floor. The leader itself writes them, as it writes its in-sync replicas."""

        def plan(image: ClusterImage) -> Plan | None:
            raised: dict[TopicPartition, PartitionState] = {}
            if image.restored is not None:  # a state of the backup would count as one that was made after it (R13)
                return None
            for tp, epoch in begun.items():
                partition = image.partition(tp)
                if partition is None or partition.leader != broker_id or partition.leader_epoch > epoch:
                    continue
                above = max(epoch + 1, clock_floors.leader_epoch_floor(self._clock()))
                raised[tp] = replace(partition.state, leader_epoch=above)
                if len(raised) == self._writer.most_states:
                    break
            return Plan(raised) if raised else None

        while (yield from self._writer.change(plain(lambda _: leader_guard(incarnation)), plain(plan))) is not None:
            pass


def _topic(image: ClusterImage, name: str) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None:
        raise BrokerError(ErrorCode.unknown_topic_or_partition, f"topic {name!r} does not exist")
    return topic


def _takers(image: ClusterImage) -> list[int]:
    """Returns the brokers that new partitions may be assigned to: live and not leaving; if there are none, all live
    ones."""
    staying = [number for number, node in image.brokers.items() if not node.registration.leaving]
    return staying or list(image.brokers)


def _racks(image: ClusterImage) -> dict[int, str | None]:
    return {number: node.rack for number, node in image.brokers.items()}


def _check_count(name: str, added: int) -> None:
    if added > MAX_PARTITIONS_A_CHANGE:
        raise BrokerError(
            ErrorCode.invalid_partitions,
            f"topic {name!r}: {added} new partitions at once, {MAX_PARTITIONS_A_CHANGE} at most",
        )


def _exists(name: str) -> BrokerError:
    return BrokerError(ErrorCode.topic_already_exists, f"topic {name!r} already exists")
