"""The lake's layout: the paths of a topic's loads, staging directories and markers.

    <root>/<topic>/load=000003/dt=2013-01-01/part-….parquet   published, immutable
    <root>/<topic>/load=000003/{_offsets.json,_audit.json,_SUCCESS}
    <root>/<topic>/_staging/<job id>/…                        one job's, invisible to readers
    <root>/<topic>/_staging/<job id>.alive                    its heartbeat
    <root>/<topic>/_audited/000003                            its audit event is stored; names its job
    <root>/<topic>/_generations/generation=000001/dt=…/…      loads merged by `klamm lake compact`, immutable
    <root>/<topic>/_generations/generation=000001/{_generation.json,_SUCCESS}

Every engine that knows Hive's partition discovery ignores names that begin with `_`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from klamm.core.errors import ConfigError

OFFSETS = "_offsets.json"
AUDIT = "_audit.json"
SUCCESS = "_SUCCESS"
OWNER = "_job.json"
BAD = "_bad"
STAGING = "_staging"
AUDITED = "_audited"
TEMPORARY = "_temporary"
"""The directory where Spark's tasks write before their files get their names."""
GENERATIONS = "_generations"
GENERATION = "_generation.json"
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""A directory's value for null."""
INVALID = "__invalid__"
"""The `dt` of records without a timestamp or with one outside the configured bounds."""

HDFS = "hdfs:"
"""The prefix of a URI of HDFS."""

HALF = re.compile(r"\..+\.[0-9a-f]{32}\Z")
"""The name of a file that a publisher is writing and has not renamed yet."""

_LOAD = re.compile(r"load=(\d{6,})\Z")
_GENERATION = re.compile(r"generation=(\d{6,})\Z")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """The paths of one topic below the lake's `root` (a URI without a trailing slash)."""

    root: str
    topic: str

    def __post_init__(self) -> None:
        if not _TOPIC.match(self.topic) or self.topic in (".", ".."):
            raise ConfigError(f"{self.topic!r} is not a topic name: use letters, digits, '.', '_' and '-' only")

    @property
    def base(self) -> str:
        return f"{self.root.rstrip('/')}/{self.topic}"

    @property
    def staging_root(self) -> str:
        return f"{self.base}/{STAGING}"

    def staging(self, job_id: str) -> str:
        return f"{self.staging_root}/{job_id}"

    def heartbeat(self, job_id: str) -> str:
        return f"{self.staging_root}/{job_id}.alive"

    def load(self, number: int) -> str:
        return f"{self.base}/load={number:06d}"

    @property
    def generations_root(self) -> str:
        return f"{self.base}/{GENERATIONS}"

    def generation(self, number: int) -> str:
        return f"{self.generations_root}/generation={number:06d}"

    @property
    def audited_root(self) -> str:
        return f"{self.base}/{AUDITED}"

    def audited(self, number: int) -> str:
        return f"{self.audited_root}/{number:06d}"


def load_number(name: str) -> int | None:
    """Returns the number of a directory named `load=<number>`; None for any other name."""
    match = _LOAD.match(name)
    return int(match[1]) if match else None


def generation_number(name: str) -> int | None:
    """Returns the number of a directory named `generation=<number>`; None for any other name."""
    match = _GENERATION.match(name)
    return int(match[1]) if match else None


def is_data(name: str) -> bool:
    """Returns True if a file of a load, by its path below the load, holds rows for readers, or for readers of
    `_bad`.
    """
    parts = name.split("/")
    return not parts[-1].startswith(("_", ".")) and parts[0] != TEMPORARY


def hdfs_authority(path: str) -> str:
    """Returns `namenode:8020` of `hdfs://namenode:8020/lake`; empty if the path names no host."""
    rest = path.removeprefix(HDFS)
    return rest[2:].partition("/")[0].rpartition("@")[2] if rest.startswith("//") else ""


def hdfs_path(path: str) -> str:
    """Returns `/lake` of `hdfs://namenode:8020/lake`: the path in its file system."""
    rest = path.removeprefix(HDFS)
    if rest.startswith("//"):
        _, slash, below = rest[2:].partition("/")
        rest = slash + below
    return rest or "/"
