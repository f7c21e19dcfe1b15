"""The options of the `klamm` source: those of Spark's Kafka source, checked before anything is read."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from klamm.core.client.cluster_client import EARLIEST, LATEST
from klamm.core.errors import ConfigError
from klamm.core.records.partition import TopicPartition

OPTIONS: Final = (
    "kafka.bootstrap.servers",
    "bootstrap.servers",
    "subscribe",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "includeHeaders",
    "onBadRecord",
    "kafkaConsumer.pollTimeoutMs",
    "klamm.plugins",
)
_EDGES: Final = {"earliest": EARLIEST, "latest": LATEST}
POLL_TIMEOUT_MS: Final = 120_000

Offsets = int | dict[TopicPartition, int]
"""`EARLIEST` or `LATEST` for every partition, or an offset (or one of the two) for each."""


@dataclass(frozen=True)
class ReadOptions:
    """How a task reads its range; `poll_timeout_s` and `quarantine` as in `SourceOptions`."""

    bootstrap: str
    plugins: tuple[str, ...]
    fail_on_data_loss: bool
    quarantine: bool
    poll_timeout_s: float = POLL_TIMEOUT_MS / 1000


@dataclass(frozen=True)
class SourceOptions:
    """`topics` or `assigned` says what is read. `limit` is a batch's number of offsets in all, `poll_timeout_s` how
    long a task waits for records that should be there, `quarantine` whether a batch that cannot be opened is a row."""

    bootstrap: str
    topics: tuple[str, ...]
    assigned: tuple[TopicPartition, ...]
    starting: Offsets
    ending: Offsets
    min_tasks: int | None
    max_offsets_per_task: int | None
    limit: int | None
    fail_on_data_loss: bool
    headers: bool
    quarantine: bool
    poll_timeout_s: float
    plugins: tuple[str, ...]

    @property
    def reading(self) -> ReadOptions:
        return ReadOptions(self.bootstrap, self.plugins, self.fail_on_data_loss, self.quarantine, self.poll_timeout_s)


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """`ConfigError` in one line: the option, what is wrong, what would be right. Names are not case-sensitive."""
    known = {name.lower(): name for name in OPTIONS}
    values: dict[str, str] = {}
    for key, value in given.items():
        if key.lower() not in known:
            near = difflib.get_close_matches(key.lower(), known, n=1)
            hint = f"; did you mean {known[near[0]]!r}?" if near else f" (there are: {', '.join(OPTIONS)})"
            raise ConfigError(f"klamm source: unknown option {key!r}{hint}")
        values[known[key.lower()]] = value
    topics, assigned = _what(values)
    return SourceOptions(
        bootstrap=_bootstrap(values),
        topics=topics,
        assigned=assigned,
        starting=_offsets(values, "startingOffsets", "earliest"),
        ending=_offsets(values, "endingOffsets", "latest"),
        min_tasks=_count(values, "minPartitions"),
        max_offsets_per_task=_count(values, "maxRecordsPerPartition"),
        limit=_count(values, "maxOffsetsPerTrigger"),
        fail_on_data_loss=_flag(values, "failOnDataLoss", True),
        headers=_flag(values, "includeHeaders", False),
        quarantine=_choice(values, "onBadRecord", ("fail", "quarantine")) == "quarantine",
        poll_timeout_s=(_count(values, "kafkaConsumer.pollTimeoutMs") or POLL_TIMEOUT_MS) / 1000,
        plugins=_names(values.get("klamm.plugins", "")),
    )


def _bootstrap(values: Mapping[str, str]) -> str:
    servers = values.get("kafka.bootstrap.servers") or values.get("bootstrap.servers")
    if not servers:
        raise ConfigError("klamm source: needs the option kafka.bootstrap.servers, e.g. 127.0.0.1:9092")
    return servers


def _what(values: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[TopicPartition, ...]]:
    if ("subscribe" in values) == ("assign" in values):
        raise ConfigError('klamm source: needs either subscribe ("a,b") or assign (\'{"a":[0,1]}\')')
    if "subscribe" in values:
        topics = _names(values["subscribe"])
        if not topics:
            raise ConfigError("klamm source: subscribe names no topic")
        return topics, ()
    assigned: list[TopicPartition] = []
    for topic, numbers in _json(values, "assign").items():
        if not isinstance(numbers, list) or not all(_whole(n) for n in numbers):
            raise ConfigError(f'klamm source: assign: expected partitions as in {{"{topic}":[0,1]}}, got {numbers!r}')
        assigned += [TopicPartition(topic, n) for n in numbers]
    if not assigned:
        raise ConfigError("klamm source: assign names no partition")
    return (), tuple(assigned)


def _offsets(values: Mapping[str, str], name: str, default: str) -> Offsets:
    text = values.get(name, default).strip()
    if text.lower() in _EDGES:
        edge = _EDGES[text.lower()]
        wrong = LATEST if name == "startingOffsets" else EARLIEST
        if edge == wrong:
            raise ConfigError(f"klamm source: {name} cannot be {text!r} in a batch")
        return edge
    found: dict[TopicPartition, int] = {}
    for topic, by_partition in _json(values, name).items():
        if not isinstance(by_partition, dict):
            raise ConfigError(f'klamm source: {name}: expected {{"{topic}":{{"0":23}}}}, got {by_partition!r}')
        for number, offset in by_partition.items():
            if not number.isdigit() or not _whole(offset) or offset < EARLIEST:
                raise ConfigError(
                    f"klamm source: {name}: {topic}-{number}: {offset!r} is no offset (-1 latest, -2 earliest)"
                )
            found[TopicPartition(topic, int(number))] = offset
    return found


def _json(values: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        found = json.loads(values[name])
    except ValueError as error:
        raise ConfigError(f"klamm source: {name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"klamm source: {name}: expected a JSON object of topics, got {values[name]!r}")
    return found


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _count(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    if not text.strip().isdigit() or int(text) < 1:
        raise ConfigError(f"klamm source: {name}: expected a whole number from 1, got {text!r}")
    return int(text)


def _flag(values: Mapping[str, str], name: str, default: bool) -> bool:
    text = values.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"klamm source: {name}: expected true or false, got {text!r}")
    return text == "true"


def _choice(values: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """The first one allowed is the default."""
    text = values.get(name, allowed[0]).strip().lower()
    if text not in allowed:
        raise ConfigError(f"klamm source: {name}: expected {' or '.join(allowed)}, got {text!r}")
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
