"""What the coordination holds about mirrors: links, their topics, and what brokers report (docs/mirror.md, M12).

    /mirrors/LINK                    the link's definition
    /mirrors/LINK/topics/TOPIC       one of its mirror topics, with what was found in each partition
    /mirrors/LINK/reports/BROKER     the state of the partitions that a broker leads
    /mirrors/LINK/groups/GROUP       the offsets that were copied last

Whether a partition is a mirror is in its state (`PartitionState.mirror`), which changes in the order of the metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote
from uuid import uuid4

from pydantic import Field

from ..interfaces.coordination import (
    BadVersionError,
    Coordination,
    CoordinationUnavailableError,
    Create,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
)
from .tree.nodes import KafkaUuid, NodeData
from .tree.steps import Steps, exists, find

MIRRORS = "/mirrors"
_ATTEMPTS = 20


class LinkNode(NodeData):
    """`config`: the keys of `MirrorConfig` that are set. `link_id`: another one if the link was dropped and created
    again. `source_cluster_id`: empty until a broker has read it."""

    version: int = 1
    config: dict[str, Any]
    link_id: KafkaUuid = Field(default_factory=uuid4)
    source_cluster_id: str = ""
    paused: bool = False


class MirrorCut(NodeData):
    """Records that a broker has set aside in `path`."""

    partition: int
    start: int
    end: int
    broker: int
    path: str


class MirrorTopicNode(NodeData):
    """`since_ms`: when the mirror began. `begins`: by partition, where the source began then, if
    not at 0. `gaps`: by partition, the offsets from the first up to the second that the
    source had deleted. `promote`: the mirror is to end. `decisions`: by partition, the operator's last `MirrorDecision`
    (status, end, last epoch). `adopt`: the topic with the id `adopt_id` is to become a mirror: by partition, the
    `PromotionStart` of its former mirror."""

    version: int = 1
    source: str
    topic_id: KafkaUuid
    since_ms: int = 0
    begins: dict[int, int] = Field(default_factory=dict)
    gaps: dict[int, tuple[tuple[int, int], ...]] = Field(default_factory=dict)
    cuts: tuple[MirrorCut, ...] = ()
    promote: bool = False
    adopt: dict[int, tuple[int, int]] = Field(default_factory=dict)
    adopt_id: KafkaUuid | None = None
    decisions: dict[int, tuple[str, int, int]] = Field(default_factory=dict)
    paused: bool = False


class MirrorOf(NamedTuple):
    """What a new mirror topic follows. `node`: what the coordination holds about it at first."""

    link: str
    node: MirrorTopicNode

    def operations(self, topic: str) -> Steps[list[Operation]]:
        """Returns the writes of `node`, for the transaction that creates the topic. They replace the data of a former
        topic of this name, except that a paused topic stays paused. They fail if the link was dropped."""
        path = topic_path(self.link, topic)
        found = yield from find(path)
        if found is None:
            parent = path.rpartition("/")[0]
            parents = [] if (yield from exists(parent)) else [Create(parent)]
            return [*parents, Create(path, self.node.encode())]
        data, stat = found
        paused = MirrorTopicNode.decode(path, data).paused
        return [Set(path, self.node.model_copy(update={"paused": paused}).encode(), stat.version)]


class PartitionReport(NodeData):
    """`topic_id`: of the topic here; a report of a former topic of the name does not count. `end`: of the mirror's log;
    `last_epoch`: of its last record, -1 if there is none; `source_end`: the source's high watermark in its last answer,
    -1 before it. `reason`: why nothing is copied now, and what to do; empty while it is."""

    topic_id: KafkaUuid
    status: str
    end: int
    source_end: int
    lag: int
    last_epoch: int = -1
    reason: str = ""


class ReportNode(NodeData):
    """`partitions` by topic and partition. `refused`: topics that are not mirrored, or whose changes are not mirrored,
    with the reason. `left_out`: topics that the pattern matches and does not select, or that were promoted, with the
    reason. `problem`: why the link does not work at this broker; empty if it does. These count while the broker's
    registration has `broker_epoch`. `source_ends`, by the id of the source's topic and partition: the source's high
    watermark in its last answer to this broker, also of partitions that it led before: the source may not answer the
    next leader any more. `complete_until_ms`, by the same keys: for compacted topics, the time up to which nothing was
    missing (M9)."""

    version: int = 1
    partitions: dict[str, dict[int, PartitionReport]] = Field(default_factory=dict)
    refused: dict[str, str] = Field(default_factory=dict)
    left_out: dict[str, str] = Field(default_factory=dict)
    problem: str = ""
    broker_epoch: int = -1
    source_ends: dict[KafkaUuid, dict[int, int]] = Field(default_factory=dict)
    complete_until_ms: dict[str, dict[int, int]] = Field(default_factory=dict)


class CopiedNode(NodeData):
    """By topic and partition: the (offset, leader epoch) pairs that the mirror has committed, or was about to."""

    version: int = 1
    offsets: dict[str, dict[int, tuple[tuple[int, int], ...]]] = Field(default_factory=dict)


def link_path(link: str) -> str:
    return f"{MIRRORS}/{link}"


def topic_path(link: str, topic: str) -> str:
    return f"{MIRRORS}/{link}/topics/{topic}"


def report_path(link: str, broker_id: int) -> str:
    return f"{MIRRORS}/{link}/reports/{broker_id}"


def copied_path(link: str, group: str) -> str:
    name = quote(group, safe="") or "%"
    return f"{MIRRORS}/{link}/groups/{'%2E' * len(name) if name in ('.', '..') else name}"


N = TypeVar("N", bound=NodeData)


def update(coordination: Coordination, path: str, kind: type[N], change: Callable[[N | None], N | None]) -> N | None:
    """Changes the data of a path by compare-and-set; `change` gets None if the path does not exist, and returns None to
    leave it as it is. Returns the data after that. Raises `CoordinationError`; `NoNodeError` below a link that does not
    exist, so that nothing of a dropped link is created again."""
    for _ in range(_ATTEMPTS):
        try:
            data, stat = coordination.get(path)
            before: N | None = kind.decode(path, data)
            version = stat.version
        except NoNodeError:
            before, version = None, -1
        after = change(before)
        if after is None or after == before:
            return before
        try:
            if before is None:
                _create(coordination, path, after.encode())
            else:
                coordination.set(path, after.encode(), version)
        except (BadVersionError, NodeExistsError):
            continue
        except NoNodeError:
            if before is None:
                raise
            continue
        return after
    raise CoordinationUnavailableError(f"{path} kept changing during {_ATTEMPTS} attempts to change it")


def _create(coordination: Coordination, path: str, data: bytes) -> None:
    """Creates a link, or a path below one that exists."""
    parent = path.rpartition("/")[0]
    if parent == MIRRORS:
        coordination.create(path, data, make_parents=True)
        return
    try:
        coordination.create(path, data)
    except NoNodeError:
        with suppress(NodeExistsError):
            coordination.create(parent, b"")
        coordination.create(path, data)


def read_links(coordination: Coordination) -> dict[str, LinkNode]:
    return _read_below(coordination, MIRRORS, LinkNode)


def read_topics(coordination: Coordination, link: str) -> dict[str, MirrorTopicNode]:
    return _read_below(coordination, f"{link_path(link)}/topics", MirrorTopicNode)


def read_reports(coordination: Coordination, link: str) -> dict[int, ReportNode]:
    found = _read_below(coordination, f"{link_path(link)}/reports", ReportNode)
    return {int(broker): report for broker, report in found.items()}


def _read_below(coordination: Coordination, parent: str, kind: type[N]) -> dict[str, N]:
    try:
        names = sorted(coordination.children(parent))
    except NoNodeError:
        return {}
    wanted = [f"{parent}/{name}" for name in names]
    found: Mapping[str, Any] = dict(zip(wanted, coordination.get_many(wanted), strict=True))
    return {
        unquote(name): kind.decode(path, found[path][0])
        for name, path in zip(names, wanted, strict=True)
        if found[path] is not None
    }


def remove_link(coordination: Coordination, link: str) -> None:
    """Removes a link with all that is stored of it. Raises `NoNodeError` if there is none."""
    coordination.delete(link_path(link), recursive=True)
