"""The plugin `hadoop` of a section of `sinks`: a lake that `klamm load` fills with Spark (design D11)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationInfo,
    model_validator,
)

from klamm.core.config.section import (
    ConfigType,
    Int,
    Long,
    Names,
    Section,
    TimeZone,
    from_folder,
    key,
    to_string,
    wrong_key,
)
from klamm.core.config.units import parse_size
from klamm.core.errors import ConfigError

if TYPE_CHECKING:
    from klamm.core.config.sections.sink import SinkSettings
    from klamm.core.config.settings import Settings

PARTITIONINGS = (("dt",), ("dt", "hr"))
LOCAL_SCHEMES: Final = ("", "file")
HDFS_SCHEME: Final = "hdfs"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_HEAD: Final = re.compile(r"[a-z]+:(//[^/]*)?")
"""The part of a URI before its path."""
_MASTER: Final = re.compile(r"local(\[(\d+|\*)(, ?\d+)?\])?|local-cluster\[.+\]|(spark|k8s)://\S+|yarn")
_MEMORY: Final = re.compile(r"[1-9]\d*[kmgt]|[1-9]\d{6,}", re.IGNORECASE)
_SPARK: Final = "spark."
_HADOOP: Final = ("dfs.", "fs.", "hadoop.", "yarn.", "mapreduce.", "io.", "ipc.")
"""Prefixes of keys of Hadoop's own configuration."""


def _lake(value: Any, info: ValidationInfo) -> Any:
    """Returns a URI without a trailing slash, or an absolute path; a relative path is relative to the YAML file's
    folder.
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError("expected a path or a URI such as hdfs://namenode:8020/lake")
    if _SCHEME.match(value) and not re.match(r"file:[^/]", value):
        return _uri(value)
    return str(from_folder(value.removeprefix("file:"), info).absolute())


def _uri(text: str) -> str:
    scheme, _, rest = text.partition(":")
    scheme = scheme.lower()
    uri = f"{scheme}:{rest.rstrip('/')}"
    # other schemes are refused where the lake is used, by a message that names the supported ones
    if scheme not in ("file", HDFS_SCHEME):
        return uri
    if "?" in rest or "#" in rest:
        raise ValueError(f"expected a URI without a query ('?') and a fragment ('#'), got {text!r}")
    if scheme == "file":
        if file_path(f"{scheme}:{rest}") == Path("/"):
            raise ValueError(f"expected file:///…/lake, got {text!r}, which names no directory")
    elif not _names_directory(uri):
        raise ValueError(f"expected hdfs://HOST:PORT/path, or hdfs:///path of the default file system, got {text!r}")
    return uri


def _names_directory(uri: str) -> bool:
    """Returns whether an HDFS URI has a path and, if it has a host, a valid one."""
    try:
        parts = urlsplit(uri)
        host = not parts.netloc or bool(parts.hostname and (parts.port is None or parts.port > 0))
    except ValueError:  # an invalid port, or part of an IPv6 address
        return False
    return host and len(parts.path) > 1 and parts.path.startswith("/")


def file_path(uri: str) -> Path:
    """Returns the path of `file:///a`, `file:/a` or `/a`. Raises `ValueError` if it is not on this machine.
    Percent-encoding is not decoded, as in Hadoop's paths."""
    rest = uri.removeprefix("file:")
    if rest.startswith("//"):
        host, slash, below = rest[2:].partition("/")
        if host not in ("", "localhost"):
            name = (below if host in (".", "..", "~") else rest[2:]).strip("/") or "lake"
            raise ValueError(f"expected file:///…/{name} or ./{name}, got {uri!r}, where {host!r} is a host")
        rest = slash + below
    if not rest.startswith("/"):
        raise ValueError(f"expected an absolute path as in file:///data/lake, got {uri!r}")
    return Path(rest)


def is_local_file(path: str) -> bool:
    """Returns whether the path exists and is not a directory. False as well without permission to read it."""
    there = file_path(path)
    return os.path.exists(there) and not os.path.isdir(there)  # noqa: PTH110, PTH112 - pathlib's raise


def file_in_the_way(path: str, is_file: Callable[[str], bool], written: str = "") -> str | None:
    """Returns a line which says that the lake's path, or one above it, is a file, with the path as the user has
    `written` it; None if neither is a file."""
    written = written or path
    head = _HEAD.match(path)
    start = head.end() if head else 0
    names = path[start:].strip("/").split("/")
    for above in range(len(names)):
        if is_file(f"{path[:start]}/{'/'.join(names[: len(names) - above])}"):
            found = _parent(written, above)
            if above:
                return f"{found} is a file, so that there can be no lake at {written}"
            return f"{found} is a file; a lake is a directory"
    return None


def _parent(path: str, levels: int) -> str:
    """Returns the parent of a path in the form in which it is written: `./a` for `./a/b`."""
    parts = path.rstrip("/").split("/")
    while len(parts) > 1 and (levels or parts[-1] in ("", ".")):
        levels -= parts.pop() not in ("", ".")
    return "/".join(parts)


def _spark_keys(value: Any) -> Any:
    """Returns the values as text, as Spark takes them. Raises `ValueError` for a key that is not Spark's, which Spark
    would ignore.
    """
    if not isinstance(value, Mapping):
        return value
    wrong = [
        f"{name!r} is Hadoop's: write spark.hadoop.{name}"
        if str(name).startswith(_HADOOP)
        else f"{name!r} is not a key of Spark; Spark's keys begin with spark., Hadoop's with spark.hadoop."
        for name in value
        if not str(name).startswith(_SPARK)
    ]
    if wrong:
        raise ValueError("; ".join(wrong))
    return {name: to_string(given) if isinstance(given, bool | int | float) else given for name, given in value.items()}


def _master(value: str) -> str:
    """Returns the text. Raises `ValueError` for a master that spark-submit would refuse."""
    if not _MASTER.fullmatch(value):
        raise ValueError(
            f"expected Spark's master: local[2], local[*], spark://HOST:PORT, k8s://… or yarn, got {value!r}"
        )
    return value


def _memory(value: Any) -> Any:
    """Returns the text. Raises `ValueError` for a size that Java's -Xmx would refuse."""
    if isinstance(value, bool) or not _MEMORY.fullmatch(str(value)):
        raise ValueError(f"expected a size such as 512m or 2g, as for Java's -Xmx, got {value!r}")
    return str(value)


def _directories(names: tuple[str, ...]) -> tuple[str, ...]:
    if names not in PARTITIONINGS:
        raise ValueError("expected dt or dt,hr")
    return names


def webhdfs_urls(text: str) -> str:
    """Returns the text. Raises `ValueError` unless each of its addresses, separated by `;`, is an HTTP address."""
    for one in text.split(";"):
        try:
            parts = urlsplit(one.strip())
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:  # an invalid port, or part of an IPv6 address
            good = False
        if not good:
            raise ValueError(f"expected http://HOST:PORT, got {one!r}")
    return text


def lake_scheme(path: str) -> str:
    """Returns the scheme of a lake's path. Raises `ValueError` for a scheme that has not passed the publishing
    contract."""
    scheme = urlsplit(path).scheme
    if scheme not in (*LOCAL_SCHEMES, HDFS_SCHEME):
        raise ValueError(
            f"a lake on {scheme}: ({path}) is refused until {scheme}: passes the publishing contract; use hdfs://… or "
            "file:///…"
        )
    return scheme


def size_in_bytes(value: Any) -> Any:
    """Returns the bytes of a size such as `128m`. Raises `ValueError` if it is not a size."""
    if isinstance(value, bool):
        raise ValueError("expected bytes, or a size such as 128m or 1g")
    return parse_size(str(value))


def _instant(value: Any) -> Any:
    """Parses a date or an ISO 8601 instant; UTC if it has no time zone."""
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    try:
        parsed = datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError("expected a date or an instant such as 2013-01-01T00:00:00Z") from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


Size = Annotated[int, BeforeValidator(size_in_bytes), ConfigType.LONG]
Instant = Annotated[datetime, BeforeValidator(_instant), ConfigType.STRING]


class LakeConfig(Section):
    """A lake. `klamm load` writes to it; each topic of the sink has a directory in it."""

    path: Annotated[str, BeforeValidator(_lake), ConfigType.STRING] = key(
        ..., "The lake's location: hdfs://…, file:///…, or a path relative to the folder of this file."
    )
    webhdfs_url: Annotated[str, AfterValidator(webhdfs_urls)] | None = key(
        None,
        "WebHDFS address for `klamm lake`, if it is not port 9870 of the NameNode; several are separated by `;`.",
    )
    partition_by: Annotated[Names, AfterValidator(_directories)] = key(
        ("dt",), "The directories below a load: dt, or dt,hr; from the record's timestamp."
    )
    timezone: TimeZone = key("UTC", "The time zone of dt and hr.")
    format: Literal["parquet", "orc", "avro"] = key(
        "parquet", "The files' format; for avro, Maven brings Spark's own Avro package."
    )
    target_file_size: Size = key(
        128 * 2**20, "The rows of a directory go to one file, unless it would be larger than this.", ge=1
    )
    timestamp_min: Instant = key(
        datetime(1970, 1, 1, tzinfo=UTC), "Records with an earlier timestamp go to dt=__invalid__."
    )
    timestamp_max: Instant = key(
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), "Records with a later timestamp go to dt=__invalid__."
    )
    max_records: Long | None = key(None, "The most records (by offsets) of each topic in a run.", ge=1)
    max_bytes: Size | None = key(None, "The most bytes of each topic's log in a run, approximately.", ge=1)
    max_duration_ms: Long | None = key(
        None,
        "A run starts no further load after this time, and limits the size of loads so that they fit into it.",
        ge=1,
    )
    max_offsets_per_task: Long = key(500_000, "The most offsets in one Spark task.", ge=1)
    auto_offset_reset: Literal["fail", "earliest", "latest"] = key(
        "fail",
        "What a load does if the offset to begin at was deleted: refuse, continue at the first record left, or at the "
        "end. With latest a topic's first load begins at the end, too. Skipped offsets are recorded as a gap.",
    )
    max_bad_share: float = key(
        1.0, "With on.bad.record: quarantine, a load fails if a larger share of its records is bad.", ge=0, le=1
    )
    staging_retention_minutes: Int = key(
        60, "Minutes without a heartbeat after which a job counts as dead and its staging directory is deleted.", ge=1
    )
    audit_watermark: bool = key(
        True,
        "Compute the audit's watermark for a load's _audit.json, for which the whole audit topic is read.",
    )
    spark_master: Annotated[str, AfterValidator(_master)] = key(
        "local[2]", "Spark's master; that of spark-submit takes precedence."
    )
    spark_driver_memory: Annotated[str, BeforeValidator(_memory), ConfigType.STRING] = key(
        "1g", "The memory of a local Spark."
    )
    spark_config: Annotated[dict[str, str], BeforeValidator(_spark_keys)] = key(
        {}, "Further configuration of Spark, by its names; Hadoop's with the prefix spark.hadoop."
    )
    _written: str = PrivateAttr("")

    @model_validator(mode="wrap")
    @classmethod
    def _as_written(cls, given: Any, handler: ModelWrapValidatorHandler[LakeConfig]) -> LakeConfig:
        made = handler(given)
        if made.timestamp_min > made.timestamp_max:
            raise wrong_key(
                "timestamp.min", f"expected an instant before timestamp.max, {made.timestamp_max.isoformat()}"
            )
        made._written = str(given["path"]) if isinstance(given, Mapping) and "path" in given else made.path
        return made

    def local_file_in_the_way(self) -> str | None:
        """Returns what `file_in_the_way` does, for a lake on `file:`; None for any other lake."""
        if urlsplit(self.path).scheme not in LOCAL_SCHEMES:
            return None
        return file_in_the_way(self.path, is_local_file, self._written)


def choose_lake(settings: Settings, sink: str | None) -> tuple[str, SinkSettings]:
    """Returns the sink by name, or the only one of the plugin `hadoop`."""
    lakes = [name for name, found in settings.sinks.items() if isinstance(found.choice.config, LakeConfig)]
    if sink is None:
        if len(lakes) != 1:
            known = ", ".join(lakes) or "none; `plugin: hadoop` makes one"
            raise ConfigError(f"{settings.source}: sinks: name the one to be loaded (there are: {known})")
        sink = lakes[0]
    if sink not in lakes:
        settings.sink(sink)
        raise ConfigError(f"{settings.source}: sinks.{sink}: `klamm load` fills sinks with `plugin: hadoop` only")
    return sink, settings.sink(sink)


class LakeLoad:
    """Implements `klamm.core.interfaces.load.Load`: `klamm load` fills a lake, one whole load at a time."""

    command: Final = "load"

    def __init__(self, config: LakeConfig) -> None:
        self._config = config

    def check(self, on_bad_record: str) -> None:
        if on_bad_record == "skip":
            raise ValueError("on.bad.record: a load accepts fail or quarantine, got skip")
        try:
            lake_scheme(self._config.path)
        except ValueError as error:
            raise ValueError(f"path: {error}") from error
        if (found := self._config.local_file_in_the_way()) is not None:
            raise ValueError(f"path: {found}")
