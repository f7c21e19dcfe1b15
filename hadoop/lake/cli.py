"""`klamm lake`: what a lake holds, and the proof that it is whole; without Spark and without a JVM."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from klamm.core.cli.options import DEFAULT_CONFIG, ConfigFile, console, named, table
from klamm.core.config.settings import load_settings
from klamm.core.errors import ConfigError, KlammError
from klamm.hadoop.audit import read_audit
from klamm.hadoop.lake.files import LakeFiles, lake_files
from klamm.hadoop.lake.listing import LoadEntry, load_of, loads_of, spans
from klamm.hadoop.lake.verify import Bounds, TopicProof, topics_of, verify_topic
from klamm.hadoop.layout import TopicLayout
from klamm.hadoop.sinks import choose
from klamm.plugins.sinks.hadoop import HadoopSinkConfig

DAMAGED = 3
"""The exit status of `verify` when it found damage; 1 when it could not read the lake."""

app = typer.Typer(add_completion=False, no_args_is_help=True, help="List a lake's loads, and prove that it is whole.")

LakeArgument = Annotated[
    str | None, typer.Argument(metavar="SINK|PATH", help="A sink of the file, or the lake's path or URI.")
]
LakeOption = Annotated[
    str | None, typer.Option("--lake", "-l", metavar="SINK|PATH", help="A sink of the file, or the lake's path or URI.")
]
WebHdfs = Annotated[
    str | None, typer.Option("--webhdfs", metavar="URL", help="Where the NameNode answers WebHDFS; else webhdfs.url.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


@dataclass(frozen=True)
class Lake:
    """A lake that a user named. `bounds` are the sink's; None where only the path is known."""

    root: str
    files: LakeFiles
    bounds: Bounds | None


@app.command("ls")
def list_topics(
    lake: LakeArgument = None, config: ConfigFile = DEFAULT_CONFIG, webhdfs: WebHdfs = None, as_json: Json = False
) -> None:
    """The lake's topics: loads, rows, files, bytes, offsets, and when the newest load was made."""
    opened = open_lake(config, lake, webhdfs)
    rows = [_topic_row(opened, topic) for topic in _topics(opened)]
    _print(rows, as_json, ("topic", "loads", "rows", "files", "bytes", "offsets", "created"))


@app.command("show")
def show(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    load: Annotated[int | None, typer.Option("--load", metavar="N", min=1, help="One load in detail.")] = None,
    lake: LakeOption = None,
    config: ConfigFile = DEFAULT_CONFIG,
    webhdfs: WebHdfs = None,
    as_json: Json = False,
) -> None:
    """A topic's loads; with --load, that one's offsets, windows and files."""
    opened = open_lake(config, lake, webhdfs)
    layout = _layout(opened, topic)
    if load is not None:
        _show_load(opened, layout, load_of(opened.files, layout, load), as_json)
        return
    rows = [_load_row(entry) for entry in loads_of(opened.files, layout)]
    _print(rows, as_json, ("load", "created", "rows", "files", "bytes", "offsets", "lost", "job"))


@app.command("verify")
def verify(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Only this one.")] = None,
    lake: LakeOption = None,
    config: ConfigFile = DEFAULT_CONFIG,
    webhdfs: WebHdfs = None,
    as_json: Json = False,
) -> None:
    """Re-read all loads and prove that the lake holds each offset once.

    A line for each finding, for each gap that a load recorded, and for each topic. Exit status 0: intact, 3: damaged,
    1: the lake could not be read, so that nothing is proved.
    """
    opened = open_lake(config, lake, webhdfs)
    damaged = False
    for name in [topic] if topic is not None else _topics(opened):
        proof = verify_topic(opened.files, _layout(opened, name), opened.bounds)
        damaged |= bool(proof.findings)
        _tell(proof, as_json)
    if damaged:
        raise typer.Exit(DAMAGED)


def open_lake(config: Path, lake: str | None, webhdfs: str | None) -> Lake:
    """By a sink's name, or by a path, for which no file is needed. `ConfigError` when it is neither."""
    if lake is not None and _is_path(lake):
        root = lake.rstrip("/") or "/"
        if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", root):
            root = str(Path(root).expanduser().absolute())
        return Lake(root, lake_files(root, webhdfs), None)
    if lake is not None and not named(config):
        raise ConfigError(f"{config}: not found, so that {lake!r} names no sink; a path has a slash, as in ./{lake}")
    settings = load_settings(config)
    if lake is not None and lake not in settings.sinks:
        known = ", ".join(settings.sinks) or "none"
        raise ConfigError(
            f"{config}: there is no sink {lake!r} (there are: {known}); a path has a slash, as in ./{lake}"
        )
    _, chosen = choose(settings, lake)
    sink = chosen.choice.config
    if not isinstance(sink, HadoopSinkConfig):  # `choose` has seen to it
        raise ConfigError(f"{lake} is no sink with `plugin: hadoop`")
    bounds = Bounds(*(int(t.timestamp() * 1_000_000) for t in (sink.timestamp_min, sink.timestamp_max)))
    return Lake(sink.path, lake_files(sink.path, webhdfs or sink.webhdfs_url), bounds)


def _is_path(text: str) -> bool:
    return "/" in text or text in (".", "..", "~")


def _topics(lake: Lake) -> list[str]:
    """`KlammError` when there is none: a mistyped path looks like an empty lake, of which nothing is proved."""
    topics = topics_of(lake.files, lake.root)
    if not topics:
        raise KlammError(f"{lake.root}: no topic of a lake is there: is the path right, and has a load been published?")
    return topics


def _layout(lake: Lake, topic: str) -> TopicLayout:
    """`ConfigError` when the lake has other topics; `KlammError` when it has none, or is not there."""
    layout = TopicLayout(lake.root, topic)
    if not lake.files.names(layout.base):
        known = ", ".join(_topics(lake))
        raise ConfigError(f"{lake.root}: there is no topic {topic!r} (there are: {known})")
    return layout


def _topic_row(lake: Lake, topic: str) -> dict[str, Any]:
    loads = loads_of(lake.files, TopicLayout(lake.root, topic))
    return {
        "topic": topic,
        "loads": len(loads),
        "rows": sum(load.manifest.rows for load in loads),
        "files": sum(len(load.files) for load in loads),
        "bytes": sum(load.bytes for load in loads),
        "offsets": _spans(spans(load.manifest for load in loads)),
        "created": loads[-1].created.isoformat(timespec="seconds") if loads else None,
    }


def _load_row(entry: LoadEntry) -> dict[str, Any]:
    manifest = entry.manifest
    lost = {n: (p.start, p.lost_to) for n, p in manifest.partitions.items() if p.lost_to is not None}
    return {
        "load": manifest.load,
        "created": entry.created.isoformat(timespec="seconds"),
        "rows": manifest.rows,
        "files": len(entry.files),
        "bytes": entry.bytes,
        "offsets": _spans({n: (p.start, p.end) for n, p in manifest.partitions.items()}),
        "lost": _spans(lost),
        "job": manifest.job_id,
    }


def _show_load(lake: Lake, layout: TopicLayout, entry: LoadEntry, as_json: bool) -> None:
    audit = read_audit(lake.files, layout, entry.number)
    manifest = entry.manifest
    if as_json:
        said = {"manifest": manifest.model_dump(mode="json", by_alias=True), "audit": audit.model_dump(mode="json")}
        typer.echo(json.dumps({**said, "files": [{"name": name, "bytes": size} for name, size in entry.files]}))
        return
    facts = {**_load_row(entry), "topic id": manifest.topic_id, "cluster": manifest.cluster_id, "owner": audit.owner}
    for name, value in facts.items():
        typer.echo(f"{name}: {'' if value is None else value}")
    _print(
        [
            {"partition": r.partition, "offsets": f"{r.start}-{r.end}", "window": start, "rows": count, "bytes": size}
            for r in audit.ranges
            for start, count, size in r.windows
        ],
        False,
        ("partition", "offsets", "window", "rows", "bytes"),
    )
    _print([{"file": name, "bytes": size} for name, size in entry.files], False, ("file", "bytes"))


def _tell(proof: TopicProof, as_json: bool) -> None:
    if as_json:
        state = "damaged" if proof.findings else "intact"
        typer.echo(json.dumps({"state": state, **asdict(proof)}))
        return
    for line in (*(f.line() for f in proof.findings), *(g.line() for g in proof.gaps), proof.line()):
        typer.echo(line)


def _print(rows: list[dict[str, Any]], as_json: bool, columns: tuple[str, ...]) -> None:
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
        return
    numbers = tuple(c for c in columns if c in ("load", "loads", "rows", "files", "bytes", "partition", "window"))
    made = table(*columns, right=numbers)
    for row in rows:
        made.add_row(*("" if row[c] is None else str(row[c]) for c in columns))
    console().print(made)


def _spans(found: Mapping[int, tuple[int, int | None]]) -> str:
    return ",".join(f"{partition}:{start}-{end}" for partition, (start, end) in sorted(found.items()))
