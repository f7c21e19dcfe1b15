"""`klamm mirror resolve`: what happens to partitions that wait for a decision (docs/mirror.md, M6 to M8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ...client.edges import EARLIEST
from ...errors import ConfigError
from ...records.partition import TopicPartition, counted
from ..options import DEFAULT_CONFIG, ConfigFile, settings_and_client
from ..output import Json, say, say_rows
from .links import (
    DryRun,
    Link,
    mirror_coordination,
    partitions_of,
    topics_of,
    wait_until,
)

if TYPE_CHECKING:
    from ...client.cluster_client import ClusterClient
    from ...interfaces.coordination import Coordination

STOPPED: Final = ("DIVERGED", "GAP", "STALE", "SOURCE_REPLACED")
"""The statuses of partitions that wait for a decision."""
_CONTINUED: Final = {
    "GAP": "goes on behind the gap at offset {}",
    "DIVERGED": "is cut to what the source has below offset {}; what is cut is kept in a file",
    "STALE": "goes on at offset {}; keys that the source has deleted may remain",
}


def resolve(
    link: Link,
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic here.")],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", metavar="NUMBER", help="Only this partition; repeatable.")
    ] = None,
    continue_: Annotated[
        bool,
        typer.Option("--continue", help="Go on behind the gap, or cut the mirror where its source's log has changed."),
    ] = False,
    take_new: Annotated[
        bool, typer.Option("--take-new", help="Delete the topic here, and copy the source's from its start.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --take-new: delete the topic.")] = False,
    dry_run: DryRun = False,
    config: ConfigFile = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Decide what happens to the partitions of a topic that have stopped.

    GAP: --continue goes on at the source's log start; the gap is stored. DIVERGED: --continue cuts the mirror to what
    the source has, and keeps what is cut in a file. STALE: --take-new deletes the topic here and copies it again;
    --continue keeps keys that the source may have deleted. SOURCE_REPLACED: --take-new deletes the topic here and
    copies the new one; `klamm mirror fail-over` keeps the old one.
    """
    if continue_ == take_new:
        raise ConfigError("one of --continue and --take-new is required")
    if take_new and partition:
        raise ConfigError("--take-new is about a whole topic: without --partition")
    with settings_and_client(config, None) as (_, client), mirror_coordination(config) as coordination:
        topics_of(coordination, link, [topic])
        found = [
            row
            for row in partitions_of(coordination, link, [topic])["partitions"]
            if partition is None or row["partition"] in partition
        ]
        stopped = [row for row in found if row["status"] in STOPPED]
        if not stopped:
            states = ", ".join(sorted({row["status"] for row in found})) or "there is no such partition"
            raise ConfigError(f"mirror {link}: no partition of {topic!r} has stopped ({states})")
        if continue_:
            _continue(coordination, link, topic, stopped, dry_run=dry_run, as_json=as_json)
        else:
            _take_new(coordination, client, link, topic, found, yes=yes, dry_run=dry_run, as_json=as_json)


def _continue(
    coordination: Coordination, link: str, topic: str, rows: list[dict[str, Any]], *, dry_run: bool, as_json: bool
) -> None:
    from ...cluster.mirrors import MirrorTopicNode, topic_path, update

    replaced = [row["partition"] for row in rows if row["status"] == "SOURCE_REPLACED"]
    if replaced:
        raise ConfigError(
            f"{topic}-{replaced[0]}: the source's topic is another one, so the mirror cannot continue: --take-new "
            f"copies the new topic, `klamm mirror fail-over {link} --topic {topic}` keeps the old one"
        )
    for row in rows:
        what = _CONTINUED[row["status"]].format(row["end"])
        if not as_json:
            say(f"{topic}-{row['partition']}: {what}")
    if not dry_run:
        made = {row["partition"]: (row["status"], row["end"], row["last_epoch"]) for row in rows}

        def decide(node: MirrorTopicNode | None) -> MirrorTopicNode | None:
            return None if node is None else node.model_copy(update={"decisions": {**node.decisions, **made}})

        update(coordination, topic_path(link, topic), MirrorTopicNode, decide)

        def continued() -> bool:
            now = {row["partition"]: row for row in partitions_of(coordination, link, [topic])["partitions"]}
            return not any(_is_there_still(now.get(row["partition"]), row) for row in rows)

        wait_until(continued, f"{topic} has not continued; see `klamm mirror status {link}`")
    if as_json:
        say_rows((), [{**row, "continued": not dry_run} for row in rows], as_json=True)


def _is_there_still(now: dict[str, Any] | None, before: dict[str, Any]) -> bool:
    keys = ("status", "end", "last_epoch")
    return now is not None and all(now[key] == before[key] for key in keys)


def _take_new(
    coordination: Coordination,
    client: ClusterClient,
    link: str,
    topic: str,
    rows: list[dict[str, Any]],
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    from ...cluster.image_reader import read_image

    starts = client.list_offsets({TopicPartition(topic, row["partition"]): EARLIEST for row in rows})
    deleted = [
        {
            "topic": topic,
            "partition": row["partition"],
            "status": row["status"],
            "start": starts[TopicPartition(topic, row["partition"])][0],
            "end": row["end"],
            "deleted": yes and not dry_run,
        }
        for row in rows
    ]
    if as_json:
        say_rows((), deleted, as_json=True)
    for row in () if as_json else deleted:
        say(f"{topic}-{row['partition']}: offsets {row['start']} to {row['end']} (not in it) are deleted here")
    if dry_run:
        return
    if not yes:
        raise ConfigError(
            f"--take-new deletes topic {topic!r} here with {counted(len(rows), 'partition')}, and the source may not "
            f"have these records any more: copy them first (klamm consume {topic}), then add --yes"
        )
    before = read_image(coordination).topics[topic].topic_id
    client.delete_topics([topic])

    def is_new() -> bool:
        found = read_image(coordination).topics.get(topic)
        return found is not None and found.topic_id != before

    wait_until(is_new, f"{topic} was deleted, but is not copied again; see `klamm mirror status {link}`")
    if not as_json:
        say(f"mirror {link}: {topic} was deleted, and is copied from the source's start")
