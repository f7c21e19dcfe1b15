"""The sink `hadoop`: a lake of Parquet files that `klamm load` fills with Spark (design D11); its configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ValidationInfo, model_validator

from klamm.core.config.section import BASE_DIR, ConfigType, Int, Long, Names, Section, TimeZone, key, wrong_key
from klamm.core.errors import ConfigError
from klamm.core.records.record import ConsumerRecord

_SIZE = re.compile(r"(\d+)\s*([kmg]?)b?\Z", re.IGNORECASE)
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_RENAMED = {
    "fail.on.data.loss": "auto.offset.reset says what becomes of deleted offsets (fail, earliest or latest)",
    "max.offsets.per.load": "max.records is the limit, of a topic in one run",
    "starting.offsets": "auto.offset.reset: earliest begins at what is left",
}
PARTITIONINGS = (("dt",), ("dt", "hr"))
LOCAL_SCHEMES: Final = ("", "file")
HDFS_SCHEME: Final = "hdfs"


def _lake(value: Any, info: ValidationInfo) -> Any:
    """A URI as it is; a path from the folder of the YAML file."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("expected a path or a URI such as hdfs://namenode:8020/lake")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", value) and not re.match(r"file:[^/]", value):
        return value.rstrip("/")
    base = (info.context or {}).get(BASE_DIR, ".")
    return str(Path(base, Path(value.removeprefix("file:")).expanduser()).absolute())


def _directories(names: tuple[str, ...]) -> tuple[str, ...]:
    if names not in PARTITIONINGS:
        raise ValueError("expected dt or dt,hr")
    return names


def webhdfs_urls(text: str) -> str:
    """The text as it is, when each of its addresses, divided by `;`, is one of HTTP; else `ValueError`."""
    for one in text.split(";"):
        try:
            parts = urlsplit(one.strip())
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:  # no port, or half an IPv6 address
            good = False
        if not good:
            raise ValueError(f"expected http://HOST:PORT, got {one!r}")
    return text


def lake_scheme(path: str) -> str:
    """The scheme of a lake's path; `ValueError` for one that has not passed the publishing contract."""
    scheme = urlsplit(path).scheme
    if scheme not in (*LOCAL_SCHEMES, HDFS_SCHEME):
        raise ValueError(
            f"a lake on {scheme}: ({path}) is refused until {scheme}: passes the publishing contract; use hdfs://… or "
            "file:///…"
        )
    return scheme


def size_in_bytes(value: Any) -> Any:
    """Bytes of `128m`; `ValueError` when it is no size."""
    match = _SIZE.match(str(value).strip())
    if isinstance(value, bool) or match is None:
        raise ValueError("expected bytes, or a size such as 128m or 1g")
    return int(match[1]) * _UNITS[match[2].lower()]


def _instant(value: Any) -> Any:
    """A date or an ISO 8601 instant; UTC where it names no zone."""
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    try:
        parsed = datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError("expected a date or an instant such as 2013-01-01T00:00:00Z") from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


Size = Annotated[int, BeforeValidator(size_in_bytes), ConfigType.LONG]
Instant = Annotated[datetime, BeforeValidator(_instant), ConfigType.STRING]


class HadoopSinkConfig(Section):
    """A lake. `klamm load` fills it; each topic of the sink has a directory in it."""

    path: Annotated[str, BeforeValidator(_lake), ConfigType.STRING] = key(
        ..., "Where the lake is: hdfs://…, file:///…, or a path from the folder of this file."
    )
    webhdfs_url: Annotated[str, AfterValidator(webhdfs_urls)] | None = key(
        None,
        "Where `klamm lake` reads a lake on hdfs: if not at port 9870 of the NameNode; several are divided by `;`.",
    )
    partition_by: Annotated[Names, AfterValidator(_directories)] = key(
        ("dt",), "The directories below a load: dt, or dt,hr; from the record's timestamp."
    )
    timezone: TimeZone = key("UTC", "The time zone of dt and hr.")
    format: Literal["parquet", "orc", "avro"] = key(
        "parquet", "The files' format; for avro, Maven brings Spark's own Avro package."
    )
    target_file_size: Size = key(128 * 2**20, "A directory's rows go to one file unless it would grow beyond this.")
    timestamp_min: Instant = key(
        datetime(1970, 1, 1, tzinfo=UTC), "Records with an earlier timestamp go to dt=__invalid__."
    )
    timestamp_max: Instant = key(
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), "Records with a later timestamp go to dt=__invalid__."
    )
    max_records: Long | None = key(None, "A run takes at most so many records (by offsets) of each topic.", ge=1)
    max_bytes: Size | None = key(None, "A run takes about so many bytes at most of each topic's log.", ge=1)
    max_duration_ms: Long | None = key(
        None, "A run begins no further load after this time, and cuts loads so that they fit into it.", ge=1
    )
    max_offsets_per_task: Long = key(500_000, "At most so many offsets in one Spark task.", ge=1)
    auto_offset_reset: Literal["fail", "earliest", "latest"] = key(
        "fail",
        "What a load does where the offset that it is to begin at is deleted: refuse, go on at what is left, or at the "
        "end. With latest a topic's first load begins at the end, too. What it leaves out is recorded as a gap.",
    )
    max_bad_share: float = key(
        1.0, "With on.bad.record: quarantine, a load with a larger share of records to set aside fails.", ge=0, le=1
    )
    staging_retention_minutes: Int = key(60, "When a job without a heartbeat counts as dead and is cleaned up.", ge=1)
    spark_master: str = key("local[2]", "Spark's master; spark-submit's own wins.")
    spark_driver_memory: str = key("1g", "The memory of a local Spark.")
    spark_config: dict[str, str] = key({}, "More of Spark's own configuration, by its names.")

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, given: Any) -> Any:
        for name, instead in _RENAMED.items():
            if isinstance(given, Mapping) and name in given:
                raise wrong_key(name, f"is no key any more: {instead}")
        return given


class HadoopSink:
    """`klamm sink` feeds records one task at a time; a lake takes whole loads."""

    def __init__(self, config: HadoopSinkConfig) -> None:
        self._config = config

    def check(self, on_bad_record: str) -> None:
        if on_bad_record == "skip":
            raise ValueError("on.bad.record: a load takes fail or quarantine, got skip")
        try:
            lake_scheme(self._config.path)
        except ValueError as error:
            raise ValueError(f"path: {error}") from error

    def open(self) -> None:
        raise ConfigError(f"the lake {self._config.path} is filled by `klamm load`, not by `klamm sink`")

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        del records
        self.open()

    def flush(self) -> None:
        self.open()

    def close(self) -> None:
        return
