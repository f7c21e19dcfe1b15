"""A registry member's view of its group and topics, and the watches that report changes of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from ...cluster.tree import paths
from ...cluster.tree.nodes import TopicNode
from ...errors import CoordinationError
from ...interfaces.coordination import Coordination, NoNodeError, Watch


class MemberNode(BaseModel):
    """The data of `ids/<member>` in the format of Kafka's ZooKeeper consumer: the number of streams by topic."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: int = 1
    pattern: str = "static"
    subscription: dict[str, int]
    timestamp: str = ""

    def encode(self) -> bytes:
        return self.model_dump_json().encode()


@dataclass(frozen=True, slots=True)
class GroupView:
    """`generation`: the creation id of the newest member. `partitions`: partition numbers by subscribed topic; a topic
    that does not exist has none, and no id in `topic_ids`."""

    generation: int
    subscriptions: Mapping[str, Mapping[str, int]]
    partitions: Mapping[str, tuple[int, ...]]
    topic_ids: Mapping[str, UUID]


def read_view(coordination: Coordination, group: str, topics: Iterable[str]) -> GroupView:
    """Returns the group's members, and the partitions and ids of the given topics."""
    generation = -1
    subscriptions: dict[str, Mapping[str, int]] = {}
    for name in coordination.children(paths.group_ids(group)):
        path = paths.group_member(group, name)
        try:
            data, stat = coordination.get(path)
        except NoNodeError:
            continue  # it left after the listing; the watch reports it
        subscriptions[name] = _subscription(path, data)
        generation = max(generation, stat.creation_id)
    nodes = {topic: _topic(coordination, topic) for topic in topics}
    return GroupView(
        generation,
        subscriptions,
        {topic: tuple(sorted(node.partitions)) if node else () for topic, node in nodes.items()},
        {topic: node.topic_id for topic, node in nodes.items() if node},
    )


def _subscription(path: str, data: bytes) -> dict[str, int]:
    try:
        return MemberNode.model_validate_json(data).subscription
    except ValidationError as error:
        raise CoordinationError(f"{path} should hold a member's subscription, but holds {data[:80]!r}") from error


def _topic(coordination: Coordination, topic: str) -> TopicNode | None:
    path = paths.topic(topic)
    try:
        return TopicNode.decode(path, coordination.get(path)[0])
    except NoNodeError:
        return None


class WatchSet:
    """The watches of one session; not thread-safe. Call `forget` in a new session: watches end with their session."""

    def __init__(self, coordination: Coordination, callback: Callable[[], None]) -> None:
        self._coordination = coordination
        self._callback = callback
        self._watches: dict[str, Watch] = {}

    def keep(self, wanted: Iterable[str]) -> None:
        """Sets watches so that exactly these paths are watched."""
        wanted = set(wanted)
        for path in set(self._watches) - wanted:
            self._watches.pop(path).cancel()
        for path in wanted - set(self._watches):
            self._watches[path] = self._coordination.watch(path, self._callback)

    def forget(self) -> None:
        for watch in self._watches.values():
            with contextlib.suppress(CoordinationError):  # the session has ended, and its watches with it
                watch.cancel()
        self._watches.clear()
