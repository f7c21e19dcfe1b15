"""`klamm lake`: lists and verifies a lake without Spark and without a JVM; compacts it and removes garbage, with them
where needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer
from pydantic import ValidationError
from rich.console import Console

from klamm.core.cli.options import DEFAULT_CONFIG, ConfigFile, named
from klamm.core.cli.output import Json, say, say_json, say_on, say_rows
from klamm.core.config.problems import problems_of
from klamm.core.config.settings import load_settings
from klamm.core.config.units import parse_time
from klamm.core.errors import ConfigError, KlammError
from klamm.core.extras import importing

from ..load.audit import read_audit
from ..publishing.interface import LakeError, LakeReader, LakeUnavailableError, check_root
from .config import HDFS_SCHEME, LakeConfig, choose_lake, size_in_bytes
from .files import LakeFiles, lake_files
from .generations.generation import Generation, generation_numbers, generation_of, generations_of
from .layout import TopicLayout
from .listing import LoadEntry, load_of, loads_of, spans
from .local_time import micros
from .manifest import check_topic
from .verification.findings import Bounds, TopicProof, window_text
from .verification.verify import topics_of, verify_topic

if TYPE_CHECKING:
    from .generations.compact import CompactResult

DAMAGED = 3
"""The exit status of `verify` when it has found damage; it is 1 when the lake could not be read."""
FEW: Final = 12
ENDS: Final = 5
"""The number of first and of last entries that are shown of a list longer than `FEW`."""

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="List a lake's loads, verify them, merge small files, and remove replaced generations.",
)

LakeArgument = Annotated[
    str | None, typer.Argument(metavar="SINK|PATH", help="A sink in the YAML file, or the lake's path or URI.")
]
LakeOption = Annotated[
    str | None,
    typer.Option("--lake", "-l", metavar="SINK|PATH", help="A sink in the YAML file, or the lake's path or URI."),
]
WebHdfs = Annotated[
    str | None,
    typer.Option("--webhdfs", metavar="URL", help="The NameNode's WebHDFS address; webhdfs.url if not given."),
]
All = Annotated[
    bool,
    typer.Option(
        "--all", "-a", help="Print all partitions, windows and files, not only the first and last of a long list."
    ),
]


@dataclass(frozen=True)
class Lake:
    """A lake that a user named by a sink, or by its path; with a path, `config` has defaults and `bounds` are
    unknown."""

    config: LakeConfig
    webhdfs: str | None
    bounds: Bounds | None

    @property
    def root(self) -> str:
        return self.config.path

    @cached_property
    def files(self) -> LakeFiles:
        return lake_files(self.root, self.webhdfs)


@app.command("ls")
def list_topics(
    lake: LakeArgument = None, config: ConfigFile = DEFAULT_CONFIG, webhdfs: WebHdfs = None, as_json: Json = False
) -> None:
    """List the lake's topics: loads, rows, files, bytes, offsets, and when the newest load was made."""
    opened = open_lake(config, lake, webhdfs)
    rows = [_topic_row(opened, topic) for topic in _topics(opened.files, opened.root)]
    say_rows(("topic", "loads", "rows", "files", "bytes", "offsets", "created", "generation"), rows, as_json)


@app.command("show")
def show(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    load: Annotated[int | None, typer.Option("--load", metavar="N", min=1, help="Show this load in detail.")] = None,
    generation: Annotated[
        int | None, typer.Option("--generation", metavar="N", min=1, help="Show this generation in detail.")
    ] = None,
    lake: LakeOption = None,
    config: ConfigFile = DEFAULT_CONFIG,
    webhdfs: WebHdfs = None,
    as_json: Json = False,
    all_: All = False,
) -> None:
    """Show a topic's loads and generations.

    With --load: the offsets, windows and files of that load. With --generation: the loads and files of that generation.
    """
    opened = open_lake(config, lake, webhdfs)
    layout = _layout(opened.files, opened.root, topic)
    if load is not None:
        _show_load(opened, layout, load_of(opened.files, layout, load), as_json, None if all_ else FEW)
        return
    if generation is not None:
        _show_generation(generation_of(opened.files, layout, generation), as_json, None if all_ else FEW)
        return
    few = None if all_ or as_json else FEW
    rows = [_load_row(entry, few) for entry in loads_of(opened.files, layout)]
    say_rows(("load", "created", "rows", "files", "bytes", "offsets", "lost", "job"), rows, as_json)
    merged = [_generation_row(found) for found in generations_of(opened.files, layout)]
    if merged:
        say_rows(("generation", "created", "loads", "rows", "files", "bytes", "job"), merged, as_json)


@app.command("verify")
def verify(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Only this topic; all if not given.")] = None,
    lake: LakeOption = None,
    config: ConfigFile = DEFAULT_CONFIG,
    webhdfs: WebHdfs = None,
    as_json: Json = False,
) -> None:
    """Re-read all loads and generations, and prove that the lake holds each offset once.

    A line for each finding, for each gap that a load recorded, and for each topic. Exit status 0: intact, 3: damaged,
    1: the lake could not be read, so that nothing is proved.
    """
    opened = open_lake(config, lake, webhdfs)
    damaged = False
    for name in [topic] if topic is not None else _topics(opened.files, opened.root):
        proof = verify_topic(opened.files, _layout(opened.files, opened.root, name), opened.bounds)
        damaged |= bool(proof.findings)
        _tell(proof, as_json)
    if damaged:
        raise typer.Exit(DAMAGED)


@app.command("compact")
def compact(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Only this topic; all if not given.")] = None,
    lake: LakeOption = None,
    config: ConfigFile = DEFAULT_CONFIG,
    target_file_size: Annotated[
        str | None,
        typer.Option(
            "--target-file-size",
            metavar="SIZE",
            help="The size of the merged files, such as 512m; target.file.size if not given.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Merge a topic's loads into larger files: a new generation, published in one rename.

    The loads stay as they are. Needs Spark, and Java 17. A topic that fails does not keep the others from being
    compacted; the exit status is 1 then.
    """
    with importing("klamm lake compact", "klamm[spark]"):
        from ..session import require_java
    from .generations.maintenance import Maintenance

    opened = open_lake(config, lake, None)
    size = None if target_file_size is None else _parsed("--target-file-size", target_file_size, _file_size)
    require_java()
    errors = Console(stderr=True)
    failed: list[str] = []
    with Maintenance(opened.config, errors) as maintenance:
        topics = _chosen_topics(maintenance.publisher, opened.root, topic)
        for name in topics:
            try:
                _tell_compacted(name, maintenance.compact(name, size), as_json)
            except KlammError as error:
                failed.append(name)
                say_on(errors, f"klamm: compaction of {name}: {error}")
    if failed:
        raise KlammError(f"{len(failed)} of {len(topics)} topics not compacted: {', '.join(failed)}")


@app.command("gc")
def collect_garbage(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Only this topic; all if not given.")] = None,
    lake: LakeOption = None,
    config: ConfigFile = DEFAULT_CONFIG,
    older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE", help="Remove a generation if the one that replaces it is older than this: 30m, 12h, 7d."
        ),
    ] = "7d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Print what would be removed, and remove nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove replaced generations, and files left by jobs that died. Loads are never removed.

    On hdfs: it needs Java 17.
    """
    from .generations.maintenance import Maintenance

    opened = open_lake(config, lake, None)
    seconds = _parsed("--older-than", older_than, _age)
    with Maintenance(opened.config, Console(stderr=True)) as maintenance:
        for name in _chosen_topics(maintenance.publisher, opened.root, topic):
            for item in maintenance.collect(name, seconds, dry_run):
                if as_json:
                    say_json({**asdict(item), "dry_run": dry_run})
                else:
                    say(item.line(dry_run))


def _age(text: str) -> int:
    try:
        return parse_time("" if text.strip().isdigit() else text, "seconds")
    except ValueError:
        raise ValueError(f"expected an age such as 30m, 12h or 7d, got {text!r}") from None


def _file_size(text: str) -> int:
    size: int = size_in_bytes(text)
    if not size:
        raise ValueError(f"expected a size above 0, got {text!r}")
    return size


def _parsed(option: str, text: str, parse: Callable[[str], int]) -> int:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from error


def open_lake(config: Path, lake: str | None, webhdfs: str | None) -> Lake:
    """Finds the lake by a sink's name, or by a path, which needs no file. Raises `ConfigError` if it is neither, or
    if no lake can exist there."""
    if lake is not None and _is_path(lake):
        placed = _placed(lake)
        return Lake(placed, webhdfs or _webhdfs_of(config, placed.path), None)
    if lake is not None and not named(config):
        raise ConfigError(f"{config}: not found, so that {lake!r} names no sink; a path has a slash, as in ./{lake}")
    settings = load_settings(config)
    if lake is not None and lake not in settings.sinks:
        known = ", ".join(settings.sinks) or "none"
        raise ConfigError(
            f"{config}: there is no sink {lake!r} (there are: {known}); a path has a slash, as in ./{lake}"
        )
    name, chosen = choose_lake(settings, lake)
    sink = chosen.choice.config
    if not isinstance(sink, LakeConfig):  # `choose_lake` has checked it
        raise ConfigError(f"{lake} is not a sink with `plugin: hadoop`")
    if (found := sink.local_file_in_the_way()) is not None:
        raise ConfigError(f"{settings.source}: sinks.{name}.path: {found}")
    bounds = Bounds(micros(sink.timestamp_min), micros(sink.timestamp_max))
    return Lake(sink, webhdfs or sink.webhdfs_url, bounds)


def _placed(path: str) -> LakeConfig:
    """A lake at a path that the user named."""
    try:
        made = LakeConfig.model_validate({"path": path})
    except ValidationError as error:
        [problem] = problems_of(error, LakeConfig, {"path": path})
        raise ConfigError(problem.message) from error
    if (found := made.local_file_in_the_way()) is not None:
        raise ConfigError(found)
    return made


def _webhdfs_of(config: Path, path: str) -> str | None:
    """The `webhdfs.url` in the file, of the sink whose path is this lake or contains it; None without one."""
    if urlsplit(path).scheme != HDFS_SCHEME or not named(config):
        return None
    sinks = (sink.choice.config for sink in load_settings(config).sinks.values())
    lakes = (sink for sink in sinks if isinstance(sink, LakeConfig) and sink.webhdfs_url)
    near = [sink for sink in lakes if f"{path}/".startswith(f"{sink.path}/")]
    return max(near, key=lambda sink: len(sink.path)).webhdfs_url if near else None


def _is_path(text: str) -> bool:
    return "/" in text or text in (".", "..", "~")


def _topics(files: LakeReader, root: str) -> list[str]:
    """Returns the lake's topics. Raises `KlammError` if there is none: a mistyped path looks like an empty lake, which
    proves nothing.
    """
    try:
        topics = topics_of(files, root)
    except LakeUnavailableError:
        raise
    except LakeError:
        check_root(files, root)
        raise
    if not topics:
        check_root(files, root)
        raise KlammError(f"{root}: no topic of a lake found: is the path right, and has a load been published?")
    return topics


def _chosen_topics(files: LakeReader, root: str, topic: str | None) -> list[str]:
    return _topics(files, root) if topic is None else [_layout(files, root, topic).topic]


def _layout(files: LakeReader, root: str, topic: str) -> TopicLayout:
    """Returns the topic's layout. Raises `ConfigError` if the lake has only other topics; `KlammError` if it has none,
    does not exist, or has a file of the topic's name.
    """
    layout = TopicLayout(root, topic)
    check_topic(files, layout)
    if not files.names(layout.base):
        known = ", ".join(_topics(files, root))
        raise ConfigError(f"{root}: there is no topic {topic!r} (there are: {known})")
    return layout


def _topic_row(lake: Lake, topic: str) -> dict[str, Any]:
    layout = TopicLayout(lake.root, topic)
    loads = loads_of(lake.files, layout)
    return {
        "topic": topic,
        "loads": len(loads),
        "rows": sum(load.manifest.rows for load in loads),
        "files": sum(len(load.files) for load in loads),
        "bytes": sum(load.bytes for load in loads),
        "offsets": _spans(spans(load.manifest for load in loads)),
        "created": loads[-1].created.isoformat(timespec="seconds") if loads else None,
        "generation": max(generation_numbers(lake.files, layout), default=None),
    }


def _load_row(entry: LoadEntry, few: int | None = None) -> dict[str, Any]:
    manifest = entry.manifest
    lost = {n: (p.start, p.lost_to) for n, p in manifest.partitions.items() if p.lost_to is not None}
    return {
        "load": manifest.load,
        "created": entry.created.isoformat(timespec="seconds"),
        "rows": manifest.rows,
        "files": len(entry.files),
        "bytes": entry.bytes,
        "offsets": _spans({n: (p.start, p.end) for n, p in manifest.partitions.items()}, few),
        "lost": _spans(lost, few),
        "job": manifest.job_id,
    }


def _generation_row(generation: Generation) -> dict[str, Any]:
    return {
        "generation": generation.generation,
        "created": generation.created.isoformat(timespec="seconds"),
        "loads": f"{generation.loads[0].load}-{generation.last}",
        "rows": generation.rows,
        "files": len(generation.files),
        "bytes": generation.size,
        "job": generation.job_id,
    }


def _show_generation(generation: Generation, as_json: bool, few: int | None) -> None:
    if as_json:
        say(generation.model_dump_json())
        return
    facts = {**_generation_row(generation), "format": generation.format, "topic id": generation.topic_id}
    for name, value in facts.items():
        say(f"{name}: {'' if value is None else value}")
    rows: list[dict[str, Any]] = []
    for merged in generation.loads:
        ends = _listed([f"{partition}:{end}" for partition, end in sorted(merged.ends.items())], few)
        rows.append({"load": merged.load, "rows": sum(merged.rows.values()), "ends": ends})
    _print_few(rows, ("load", "rows", "ends"), "loads", few)
    _print_few([{"file": file.name, "bytes": file.bytes} for file in generation.files], ("file", "bytes"), "files", few)


def _tell_compacted(topic: str, result: CompactResult | None, as_json: bool) -> None:
    if as_json:
        row = {} if result is None else _generation_row(result.generation)
        if result is not None:
            row |= {"merged_files": result.merged_files, "seconds": round(result.seconds, 1)}
        say_json({"topic": topic, **row})
    elif result is None:
        say(f"compact topic={topic}: nothing new")
    else:
        say(result.line())


def _show_load(lake: Lake, layout: TopicLayout, entry: LoadEntry, as_json: bool, few: int | None) -> None:
    audit = read_audit(lake.files, layout, entry.number)
    manifest = entry.manifest
    if as_json:
        said = {"manifest": manifest.model_dump(mode="json", by_alias=True), "audit": audit.model_dump(mode="json")}
        say_json({**said, "files": [{"name": name, "bytes": size} for name, size in entry.files]})
        return
    facts = {
        **_load_row(entry, few),
        "topic id": manifest.topic_id,
        "cluster": manifest.cluster_id,
        "owner": audit.owner,
    }
    for name, value in facts.items():
        say(f"{name}: {'' if value is None else value}")
    _print_few(
        [
            {
                "partition": r.partition,
                "offsets": f"{r.start}-{r.end}",
                "window": window_text(start),
                "rows": count,
                "bytes": size,
            }
            for r in audit.ranges
            for start, count, size in r.windows
        ],
        ("partition", "offsets", "window", "rows", "bytes"),
        "windows",
        few,
    )
    _print_few([{"file": name, "bytes": size} for name, size in entry.files], ("file", "bytes"), "files", few)


def _tell(proof: TopicProof, as_json: bool) -> None:
    if as_json:
        state = "damaged" if proof.findings else "intact"
        say_json({"state": state, **asdict(proof)})
        return
    for line in (*(f.line() for f in proof.findings), *(g.line() for g in proof.gaps), proof.line()):
        say(line)


def _print_few(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], what: str, few: int | None) -> None:
    """Prints a table; of more than `few` rows, only the first and the last, and a line with the number of rows left
    out."""
    if few is None or len(rows) <= few:
        say_rows(columns, rows)
        return
    say_rows(columns, [*rows[:ENDS], dict.fromkeys(columns, "…"), *rows[-ENDS:]])
    say(f"{len(rows)} {what}, of which the first and last {ENDS} are listed; --all lists all")


def _spans(found: Mapping[int, tuple[int, int | None]], few: int | None = None) -> str:
    return _listed([f"{partition}:{start}-{end}" for partition, (start, end) in sorted(found.items())], few)


def _listed(texts: Sequence[str], few: int | None) -> str:
    """Returns the texts separated by commas; of more than `few` only the first and the last."""
    if few is None or len(texts) <= few:
        return ",".join(texts)
    return ",".join([*texts[:ENDS], f"… {len(texts) - 2 * ENDS} more …", *texts[-ENDS:]])
