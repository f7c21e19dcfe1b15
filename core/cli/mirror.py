"""`klamm mirror`: links to clusters whose topics this one mirrors (docs/mirror.md)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ..errors import ConfigError, KlammError
from ..records.partition import counted
from .options import DEFAULT_CONFIG, TIMEOUT_S, ConfigFile, interval_s, settings_of
from .output import Json, say, say_json, say_rows

if TYPE_CHECKING:
    from ..cluster.mirrors import LinkNode, MirrorTopicNode
    from ..interfaces.coordination import Coordination

__all__ = ["app"]

app = typer.Typer(add_completion=False, help="Follow topics of another cluster.", no_args_is_help=True)
Link = Annotated[str, typer.Argument(metavar="LINK", help="The link's name.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic; repeatable.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
_POLL_S: Final = 0.1
_WAIT_S: Final = 60.0


@contextmanager
def _coordination(config: Path) -> Iterator[Coordination]:
    found = settings_of(config, None).make_coordination()
    found.start(TIMEOUT_S)
    try:
        yield found
    finally:
        found.close()


@app.command()
def create(link: Link, dry_run: DryRun = False, config: ConfigFile = DEFAULT_CONFIG) -> None:
    """Store the link that the file defines under `mirrors`; brokers begin to follow it within seconds. A link that is
    stored already gets the file's definition."""
    from ..cluster.mirrors import LinkNode, link_path, update

    settings = settings_of(config, None)
    section = settings.mirrors.get(link)
    if section is None:
        known = ", ".join(sorted(settings.mirrors)) or "none"
        raise ConfigError(f"{settings.source}: mirrors.{link}: there is no such link (there are: {known})")
    keys = section.to_dict()

    def define(node: LinkNode | None) -> LinkNode:
        return LinkNode(config=keys) if node is None else node.model_copy(update={"config": keys})

    if not dry_run:
        with _coordination(config) as coordination:
            update(coordination, link_path(link), LinkNode, define)
    say(f"mirror {link} {'would follow' if dry_run else 'follows'} {','.join(section.bootstrap_servers)}")


@app.command("list")
def list_(config: ConfigFile = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """List the links."""
    from ..cluster.mirrors import read_links, read_topics

    with _coordination(config) as coordination:
        rows = [
            {
                "link": name,
                "source": ",".join(node.config["bootstrap.servers"]),
                "cluster": node.source_cluster_id,
                "topics": len(read_topics(coordination, name)),
                "paused": node.paused,
            }
            for name, node in read_links(coordination).items()
        ]
    if as_json:
        say_json(rows)
    else:
        say_rows(("link", "source", "cluster", "topics", "paused"), iter(rows))


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

    The exit status is 1 if a topic is refused, the link has a problem, or a partition has stopped; with --wait, also if
    one is not FOLLOWING when the time is over.
    """
    limit_s = None if wait is None else interval_s("--wait", wait)
    with _coordination(config) as coordination:
        until = time.monotonic() + (limit_s or 0)
        found = _status(coordination, link, topic)
        while limit_s is not None and not _follows(found) and time.monotonic() < until:
            time.sleep(_POLL_S)
            found = _status(coordination, link, topic)
    if as_json:
        say_json(found)
    else:
        say_rows(("topic", "partition", "status", "end", "source_end", "lag", "broker"), iter(found["partitions"]))
        for line in _findings(found):
            say(line)
    stopped = [row for row in found["partitions"] if row["status"] in ("DIVERGED", "GAP", "SOURCE_REPLACED")]
    if stopped or found["refused"] or found["problems"]:
        raise KlammError(f"mirror {link} does not copy everything; see above")
    if limit_s is not None and not _follows(found):
        raise KlammError(f"mirror {link} has not caught up after {wait}")


def _follows(found: dict[str, Any]) -> bool:
    rows = found["partitions"]
    return bool(rows) and len(rows) == found["expected"] and all(row["status"] == "FOLLOWING" for row in rows)


def _status(coordination: Coordination, link: str, only: list[str] | None) -> dict[str, Any]:
    from ..cluster.image_reader import read_image
    from ..cluster.mirrors import read_reports, read_topics

    _link(coordination, link)
    image, topics, reports = read_image(coordination), read_topics(coordination, link), read_reports(coordination, link)
    rows, expected = [], 0
    for name, node in topics.items():
        known = image.topics.get(name)
        if known is None or (only and name not in only):
            continue
        for number, partition in sorted(known.partitions.items()):
            if partition.state.mirror != link:
                continue
            expected += 1
            report = (
                reports[partition.leader].partitions.get(name, {}).get(number) if partition.leader in reports else None
            )
            if report is not None:
                rows.append(
                    {
                        "topic": name, "partition": number, "status": report.status, "end": report.end,
                        "source_end": report.source_end, "lag": report.lag, "broker": partition.leader,
                        "gaps": [list(gap) for gap in node.gaps.get(number, ())],
                        "cuts": [cut.model_dump() for cut in node.cuts if cut.partition == number],
                    }
                )  # fmt: skip
    refused = {topic: why for report in reports.values() for topic, why in report.refused.items()}
    problems = {broker: report.problem for broker, report in reports.items() if report.problem}
    return {"link": link, "expected": expected, "partitions": rows, "refused": refused, "problems": problems}


def _findings(found: dict[str, Any]) -> Iterator[str]:
    for row in found["partitions"]:
        name = f"{row['topic']}-{row['partition']}"
        for start, end in row["gaps"]:
            yield f"{name}: the source had deleted offsets {start} to {end - 1} before they were copied"
        for cut in row["cuts"]:
            yield (
                f"{name}: the source has lost offsets {cut['start']} to {cut['end'] - 1}; broker {cut['broker']} keeps "
                f"them in {cut['path']}"
            )
        if row["status"] == "SOURCE_REPLACED":
            yield f"{name}: the source's topic is another one; delete {row['topic']} here to copy it, or promote it"
    for topic, why in found["refused"].items():
        yield f"topic {topic} is not mirrored: {why}"
    for broker, problem in found["problems"].items():
        yield f"broker {broker}: {problem}"


@app.command()
def pause(link: Link, topic: Topics = None, config: ConfigFile = DEFAULT_CONFIG) -> None:
    """Stop copying, of the whole link or of topics."""
    _set_paused(link, topic, config, paused=True)


@app.command()
def resume(link: Link, topic: Topics = None, config: ConfigFile = DEFAULT_CONFIG) -> None:
    """Copy again what was paused."""
    _set_paused(link, topic, config, paused=False)


def _set_paused(link: str, topics: list[str] | None, config: Path, *, paused: bool) -> None:
    from ..cluster.mirrors import LinkNode, link_path, update

    with _coordination(config) as coordination:
        _link(coordination, link)
        if topics:
            _change_topics(coordination, link, topics, {"paused": paused})
        else:
            update(
                coordination, link_path(link), LinkNode,
                lambda node: None if node is None else node.model_copy(update={"paused": paused}),
            )  # fmt: skip
    what = ", ".join(topics) if topics else "all topics"
    say(f"mirror {link}: {what} {'paused' if paused else 'resumed'}")


@app.command()
def promote(
    link: Link,
    topic: Topics = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="Wait first until every partition has all that the source has committed.")
    ] = False,
    dry_run: DryRun = False,
    config: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """End the mirror of topics, of all without --topic, so that clients write them here. This cannot be undone: the
    topics go on as ordinary ones.

    With --drain stop the writers at the source first. Without it, the records that were not copied are missing here.
    """
    from ..cluster.image_reader import read_image
    from ..cluster.mirrors import read_topics

    with _coordination(config) as coordination:
        _link(coordination, link)
        names = topic or sorted(read_topics(coordination, link))
        if drain and not dry_run:
            _until(lambda: _follows(_status(coordination, link, names)), f"mirror {link} has not caught up")
        for row in _status(coordination, link, names)["partitions"]:
            say(
                f"{row['topic']}-{row['partition']}: ends at {row['end']}, the source at {row['source_end']} when it "
                f"last answered: {max(row['lag'], 0)} missing"
            )
        if dry_run:
            return
        _change_topics(coordination, link, names, {"promote": True})

        def done() -> bool:
            found = read_image(coordination).topics
            return not any(p.state.mirror for name in names if name in found for p in found[name].partitions.values())

        _until(done, "the controller has not promoted them; is a broker of this cluster up?")
    say(f"mirror {link}: {counted(len(names), 'topic')} promoted")


@app.command()
def drop(link: Link, config: ConfigFile = DEFAULT_CONFIG) -> None:
    """Remove a link that has no mirror topics any more: promote or delete them first."""
    from ..cluster.image_reader import read_image
    from ..cluster.mirrors import remove_link

    with _coordination(config) as coordination:
        _link(coordination, link)
        topics = read_image(coordination).topics.values()
        left = [each.name for each in topics if any(p.state.mirror == link for p in each.partitions.values())]
        if left:
            raise ConfigError(
                f"mirror {link} has {counted(len(left), 'topic')} ({', '.join(left[:5])}): promote them first, or "
                "pause the link and delete them"
            )
        remove_link(coordination, link)
    say(f"mirror {link} dropped")


def _link(coordination: Coordination, link: str) -> LinkNode:
    from ..cluster.mirrors import read_links

    links = read_links(coordination)
    if link not in links:
        raise ConfigError(f"there is no mirror {link!r} (there are: {', '.join(links) or 'none'})")
    return links[link]


def _change_topics(coordination: Coordination, link: str, topics: list[str], changes: dict[str, Any]) -> None:
    from ..cluster.mirrors import MirrorTopicNode, read_topics, topic_path, update

    known = read_topics(coordination, link)
    for name in topics:
        if name not in known:
            raise ConfigError(f"mirror {link} has no topic {name!r} (it has: {', '.join(known) or 'none'})")

    def change(node: MirrorTopicNode | None) -> MirrorTopicNode | None:
        return None if node is None else node.model_copy(update=changes)

    for name in topics:
        update(coordination, topic_path(link, name), MirrorTopicNode, change)


def _until(reached: Callable[[], bool], otherwise: str) -> None:
    until = time.monotonic() + _WAIT_S
    while not reached():
        if time.monotonic() > until:
            raise KlammError(f"{otherwise} after {_WAIT_S:g} s")
        time.sleep(_POLL_S)
