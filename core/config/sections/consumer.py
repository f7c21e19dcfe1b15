"""The configuration of a consumer, with Kafka's names."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, model_validator

from ...records.isolation import IsolationLevel
from ..choice import PluginChoices
from ..section import INT_MAX, ConfigType, Int, Names, key, wrong_key
from .client import ClientConfig


def _reset(value: Any) -> Any:
    """Also accepts the names in the Kafka paper."""
    return {"smallest": "earliest", "largest": "latest"}.get(str(value), value)


OffsetReset = Annotated[Literal["earliest", "latest", "none"], BeforeValidator(_reset), ConfigType.STRING]
GroupProtocol = Literal["registry", "classic"]


class ConsumerConfig(ClientConfig):
    """One consumer. Times in ms, sizes in bytes."""

    group_id: str | None = key(
        None, "The group; without one, partitions are assigned by hand and nothing is committed.", min_length=1
    )
    group_protocol: GroupProtocol | None = key(
        None,
        "registry: through the coordination; classic: through the broker. Default: registry if a coordination is set.",
    )
    auto_offset_reset: OffsetReset = key(
        "latest", "The position without a stored offset; smallest and largest are accepted too."
    )
    enable_auto_commit: bool = key(True, "Whether positions are committed while polling and at close.")
    auto_commit_interval_ms: Int = key(5_000, "Time between two automatic commits.", ge=0)
    fetch_min_bytes: Int = key(1, "Bytes that a broker waits for before it responds to a fetch.", ge=0)
    fetch_max_bytes: Int = key(52_428_800, "Maximum bytes in one response.", ge=0)
    max_partition_fetch_bytes: Int = key(1_048_576, "Maximum bytes of one partition in one response.", ge=0)
    fetch_max_wait_ms: Int = key(500, "Time that a broker waits for fetch.min.bytes.", ge=0)
    max_poll_records: Int = key(500, "Maximum number of records that one poll returns.", ge=1)
    client_rack: str = key(
        "", "The rack of this consumer; a leader may then name a replica nearer to it, from which it fetches (KIP-392)."
    )
    session_timeout_ms: Int = key(45_000, "classic: time without a heartbeat after which a member is removed.", ge=1)
    heartbeat_interval_ms: Int = key(3_000, "classic: time between two heartbeats.", ge=1)
    max_poll_interval_ms: Int = key(300_000, "classic: time without a poll after which a member leaves.", ge=1)
    partition_assignment_strategy: Names = key(("range",), "classic: range, roundrobin, in order of preference.")
    rebalance_max_retries: Int = key(
        10, "registry: attempts to claim partitions before the member reports an error.", ge=1
    )
    rebalance_backoff_ms: Int = key(2_000, "registry: wait between two attempts.", ge=0)
    isolation_level: Literal["read_uncommitted", "read_committed"] = key(
        "read_uncommitted", "Whether records of open and aborted transactions are read."
    )
    decompressed_max_bytes: Int = key(
        67_108_864, "Maximum bytes of one batch after decompression.", ge=1024, le=INT_MAX
    )
    interceptors: PluginChoices = key((), "Consumer interceptors, in the order in which they are called.")

    @property
    def isolation(self) -> IsolationLevel:
        """`isolation_level` as requests carry it."""
        return IsolationLevel[self.isolation_level.upper()]

    @model_validator(mode="after")
    def _consistent(self) -> ConsumerConfig:
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise wrong_key("heartbeat.interval.ms", "should be below session.timeout.ms")
        unknown = set(self.partition_assignment_strategy) - {"range", "roundrobin"}
        if unknown or not self.partition_assignment_strategy:
            raise wrong_key(
                "partition.assignment.strategy", "should be range or roundrobin, or both separated by a comma"
            )
        return self
