"""Changes of topics: each is one transaction of the controller, built from the present data of the tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from uuid import UUID

from ..config.sections.topic_settings import name_problem
from ..errors import BrokerError, ErrorCode
from ..interfaces.coordination import (
    BadVersionError,
    Coordination,
    CoordinationUnavailableError,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
    Stat,
)
from ..records.partition import TopicPartition
from .assignment import Replicas, assign_replicas
from .clock_floors import leader_epoch_floor
from .controller import Controller
from .image import ClusterImage, PartitionImage
from .topic_names import check_no_collision, check_topic_name
from .tree import paths
from .tree.nodes import (
    ConfigNode,
    DeletedTopicNode,
    MetadataVersionNode,
    PartitionStateNode,
    TopicNode,
    encode_uuid,
)

MAX_PARTITIONS_A_CHANGE = 1000
"""Maximum number of new partitions in one request, so that its transaction stays below the coordination's limit of 1
MB."""
_ELECTIONS_A_TRANSACTION = 500
_RAISE_ATTEMPTS = 20


class TopicChanges:
    """`random_index(n)` returns a number in [0, n), `new_id` a new topic id, `clock` seconds since 1970."""

    def __init__(
        self,
        coordination: Coordination,
        controller: Controller,
        random_index: Callable[[int], int],
        new_id: Callable[[], UUID],
        clock: Callable[[], float],
    ) -> None:
        self._coordination = coordination
        self._controller = controller
        self._random_index = random_index
        self._new_id = new_id
        self._clock = clock

    def create(
        self,
        image: ClusterImage,
        name: str,
        count: int,
        replication_factor: int,
        configs: Mapping[str, str],
        replicas: Replicas | None = None,
    ) -> UUID:
        """Creates a topic and returns its id.

        `replicas` is a result of `checked_assignment`; without it the live brokers get replicas in turn. Raises
        `BrokerError` INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR or
        NOT_CONTROLLER.
        """
        self.check_create(image, name, count)
        epoch = self._controller.epoch()
        assigned = (
            dict(replicas)
            if replicas
            else assign_replicas(list(image.brokers), 0, count, replication_factor, self._start_index(image))
        )
        node = TopicNode(topic_id=self._new_id(), partitions=assigned)
        operations: list[Operation] = [
            Create(paths.topic(name), node.encode()),
            Create(paths.topic_config(name), ConfigNode(config=dict(configs)).encode()),
            Create(paths.partitions(name)),
        ]
        for number, brokers_of in assigned.items():
            operations += _new_partition(name, number, brokers_of, epoch)
        try:
            self._controller.write(operations, [name])
        except NodeExistsError:
            raise _exists(name) from None
        return node.topic_id

    def check_create(self, image: ClusterImage, name: str, count: int) -> None:
        """Raises the errors of `create` that can be found without a write."""
        check_topic_name(name)
        if name in image.topics:
            raise _exists(name)
        check_no_collision(name, image.topics)
        if count < 1:
            raise BrokerError(ErrorCode.invalid_partitions, f"topic {name!r} needs at least 1 partition, not {count}")
        _check_count(name, count)

    def delete(self, name: str, topic_id: UUID | None = None) -> UUID:
        """Deletes a topic and returns its id. Raises `BrokerError` UNKNOWN_TOPIC_OR_PARTITION if it does not exist, and
        UNKNOWN_TOPIC_ID if `topic_id` is given and the topic of this name has another."""
        node, _ = self._topic(name)
        if topic_id not in (None, node.topic_id):
            raise BrokerError(ErrorCode.unknown_topic_id, f"no topic has the id {topic_id}")
        operations: list[Operation] = []
        for number in node.partitions:
            operations += [Delete(paths.partition_state(name, number)), Delete(paths.partition(name, number))]
        operations += [Delete(paths.partitions(name)), Delete(paths.topic_config(name)), Delete(paths.topic(name))]
        marker = DeletedTopicNode(name=name, topic_id=node.topic_id)
        operations.append(Create(paths.deleted_topic(encode_uuid(node.topic_id)), marker.encode()))
        try:
            self._controller.write(operations, [name])
        except NoNodeError:
            raise _unknown(name) from None
        return node.topic_id

    def deleted(self) -> dict[UUID, str]:
        """Returns the deleted topics whose deletion is not finished: their names by id."""
        found = {}
        for child in self._coordination.children(paths.DELETED_TOPICS):
            path = paths.deleted_topic(child)
            try:
                node = DeletedTopicNode.decode(path, self._coordination.get(path)[0])
            except NoNodeError:
                continue  # finished after the listing
            found[node.topic_id] = node.name
        return found

    def deletion_finished(self, topic_id: UUID) -> None:
        with suppress(NoNodeError):
            self._coordination.delete(paths.deleted_topic(encode_uuid(topic_id)))

    def create_partitions(self, image: ClusterImage, name: str, total: int, replicas: Replicas | None = None) -> None:
        """Adds partitions until the topic has `total`, with `replicas` as in `create`. Raises `BrokerError`
        INVALID_PARTITIONS unless `total` is more than the present number."""
        node, stat = self._topic(name)
        count = len(node.partitions)
        if total <= count:
            raise BrokerError(
                ErrorCode.invalid_partitions, f"topic {name!r} has {count} partitions already; {total} is not more"
            )
        _check_count(name, total - count)
        epoch = self._controller.epoch()
        factor = len(node.partitions[0])
        brokers = sorted(image.brokers)
        first = node.partitions[0][0]
        start = brokers.index(first) if first in brokers else 0
        assigned = (
            {number: replicas[number] for number in range(count, total)}
            if replicas
            else assign_replicas(brokers, count, total - count, factor, start)
        )
        grown = node.model_copy(update={"partitions": {**node.partitions, **assigned}})
        operations: list[Operation] = [Set(paths.topic(name), grown.encode(), stat.version)]
        for number, brokers_of in assigned.items():
            operations += _new_partition(name, number, brokers_of, epoch)
        self._controller.write(operations, [name])

    def alter_config(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Sets configuration keys; `None` resets a key to its default."""
        self._topic(name)
        path = paths.topic_config(name)
        data, stat = self._coordination.get(path)
        config = dict(ConfigNode.decode(path, data).config)
        for key, value in changes.items():
            if value is None:
                config.pop(key, None)
            else:
                config[key] = value
        self._controller.write([Set(path, ConfigNode(config=config).encode(), stat.version)], [name])

    def set_leaders(self, changed: Mapping[TopicPartition, PartitionImage]) -> None:
        """Writes the results of elections, in transactions of `_ELECTIONS_A_TRANSACTION`."""
        epoch = self._controller.epoch()
        items = list(changed.items())
        for begin in range(0, len(items), _ELECTIONS_A_TRANSACTION):
            part = items[begin : begin + _ELECTIONS_A_TRANSACTION]
            operations = [
                Set(paths.partition_state(tp.topic, tp.partition), _state(state, epoch).encode()) for tp, state in part
            ]
            self._controller.write(operations, sorted({tp.topic for tp, _ in part}))

    def raise_leader_epochs(self, broker_id: int, begun: Mapping[TopicPartition, int]) -> None:
        """Raises the leader epochs of partitions that `broker_id` leads above the epochs in its logs (`begun`), at
        least to the clock's floor. The leader itself writes them, as Kafka's leaders write their in-sync replicas,
        conditional on the version of each partition's state."""
        items = sorted(begun.items())
        for begin in range(0, len(items), _ELECTIONS_A_TRANSACTION):
            self._raise(broker_id, dict(items[begin : begin + _ELECTIONS_A_TRANSACTION]))

    def _raise(self, broker_id: int, begun: Mapping[TopicPartition, int]) -> None:
        for _ in range(_RAISE_ATTEMPTS):
            operations: list[Operation] = []
            for tp, epoch in begun.items():
                path = paths.partition_state(tp.topic, tp.partition)
                try:
                    data, stat = self._coordination.get(path)
                except NoNodeError:
                    continue  # deleted in the meantime
                state = PartitionStateNode.decode(path, data)
                if state.leader == broker_id and state.leader_epoch <= epoch:
                    above = max(epoch + 1, leader_epoch_floor(self._clock()))
                    raised = state.model_copy(update={"leader_epoch": above})
                    operations.append(Set(path, raised.encode(), stat.version))
            if not operations:
                return
            marker = MetadataVersionNode(topics=tuple(sorted({tp.topic for tp in begun})))
            try:
                self._coordination.transaction([*operations, Set(paths.METADATA_VERSION, marker.encode())])
            except (BadVersionError, NoNodeError):
                continue  # the controller elected leaders in the meantime, or a topic was deleted
            return
        raise CoordinationUnavailableError(f"partition states kept changing for {_RAISE_ATTEMPTS} attempts")

    def _topic(self, name: str) -> tuple[TopicNode, Stat]:
        if name_problem(name):
            raise _unknown(name)
        path = paths.topic(name)
        try:
            data, stat = self._coordination.get(path)
        except NoNodeError:
            raise _unknown(name) from None
        return TopicNode.decode(path, data), stat

    def _start_index(self, image: ClusterImage) -> int:
        return self._random_index(len(image.brokers)) if image.brokers else 0


def _new_partition(name: str, number: int, replicas: tuple[int, ...], epoch: int) -> list[Operation]:
    state = _state(PartitionImage(replicas[0], 0, replicas, replicas), epoch)
    return [Create(paths.partition(name, number)), Create(paths.partition_state(name, number), state.encode())]


def _state(partition: PartitionImage, epoch: int) -> PartitionStateNode:
    return PartitionStateNode(
        controller_epoch=epoch, leader=partition.leader, leader_epoch=partition.leader_epoch, isr=partition.isr
    )


def _check_count(name: str, added: int) -> None:
    if added > MAX_PARTITIONS_A_CHANGE:
        raise BrokerError(
            ErrorCode.invalid_partitions,
            f"topic {name!r}: {added} new partitions at once, {MAX_PARTITIONS_A_CHANGE} at most",
        )


def _exists(name: str) -> BrokerError:
    return BrokerError(ErrorCode.topic_already_exists, f"topic {name!r} already exists")


def _unknown(name: str) -> BrokerError:
    return BrokerError(ErrorCode.unknown_topic_or_partition, f"topic {name!r} does not exist")
