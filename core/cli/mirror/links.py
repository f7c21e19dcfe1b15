"""What the commands of `klamm mirror` share: the coordination, links, topics, and the state of their partitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ...errors import ConfigError, KlammError
from ...records.partition import TopicPartition
from ..options import TIMEOUT_S, settings_of

if TYPE_CHECKING:
    from uuid import UUID

    from ...client.cluster_client import ClusterClient
    from ...cluster.mirrors import LinkNode, MirrorTopicNode, ReportNode
    from ...config.sections.mirror import MirrorConfig
    from ...interfaces.coordination import Coordination

Link = Annotated[str, typer.Argument(metavar="LINK", help="The link's name.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic; repeatable.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
POLL_S: Final = 0.1
NO_REPORT: Final = "NO_REPORT"
"""The status of a partition that no broker leads, or that its leader has not reported since it has registered or since
the topic was created."""
WAIT_S: Final = 60.0


@contextmanager
def mirror_coordination(config: Path) -> Iterator[Coordination]:
    """Yields the coordination that the file names."""
    found = settings_of(config, None).make_coordination()
    found.start(TIMEOUT_S)
    try:
        yield found
    finally:
        found.close()


def link_of(coordination: Coordination, link: str) -> LinkNode:
    """Returns the link. Raises `ConfigError` if there is none of this name."""
    from ...cluster.mirrors import read_links

    links = read_links(coordination)
    if link not in links:
        raise ConfigError(f"there is no mirror {link!r} (there are: {', '.join(links) or 'none'})")
    return links[link]


def config_of(coordination: Coordination, link: str) -> MirrorConfig:
    """Returns the link's stored definition. Raises `ConfigError` if there is no such link."""
    from ...config.sections.mirror import MirrorConfig

    return MirrorConfig.model_validate(link_of(coordination, link).config)


def source_client(coordination: Coordination, link: str) -> AbstractContextManager[ClusterClient]:
    """Returns a client of the link's source."""
    from ...client.factory import ClusterAccess, open_client
    from ...records.codecs import CodecTable

    access = ClusterAccess(",".join(config_of(coordination, link).bootstrap_servers), CodecTable())
    return open_client(access, "cli", request_timeout_s=TIMEOUT_S)


def topics_of(coordination: Coordination, link: str, names: list[str] | None) -> dict[str, MirrorTopicNode]:
    """Returns the link's topics of these names; all without `names`. Raises `ConfigError` for one that it has not."""
    from ...cluster.image_reader import read_image
    from ...cluster.mirrors import read_topics
    from ...replication.partition_state import NO_EPOCH

    known = read_topics(coordination, link)
    for name in names or ():
        if name not in known:
            topic = read_image(coordination).topics.get(name)
            if topic is not None and any(each.state.promoted_epoch != NO_EPOCH for each in topic.partitions.values()):
                raise ConfigError(f"topic {name!r} was promoted (`klamm mirror promotions` shows where)")
            raise ConfigError(f"mirror {link} has no topic {name!r} (it has: {', '.join(known) or 'none'})")
    return {name: node for name, node in known.items() if not names or name in names}


def change_topics(coordination: Coordination, link: str, topics: list[str], changes: dict[str, Any]) -> None:
    """Sets fields of topics of the link. Raises `ConfigError` for a topic that it has not, before any change."""
    from ...cluster.mirrors import MirrorTopicNode, topic_path, update

    topics_of(coordination, link, topics)

    def change(node: MirrorTopicNode | None) -> MirrorTopicNode | None:
        return None if node is None else node.model_copy(update=changes)

    for name in topics:
        update(coordination, topic_path(link, name), MirrorTopicNode, change)


def partitions_of(coordination: Coordination, link: str, only: list[str] | None) -> dict[str, Any]:
    """Returns the state of the link: its `partitions` as rows, topics that are `refused` or `left_out`, and `problems`
    by broker."""
    from ...cluster.image_reader import read_image
    from ...cluster.mirrors import read_reports, read_topics

    link_of(coordination, link)
    topics, all_reports = read_topics(coordination, link), read_reports(coordination, link)
    image = read_image(coordination)
    source_ends = _source_ends(all_reports)
    epochs = {broker: found.epoch for broker, found in image.registrations.items()}
    reports = {broker: found for broker, found in all_reports.items() if epochs.get(broker) == found.broker_epoch}
    rows = [
        _row(TopicPartition(name, number), known.topic_id, partition.leader, reports, source_ends, node)
        for name, node in topics.items()
        if (known := image.topics.get(name)) is not None and (not only or name in only)
        for number, partition in sorted(known.partitions.items())
        if partition.state.mirror == link
    ]
    refused = {topic: why for report in reports.values() for topic, why in report.refused.items()}
    problems = {broker: report.problem for broker, report in reports.items() if report.problem}
    left_out = {topic: why for report in reports.values() for topic, why in report.left_out.items()}
    return {"link": link, "partitions": rows, "refused": refused, "left_out": left_out, "problems": problems}


def _source_ends(reports: Mapping[int, ReportNode]) -> dict[tuple[UUID, int], int]:
    """Returns, by the source's topic id and the partition, where the source ended in its last answer to any broker: it
    may not answer the present leader any more, and the broker that it has answered may have ended."""
    found: dict[tuple[UUID, int], int] = {}
    for report in reports.values():
        for topic_id, ends in report.source_ends.items():
            for number, end in ends.items():
                found[topic_id, number] = max(end, found.get((topic_id, number), -1))
    return found


def _row(
    tp: TopicPartition,
    topic_id: UUID,
    leader: int,
    reports: Mapping[int, ReportNode],
    source_ends: Mapping[tuple[UUID, int], int],
    node: MirrorTopicNode,
) -> dict[str, Any]:
    """Returns the state of a partition as its leader has reported it in its present registration, of this topic."""
    report = reports[leader].partitions.get(tp.topic, {}).get(tp.partition) if leader in reports else None
    if report is not None and report.topic_id != topic_id:
        report = None
    end, source_end, lag = (-1, -1, -1) if report is None else (report.end, report.source_end, report.lag)
    if source_end < 0:
        source_end = source_ends.get((node.topic_id, tp.partition), -1)
        lag = max(source_end - end, 0) if source_end >= 0 and end >= 0 else -1
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "status": NO_REPORT if report is None else report.status,
        "end": end,
        "source_end": source_end,
        "lag": lag,
        "last_epoch": -1 if report is None else report.last_epoch,
        "broker": leader,
        "reason": "" if report is None else report.reason,
        "promoting": node.promote,
        "gaps": [list(gap) for gap in node.gaps.get(tp.partition, ())],
        "cuts": [cut.model_dump() for cut in node.cuts if cut.partition == tp.partition],
    }


def name_of(row: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(row["topic"], row["partition"])


def reaches_end(found: Mapping[str, Any]) -> bool:
    """Returns True if every partition of `partitions_of` is at its source's end."""
    rows = found["partitions"]
    return bool(rows) and all(row["status"] == "FOLLOWING" for row in rows)


def wait_until(reached: Callable[[], bool], otherwise: str) -> None:
    """Waits until `reached`. Raises `KlammError` with `otherwise` after a minute."""
    until = time.monotonic() + WAIT_S
    while not reached():
        if time.monotonic() > until:
            raise KlammError(f"{otherwise} after {WAIT_S:g} s")
        time.sleep(POLL_S)
