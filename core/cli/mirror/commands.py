"""`klamm mirror`: links to clusters whose topics this one mirrors (docs/mirror.md)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ...errors import ConfigError, KlammError
from ...records.partition import TopicPartition, counted, some_of
from ..options import DEFAULT_CONFIG, ConfigFile, interval_s, settings_of
from ..output import Json, say, say_json, say_rows
from .adopt import adopt, promotions
from .links import (
    NO_REPORT,
    POLL_S,
    DryRun,
    Link,
    Topics,
    change_topics,
    link_of,
    mirror_coordination,
    name_of,
    partitions_of,
    reaches_end,
    topics_of,
)
from .promotion import fail_over, promote
from .resolve import STOPPED, resolve

__all__ = ["app"]

_NOT_COPIED: Final = (*STOPPED, NO_REPORT, "SOURCE_UNREACHABLE", "FAILED")

app = typer.Typer(add_completion=False, help="Follow topics of another cluster.", no_args_is_help=True)


@app.command()
def create(link: Link, dry_run: DryRun = False, config: ConfigFile = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """Store the link that the file defines under `mirrors`; brokers begin to follow it within seconds. A link that is
    stored already gets the file's definition."""
    from ...cluster.mirrors import LinkNode, link_path, read_links, read_topics, update

    settings = settings_of(config, None)
    section = settings.mirrors.get(link)
    if section is None:
        known = ", ".join(sorted(settings.mirrors)) or "none"
        raise ConfigError(f"{settings.source}: mirrors.{link}: there is no such link (there are: {known})")
    keys = section.to_dict()

    def define(node: LinkNode | None) -> LinkNode:
        return LinkNode(config=keys) if node is None else node.model_copy(update={"config": keys})

    with mirror_coordination(config) as coordination:
        before = read_links(coordination).get(link)
        former = None if before is None else before.config.get("prefix", "")
        if former not in (None, section.prefix) and read_topics(coordination, link):
            raise ConfigError(
                f"{settings.source}: mirrors.{link}.prefix: the link's topics here begin with {former!r}: define "
                "another link for another prefix"
            )
        if not dry_run:
            update(coordination, link_path(link), LinkNode, define)
    source = ",".join(section.bootstrap_servers)
    _say(
        f"mirror {link} {'would follow' if dry_run else 'follows'} {source}",
        {"link": link, "source": source, "created": not dry_run}, as_json=as_json,
    )  # fmt: skip


def _say(line: str, values: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        say_json(values)
    else:
        say(line)


@app.command("list")
def list_(config: ConfigFile = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """List the links."""
    from ...cluster.mirrors import read_links, read_topics

    with mirror_coordination(config) as coordination:
        rows = [
            {
                "link": name,
                "source": ",".join(node.config.get("bootstrap.servers", ())),
                "cluster": node.source_cluster_id,
                "topics": len(read_topics(coordination, name)),
                "paused": node.paused,
            }
            for name, node in read_links(coordination).items()
        ]
    say_rows(("link", "source", "cluster", "topics", "paused"), rows, as_json)


@app.command()
def status(
    link: Link,
    wait: Annotated[
        str | None,
        typer.Option("--wait", metavar="TIME", help="Wait this long (90s, 10m) until every partition is FOLLOWING."),
    ] = None,
    topic: Topics = None,
    config: ConfigFile = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Show each mirrored partition, what was found in it, and the topics that are not mirrored.

    The exit status is 1 if a topic is refused, the link has a problem, a partition has stopped or is not reported, or
    nothing is mirrored; with --wait, also if a partition is not FOLLOWING when the time is over.
    """
    limit_s = None if wait is None else interval_s("--wait", wait)
    with mirror_coordination(config) as coordination:
        until = time.monotonic() + (limit_s or 0)
        found = partitions_of(coordination, link, topic)
        while limit_s is not None and not reaches_end(found) and time.monotonic() < until:
            time.sleep(POLL_S)
            found = partitions_of(coordination, link, topic)
    if as_json:
        say_json(found)
    else:
        say_rows(("topic", "partition", "status", "end", "source_end", "lag", "broker"), iter(found["partitions"]))
        for line in _findings(found):
            say(line)
    stopped = [row for row in found["partitions"] if row["reason"] or row["status"] in _NOT_COPIED]
    if stopped or found["refused"] or found["problems"]:
        raise KlammError(f"mirror {link} does not copy everything; see above")
    known = {row["topic"] for row in found["partitions"]} | found["left_out"].keys()
    if missing := [name for name in topic or () if name not in known]:
        raise KlammError(f"mirror {link} has no topic {missing[0]!r} (it has: {', '.join(sorted(known)) or 'none'})")
    if not known:
        raise KlammError(
            f"mirror {link} has no topic: no broker here has read the source's topics yet, or the link selects none"
        )
    if limit_s is not None and not reaches_end(found):
        raise KlammError(f"mirror {link} has not caught up after {wait}")


def _findings(found: dict[str, Any]) -> Iterator[str]:
    for row in found["partitions"]:
        name = name_of(row)
        for start, end in row["gaps"]:
            yield f"{name}: the source had deleted offsets {start} to {end - 1} before they were copied"
        for cut in row["cuts"]:
            yield (
                f"{name}: the source does not have offsets {cut['start']} to {cut['end'] - 1}; broker {cut['broker']} "
                f"keeps them in {cut['path']}"
            )
        if row["reason"]:
            yield f"{name}: {row['reason']}"
        elif row["status"] == "SOURCE_UNREACHABLE":
            yield f"{name}: no broker of the source serves it now"
        if row["status"] == "SOURCE_REPLACED":
            yield f"{name}: the source's topic is another one: --take-new of `klamm mirror resolve` copies it"
        elif row["status"] == "STALE":
            yield (
                f"{name}: not copied for longer than delete.retention.ms, so keys that the source has deleted may "
                "remain: --take-new of `klamm mirror resolve` copies it again"
            )
        elif row["status"] in STOPPED:
            yield f"{name}: {row['status']} at offset {row['end']}: `klamm mirror resolve --continue` goes on"
    for topic in sorted({row["topic"] for row in found["partitions"] if row["promoting"]}):
        yield f"topic {topic} is to be promoted: the controller of this cluster does it as soon as it can"
    silent = [TopicPartition(row["topic"], row["partition"]) for row in found["partitions"] if _is_silent(row)]
    if silent:
        yield f"{some_of(silent)}: no broker leads it, or its leader has not reported it yet; is every broker here up?"
    for topic, why in found["refused"].items():
        yield f"topic {topic}: {why}"
    for topic, why in found["left_out"].items():
        yield f"topic {topic} is left out: {why}"
    for broker, problem in found["problems"].items():
        yield f"broker {broker}: {problem}"


def _is_silent(row: dict[str, Any]) -> bool:
    return bool(row["status"] == NO_REPORT)


@app.command()
def pause(
    link: Link,
    topic: Topics = None,
    dry_run: DryRun = False,
    config: ConfigFile = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Stop copying, of the whole link or of topics."""
    _set_paused(link, topic, config, paused=True, dry_run=dry_run, as_json=as_json)


@app.command()
def resume(
    link: Link,
    topic: Topics = None,
    dry_run: DryRun = False,
    config: ConfigFile = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Copy again what was paused."""
    _set_paused(link, topic, config, paused=False, dry_run=dry_run, as_json=as_json)


def _set_paused(
    link: str, topics: list[str] | None, config: Path, *, paused: bool, dry_run: bool, as_json: bool
) -> None:
    from ...cluster.mirrors import LinkNode, link_path, update

    with mirror_coordination(config) as coordination:
        link_of(coordination, link)
        names = list(topics_of(coordination, link, topics))
        if dry_run:
            pass
        elif topics:
            change_topics(coordination, link, topics, {"paused": paused})
        else:
            update(
                coordination, link_path(link), LinkNode,
                lambda node: None if node is None else node.model_copy(update={"paused": paused}),
            )  # fmt: skip
    what = ", ".join(topics) if topics else "all topics"
    verb = f"{'would be ' if dry_run else ''}{'paused' if paused else 'resumed'}"
    values = {"link": link, "topics": names, "paused": paused, "changed": not dry_run}
    _say(f"mirror {link}: {what} {verb}", values, as_json=as_json)


@app.command()
def drop(link: Link, dry_run: DryRun = False, config: ConfigFile = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """Remove a link that has no mirror topics any more: promote or delete them first."""
    from ...cluster.image_reader import read_image
    from ...cluster.mirrors import remove_link

    with mirror_coordination(config) as coordination:
        link_of(coordination, link)
        topics = read_image(coordination).topics.values()
        left = [each.name for each in topics if any(p.state.mirror == link for p in each.partitions.values())]
        if left:
            raise ConfigError(
                f"mirror {link} has {counted(len(left), 'topic')} ({', '.join(left[:5])}): promote them first, or "
                "pause the link and delete them"
            )
        if not dry_run:
            remove_link(coordination, link)
    _say(
        f"mirror {link} {'would be dropped' if dry_run else 'dropped'}", {"link": link, "dropped": not dry_run},
        as_json=as_json,
    )  # fmt: skip


app.command()(promote)
app.command("fail-over")(fail_over)
app.command()(resolve)
app.command()(promotions)
app.command()(adopt)
