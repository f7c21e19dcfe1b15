"""The options of the `klamm` source: those of Spark's Kafka source, checked before anything is read."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from klamm.core.client.edges import EARLIEST, LATEST
from klamm.core.errors import ConfigError
from klamm.core.records.isolation import IsolationLevel
from klamm.core.records.partition import TopicPartition

if TYPE_CHECKING:
    from klamm.schemas.options import RegistryAccess

REGISTRY_OPTIONS: Final = (
    "klamm.schemas.topic",
    "klamm.schema.registry.url",
    "klamm.schema.registry.basic.auth.user.info",
    "klamm.schema.registry.bearer.auth.token",
    "klamm.schema.registry.ssl.ca.location",
    "klamm.schema.registry.ssl.certificate.location",
    "klamm.schema.registry.ssl.key.location",
    "klamm.schema.registry.ssl.key.password",
    "klamm.schema.registry.request.timeout.ms",
)
"""The keys of `klamm.schemas.options.RegistryAccess`, behind `klamm.`."""
OPTIONS: Final = (
    "kafka.bootstrap.servers",
    "kafka.isolation.level",
    "bootstrap.servers",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "minOffsetsPerTrigger",
    "maxOffsetsPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
    "includeHeaders",
    "onBadRecord",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "klamm.plugins",
    "klamm.typed",
    "klamm.envelope",
    *REGISTRY_OPTIONS,
)
ISOLATIONS: Final = ("read_committed", "read_uncommitted")
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_STREAM_ONLY: Final = ("minOffsetsPerTrigger", "maxTriggerDelay")
_EDGES: Final = {"earliest": EARLIEST, "latest": LATEST}
POLL_TIMEOUT_MS: Final = 120_000
MAX_TRIGGER_DELAY: Final = "15m"
CLIENT_ID: Final = "klamm-spark"
ENVELOPE: Final = "confluent"
"""The default envelope of a topic, as in YAML."""
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"\s*(\d+)\s*(ms|s|m|min|h|d)\s*")

Offsets = int | dict[TopicPartition, int]
"""`EARLIEST` or `LATEST` for every partition, or an offset (or one of the two) for each."""
Times = int | dict[TopicPartition, int]
"""Milliseconds since the epoch, for every partition or for each."""


@dataclass(frozen=True)
class Typing:
    """Typed values: the envelope that names their schema, and where the schemas are."""

    envelope: str
    access: RegistryAccess


@dataclass(frozen=True)
class ReadOptions:
    """The settings with which a task reads its range. `poll_timeout_s` is how long it waits for records of it.
    `quarantine`: a batch that cannot be opened becomes a row. `isolation`: whether records of open and aborted
    transactions are read.
    """

    bootstrap: str
    plugins: tuple[str, ...]
    fail_on_data_loss: bool
    quarantine: bool
    poll_timeout_s: float = POLL_TIMEOUT_MS / 1000
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED


@dataclass(frozen=True, kw_only=True)
class SourceOptions(ReadOptions):
    """The options of a read. `topics`, `pattern` or `assigned` selects the partitions.

    Times, if given, override offsets; `late_is_latest`: a partition without a record at or after its starting time
    begins at its end. `limit` is the most offsets of a batch or micro-batch in total; a stream waits up to
    `max_delay_s` for `least` new ones.
    """

    topics: tuple[str, ...]
    pattern: str | None
    assigned: tuple[TopicPartition, ...]
    starting: Offsets
    starting_times: Times | None
    late_is_latest: bool
    ending: Offsets
    ending_times: Times | None
    min_tasks: int | None
    max_offsets_per_task: int | None
    limit: int | None
    least: int | None
    max_delay_s: float
    client_id: str
    headers: bool
    typing: Typing | None

    @property
    def reading(self) -> ReadOptions:
        return ReadOptions(**{field.name: getattr(self, field.name) for field in fields(ReadOptions)})


class Reading(Enum):
    """The use of the options; `ANY` if that is not known yet."""

    ANY = "any"
    BATCH = "batch"
    STREAM = "stream"


def parse_options(given: Mapping[str, str], reading: Reading = Reading.BATCH) -> SourceOptions:
    """Parses the options; names are not case-sensitive. Raises `ConfigError` in one line: the option, what is wrong,
    what would be right.
    """
    values = known_options(given, OPTIONS, "source")
    _check_reading(values, reading)
    topics, pattern, assigned = _what(values)
    limit, least = count_of(values, "maxOffsetsPerTrigger"), count_of(values, "minOffsetsPerTrigger")
    if limit is not None and least is not None and least > limit:
        raise ConfigError(f"klamm source: minOffsetsPerTrigger {least} is more than maxOffsetsPerTrigger {limit}")
    strategy = "startingOffsetsByTimestampStrategy"
    quarantine = _choice(values, "onBadRecord", ("fail", "quarantine")) == "quarantine"
    typing = typing_of(values, "source")
    if quarantine and typing is not None:
        raise ConfigError("klamm source: onBadRecord=quarantine returns bytes; it cannot be combined with klamm.typed")
    return SourceOptions(
        bootstrap=bootstrap_of(values, "source"),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=_offsets(values, "startingOffsets", "latest" if reading is Reading.STREAM else "earliest", reading),
        starting_times=_times(values, "startingTimestamp", "startingOffsetsByTimestamp"),
        late_is_latest=_choice(values, strategy, ("error", "latest")) == "latest",
        ending=_offsets(values, "endingOffsets", "latest", reading),
        ending_times=_times(values, "endingTimestamp", "endingOffsetsByTimestamp"),
        min_tasks=count_of(values, "minPartitions"),
        max_offsets_per_task=count_of(values, "maxRecordsPerPartition"),
        limit=limit,
        least=least,
        max_delay_s=_duration(values, "maxTriggerDelay", MAX_TRIGGER_DELAY),
        client_id=values.get("groupIdPrefix", CLIENT_ID),
        fail_on_data_loss=_flag(values, "failOnDataLoss", True),
        headers=_flag(values, "includeHeaders", False),
        quarantine=quarantine,
        poll_timeout_s=(count_of(values, "kafkaConsumer.pollTimeoutMs") or POLL_TIMEOUT_MS) / 1000,
        isolation=IsolationLevel[_choice(values, "kafka.isolation.level", ISOLATIONS).upper()],
        plugins=names_of(values.get("klamm.plugins", "")),
        typing=typing,
    )


def typing_of(values: Mapping[str, str], what: str) -> Typing | None:
    """Returns the typing of the values, or None if they are bytes."""
    if not _flag(values, "klamm.typed", False, what):
        return None
    from pydantic import ValidationError

    from klamm.schemas.options import RegistryAccess  # imports much that bytes do not need

    given = {name.removeprefix("klamm."): value for name, value in values.items() if name in REGISTRY_OPTIONS}
    try:
        return Typing(values.get("klamm.envelope", ENVELOPE), RegistryAccess.model_validate(given))
    except ValidationError as error:
        first = error.errors()[0]
        name = first.get("ctx", {}).get("key") or ".".join(map(str, first["loc"]))
        raise ConfigError(f"klamm {what}: klamm.{name}: {first['msg'].removeprefix('Value error, ')}") from error


def known_options(given: Mapping[str, str], options: Sequence[str], what: str) -> dict[str, str]:
    """Returns the options by their canonical names; raises `ConfigError` for an unknown one. `what`: source or sink."""
    known = {name.lower(): name for name in options}
    values: dict[str, str] = {}
    for key, value in given.items():
        if key.lower() not in known:
            near = difflib.get_close_matches(key.lower(), known, n=1)
            hint = f"; did you mean {known[near[0]]!r}?" if near else f" (there are: {', '.join(options)})"
            raise ConfigError(f"klamm {what}: unknown option {key!r}{hint}")
        values[known[key.lower()]] = value
    return values


def _check_reading(values: Mapping[str, str], reading: Reading) -> None:
    wrong = {Reading.BATCH: _STREAM_ONLY, Reading.STREAM: _BATCH_ONLY}.get(reading, ())
    for name in wrong:
        if name in values:
            raise ConfigError(f"klamm source: {name} is not an option of a {reading.value}")


def bootstrap_of(values: Mapping[str, str], what: str) -> str:
    servers = values.get("kafka.bootstrap.servers") or values.get("bootstrap.servers")
    if not servers:
        raise ConfigError(f"klamm {what}: needs the option kafka.bootstrap.servers, e.g. 127.0.0.1:9092")
    return servers


def _what(values: Mapping[str, str]) -> tuple[tuple[str, ...], str | None, tuple[TopicPartition, ...]]:
    if sum(name in values for name in ("subscribe", "subscribePattern", "assign")) != 1:
        raise ConfigError(
            'klamm source: needs either subscribe ("a,b"), subscribePattern ("a.*") or assign (\'{"a":[0,1]}\')'
        )
    if "subscribe" in values:
        topics = names_of(values["subscribe"])
        if not topics:
            raise ConfigError("klamm source: subscribe names no topic")
        return topics, None, ()
    if "subscribePattern" in values:
        pattern = values["subscribePattern"]
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"klamm source: subscribePattern {pattern!r} is not a regular expression: {error}"
            ) from error
        return (), pattern, ()
    assigned: list[TopicPartition] = []
    for topic, numbers in _json(values, "assign").items():
        if not isinstance(numbers, list) or not all(_whole(n) for n in numbers):
            raise ConfigError(f'klamm source: assign: expected partitions as in {{"{topic}":[0,1]}}, got {numbers!r}')
        assigned += [TopicPartition(topic, n) for n in numbers]
    if not assigned:
        raise ConfigError("klamm source: assign names no partition")
    return (), None, tuple(assigned)


def _offsets(values: Mapping[str, str], name: str, default: str, reading: Reading) -> Offsets:
    text = values.get(name, default).strip()
    if text.lower() in _EDGES:
        edge = _EDGES[text.lower()]
        wrong = LATEST if name == "startingOffsets" else EARLIEST
        if edge == wrong and reading is Reading.BATCH:
            raise ConfigError(f"klamm source: {name} cannot be {text!r} in a batch")
        return edge
    return _by_partition(values, name, '{"0":23}', "no offset (-1 latest, -2 earliest)", EARLIEST)


def _times(values: Mapping[str, str], name: str, by_partition: str) -> Times | None:
    if name in values:
        text = values[name].strip()
        if not text.isdigit():
            raise ConfigError(f"klamm source: {name}: expected milliseconds since 1970, got {text!r}")
        return int(text)
    if by_partition not in values:
        return None
    return _by_partition(values, by_partition, '{"0":1700000000000}', "no time in milliseconds since 1970", 0)


def _by_partition(
    values: Mapping[str, str], name: str, example: str, otherwise: str, least: int
) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, by_partition in _json(values, name).items():
        if not isinstance(by_partition, dict):
            raise ConfigError(f'klamm source: {name}: expected {{"{topic}":{example}}}, got {by_partition!r}')
        for number, given in by_partition.items():
            if not number.isdigit() or not _whole(given) or given < least:
                raise ConfigError(f"klamm source: {name}: {topic}-{number}: {given!r} is {otherwise}")
            found[TopicPartition(topic, int(number))] = given
    return found


def _json(values: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        found = json.loads(values[name])
    except ValueError as error:
        raise ConfigError(f"klamm source: {name} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"klamm source: {name}: expected a JSON object of topics, got {values[name]!r}")
    return found


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def count_of(values: Mapping[str, str], name: str, what: str = "source") -> int | None:
    text = values.get(name)
    if text is None:
        return None
    if not text.strip().isdigit() or int(text) < 1:
        raise ConfigError(f"klamm {what}: {name}: expected a whole number from 1, got {text!r}")
    return int(text)


def _flag(values: Mapping[str, str], name: str, default: bool, what: str = "source") -> bool:
    text = values.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"klamm {what}: {name}: expected true or false, got {text!r}")
    return text == "true"


def _choice(values: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """Returns the option's value; the first one allowed is the default."""
    text = values.get(name, allowed[0]).strip().lower()
    if text not in allowed:
        raise ConfigError(f"klamm source: {name}: expected {' or '.join(allowed)}, got {text!r}")
    return text


def _duration(values: Mapping[str, str], name: str, default: str) -> float:
    """Returns a duration in seconds."""
    text = values.get(name, default)
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ConfigError(f"klamm source: {name}: expected a time such as 30s or 15m, got {text!r}")
    return int(found[1]) * _UNITS_S[found[2]]


def names_of(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
