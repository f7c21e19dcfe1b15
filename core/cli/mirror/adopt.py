"""`klamm mirror adopt` and `promotions`: a topic becomes a mirror of its former mirror (docs/mirror.md, "Adopt")."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ...client.edges import EARLIEST, LATEST
from ...errors import ConfigError
from ...records.partition import TopicPartition, counted
from ..options import DEFAULT_CONFIG, TIMEOUT_S, ConfigFile, settings_and_client
from ..output import Json, say, say_rows
from .links import (
    DryRun,
    Link,
    Topics,
    config_of,
    mirror_coordination,
    name_of,
    partitions_of,
    source_client,
    wait_until,
)

if TYPE_CHECKING:
    from ...client.cluster_client import ClusterClient
    from ...cluster.image import ClusterImage
    from ...interfaces.coordination import Coordination


def promotions(topic: Topics = None, config: ConfigFile = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """List the partitions that were mirrors, with the offset and the leader epoch from which clients write them: what
    `adopt` needs at the former source. The offset is not known once retention has deleted the records around it.
    """
    from ...cluster.image_reader import read_image

    with settings_and_client(config, None) as (_, client), mirror_coordination(config) as coordination:
        known = read_image(coordination).topics
        for name in topic or ():
            if name not in known:
                raise ConfigError(f"there is no topic {name!r} here")
        epochs = {
            TopicPartition(name, number): each.state.promoted_epoch
            for name, found in sorted(known.items())
            if not topic or name in topic
            for number, each in sorted(found.partitions.items())
            if each.state.promoted_epoch >= 0
        }
        starts = promotion_starts(client, epochs)
    rows = [
        {"topic": tp.topic, "partition": tp.partition, "begins": starts.get(tp), "leader_epoch": epoch}
        for tp, epoch in epochs.items()
    ]
    say_rows(("topic", "partition", "begins", "leader_epoch"), rows, as_json)


def promotion_starts(
    client: ClusterClient, epochs: Mapping[TopicPartition, int], *, is_new: bool = False
) -> dict[TopicPartition, int]:
    """Returns the offsets at which these leader epochs begin, of partitions whose leader knows it. A leader does not
    know it of an epoch that begins at the log start, since earlier records may have been deleted, unless the epoch
    `is_new`."""
    if not epochs:
        return {}
    client.metadata({tp.topic for tp in epochs})
    led = {tp: epoch for tp, epoch in epochs.items() if client.cluster.leader_epoch(tp) >= epoch}
    ends, _ = client.try_leader_epoch_ends({tp: epoch - 1 for tp, epoch in led.items()}, timeout_s=TIMEOUT_S)
    firsts, _ = client.try_list_offsets(dict.fromkeys(led, EARLIEST), timeout_s=TIMEOUT_S)
    return {
        tp: end.end_offset
        for tp, end in ends.items()
        if tp in firsts and (is_new or end.end_offset > firsts[tp].offset or end.end_offset == 0)
    }


def adopt(
    link: Link,
    promoted: Annotated[
        Path,
        typer.Option(
            "--promotions", metavar="FILE", help="What `promotions --json` of the cluster that has it now prints."
        ),
    ],
    topic: Topics = None,
    dry_run: DryRun = False,
    config: ConfigFile = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Make topics of this cluster mirrors of their former mirrors, without a new copy. LINK leads to the cluster that
    they were promoted in.

    Prints what this cluster has beyond the promotion: it is cut from every replica, and kept in a file beside the log.
    The topics get new ids, and offsets of groups are those of the other cluster from then on.
    """
    from ...cluster.image_reader import read_image
    from ...cluster.mirrors import MirrorTopicNode, topic_path, update

    with ExitStack() as stack:
        _, own = stack.enter_context(settings_and_client(config, None))
        found = _promotions_in(promoted)
        if not found:
            raise ConfigError(f"--promotions: {promoted} has no line of `klamm mirror promotions --json`")
        names = list(dict.fromkeys(topic or sorted({tp.topic for tp in found})))
        coordination = stack.enter_context(mirror_coordination(config))
        _check_selected(coordination, link, names)
        other = stack.enter_context(source_client(coordination, link))
        view = other.metadata(names)
        image = read_image(coordination)
        rows, nodes = [], {}
        for name in names:
            there = view.topics.get(name)
            topic_id = None if there is None else there.topic_id
            if there is None or topic_id is None:
                raise ConfigError(f"mirror {link}: the source has no topic {name!r}")
            starts = {tp.partition: start for tp, start in found.items() if tp.topic == name}
            _check(image, name, starts, len(there.partitions))
            rows += _cuts(own, other, name, starts)
            nodes[name] = MirrorTopicNode(
                source=name,
                topic_id=topic_id,
                since_ms=_promoted_ms(starts),
                adopt={number: (start.offset, start.leader_epoch) for number, start in starts.items()},
                adopt_id=image.topics[name].topic_id,
            )
        for row in () if as_json else rows:
            beyond = f"offsets {row['cut']} to {row['end']} (not in it) are cut and kept in a file"
            kept = "nothing is cut" if row["cut"] == row["end"] else beyond
            say(f"{name_of(row)}: ends at {row['end']}, was promoted at {row['begins']}: {kept}")
        if dry_run:
            say_rows((), rows if as_json else (), as_json=True)
            return
        for name, node in nodes.items():
            update(coordination, topic_path(link, name), MirrorTopicNode, lambda _, node=node: node)  # type: ignore[misc]

        def done() -> bool:
            topics = read_image(coordination).topics
            known = [topics[name] for name in names if name in topics]
            if not all(each.state.mirror == link for topic in known for each in topic.partitions.values()):
                return False
            return not partitions_of(coordination, link, names)["refused"].keys() & set(names)

        wait_until(done, f"the controller has not changed them; see `klamm mirror status {link}`")
    if as_json:
        say_rows((), rows, as_json=True)
    else:
        say(f"mirror {link}: {counted(len(names), 'topic')} adopted")


class _Start(NamedTuple):
    offset: int
    leader_epoch: int


def _promotions_in(path: Path) -> dict[TopicPartition, _Start]:
    """Reads what `promotions`, `promote` or `fail-over` have printed with `--json`."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--promotions: {path} cannot be read: {error}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            tp = TopicPartition(str(row["topic"]), int(row["partition"]))
            if row["begins"] is None:
                raise ConfigError(
                    f"{path}:{number}: it is not known where {tp} was promoted (`begins` is null): delete the topic "
                    "here, and let the link copy it"
                )
            start = found[tp] = _Start(int(row["begins"]), int(row["leader_epoch"]))
            if start.offset < 0 or not 0 <= start.leader_epoch < 2**31:
                raise ValueError("no offset and leader epoch")
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ConfigError(
                f"{path}:{number}: expected a line of `klamm mirror promotions --json`, got {line[:80]!r}"
            ) from error
    return found


def _check_selected(coordination: Coordination, link: str, names: list[str]) -> None:
    """Raises `ConfigError` if the link does not select the topics under their own names."""
    from ...mirror.planner import selects

    section = config_of(coordination, link)
    for name in names:
        if section.prefix or not selects(section, name, internal=False):
            raise ConfigError(f"mirror {link} selects no topic {name!r} of this name: see its topics and prefix")


def _promoted_ms(starts: Mapping[int, _Start]) -> int:
    """Returns the time of the promotion, up to which this cluster had everything: epochs begin at the clock's floor."""
    from ...cluster.clock_floors import time_of_epoch

    epochs = [start.leader_epoch for start in starts.values()]
    return min([time.time_ns() // 1_000_000, *(time_of_epoch(epoch) * 1000 for epoch in epochs)])


def _check(image: ClusterImage, name: str, starts: Mapping[int, _Start], there: int) -> None:
    topic = image.topics.get(name)
    if topic is None:
        raise ConfigError(f"there is no topic {name!r} here: the link copies it")
    mirror = next((each.state.mirror for each in topic.partitions.values() if each.state.mirror), "")
    if mirror:
        raise ConfigError(f"topic {name!r} is a mirror of link {mirror} already")
    lacking = [number for number in topic.partitions if number not in starts]
    if lacking:
        raise ConfigError(f"--promotions has no line for partition {name}-{lacking[0]}")
    if there < len(topic.partitions) or len(starts) > len(topic.partitions):
        raise ConfigError(
            f"topic {name!r} has {counted(len(topic.partitions), 'partition')} here and {there} at the source: delete "
            "it here, and let the link copy it"
        )


def _cuts(own: ClusterClient, other: ClusterClient, name: str, starts: Mapping[int, _Start]) -> list[dict[str, Any]]:
    """Returns for each partition where it ends, and where it is cut."""
    own.metadata([name])
    other.metadata([name])
    ends = own.list_offsets({TopicPartition(name, number): LATEST for number in starts}, timeout_s=TIMEOUT_S)
    compacted = "compact" in (own.describe_configs(name)["cleanup.policy"].value or "")
    rows = []
    for number, start in sorted(starts.items()):
        tp = TopicPartition(name, number)
        end = ends[tp][0]
        cut = _common_end(own, other, tp, start, end)
        if not compacted:  # the cleaner rewrites batches, in each cluster differently
            _check_last(own, other, tp, cut)
        rows.append(
            {
                "topic": name,
                "partition": number,
                "end": end,
                "begins": start.offset,
                "leader_epoch": start.leader_epoch,
                "cut": cut,
            }
        )
    return rows


def _common_end(own: ClusterClient, other: ClusterClient, tp: TopicPartition, start: _Start, end: int) -> int:
    """Returns where the two logs part: below the promotion by their epochs, which the former source has given."""

    def end_of(client: ClusterClient, epoch: int) -> tuple[int, int]:
        return client.leader_epoch_ends({tp: epoch}, timeout_s=TIMEOUT_S)[tp]

    epoch, known = end_of(own, start.leader_epoch - 1)
    if known < 0:  # all its epochs are from before the promotion
        epoch, known = own.cluster.leader_epoch(tp), end
    cut = min(start.offset, known, end)
    while epoch >= 0:
        there, there_end = end_of(other, epoch)
        if there_end < 0:  # no epoch of the other cluster is later
            return cut
        cut = min(cut, there_end)
        if there == epoch:
            return cut
        epoch, known = end_of(own, there)
        cut = min(cut, known) if known >= 0 else 0
    return cut


def _check_last(own: ClusterClient, other: ClusterClient, tp: TopicPartition, cut: int) -> None:
    """Compares the last common batch, if both clusters still have it. Raises `ConfigError` if it is not the same: one
    of the topics was created again."""
    here, there = _batch_below(own, tp, cut), _batch_below(other, tp, cut)
    if here is not None and there is not None and here != there:
        raise ConfigError(
            f"{tp}: the batches below offset {cut} differ in the two clusters (base offset, leader epoch, CRC: {here} "
            f"here, {there} there): this topic is not the source of that mirror; delete it here, and let the link copy "
            "it"
        )


def _batch_below(client: ClusterClient, tp: TopicPartition, offset: int) -> tuple[int, int, int] | None:
    """Returns base offset, leader epoch and CRC of the batch with the record before `offset`; None if there is none."""
    from ...records.header import iter_headers

    if offset <= 0:
        return None
    for node, _ in client.by_leader([tp]).items():
        answer = client.fetch(node, {tp: offset - 1}, max_wait_ms=0, partition_max_bytes=1)
        for _, header in iter_headers(answer[tp].records):
            return header.base_offset, header.leader_epoch, header.crc
    return None
