"""The configuration of a broker, with Kafka's names, and the topic defaults in it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, PrivateAttr, field_validator, model_validator

from ..address import ListenerAddress, parse_listeners
from ..choice import OptionalPlugin, PluginChoices
from ..kafka_keys import BROKER_KEYS, accepted
from ..section import (
    INT_MAX,
    LONG_MAX,
    SHORT_MAX,
    ConfigPath,
    ConfigType,
    Double,
    Int,
    Long,
    Names,
    Section,
    dotted,
    key,
    wrong_key,
)
from .topic import BROKER_SYNONYMS, CleanupPolicy, TimestampType, TopicConfig, VerifyPayload

_TOPIC = TopicConfig()
_SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def _protocol_map(value: Any) -> Any:
    """Validates `NAME:PROTOCOL,NAME:PROTOCOL`. The broker checks at its start which protocols it serves."""
    if isinstance(value, dict):
        value = ",".join(f"{k}:{v}" for k, v in value.items())
    for part in str(value).split(","):
        name, _, protocol = part.strip().partition(":")
        if not name or protocol.upper() not in _SECURITY_PROTOCOLS:
            raise ValueError(f"expected NAME:PROTOCOL with {', '.join(_SECURITY_PROTOCOLS)}, got {part.strip()!r}")
    return str(value).upper()


def _one_directory(value: Any) -> Any:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list) or "," in str(value):
        raise ValueError("expected one directory; run a broker per directory")
    return value


def _replica_selector(value: Any) -> Any:
    name = None if value is None else str(value).rpartition(".")[2]
    if name not in (None, "RackAwareReplicaSelector", "LeaderSelector"):
        raise ValueError(f"expected RackAwareReplicaSelector or LeaderSelector, got {value!r}")
    return value


ReplicaSelector = Annotated[str | None, BeforeValidator(_replica_selector), ConfigType.CLASS]
ProtocolMap = Annotated[str, BeforeValidator(_protocol_map), ConfigType.STRING]
LogDirectory = Annotated[ConfigPath, BeforeValidator(_one_directory)]


class BrokerConfig(Section):
    """One broker. Times are in ms and sizes in bytes, unless the name says otherwise."""

    _without_effect: Mapping[str, str] = PrivateAttr(default_factory=dict)

    broker_id: Int = key(0, "This broker's id; unique in the cluster.", ge=0)
    broker_rack: str | None = key(None, "The rack of the broker, as clients see it.")
    listeners: str = key(
        "PLAINTEXT://127.0.0.1:9092",
        "Addresses to listen on, NAME://host:port; no host or [::]: every one, IPv6 and IPv4; port 0: a free port.",
    )
    advertised_listeners: str | None = key(None, "Addresses that clients get; those of `listeners` when not set.")
    listener_security_protocol_map: ProtocolMap = key("PLAINTEXT:PLAINTEXT", "The protocol of each listener name.")
    log_dirs: LogDirectory = key("./data", "The directory of the log; one per broker.")

    num_partitions: Int = key(1, "Partitions of a topic that is created without a number.", ge=1)
    default_replication_factor: Int = key(
        1, "Replicas of a topic that is created without a number.", ge=1, le=SHORT_MAX
    )
    auto_create_topics_enable: bool = key(False, "Whether a metadata request for an unknown topic creates it.")
    delete_topic_enable: bool = key(True, "Whether topics may be deleted.")

    socket_request_max_bytes: Int = key(104_857_600, "The largest Produce frame.", ge=1)
    control_request_max_bytes: Int = key(1_048_576, "The largest frame of any other request.", ge=1024)
    socket_send_buffer_bytes: Int = key(
        -1, "Send buffer of a connection; -1: 102400 until its peer has read that much, then the system's.", ge=-1
    )
    socket_receive_buffer_bytes: Int = key(-1, "Receive buffer of a connection; -1: the system's.", ge=-1)
    socket_listen_backlog_size: Int = key(1_024, "Connections that wait to be accepted.", ge=1)
    socket_receive_timeout_ms: Long = key(
        30_000, "A connection is closed if neither 64 KiB nor the rest of a request arrive in this time.", ge=1
    )
    socket_send_timeout_ms: Long = key(
        300_000, "A connection is closed if its peer reads none of the waiting responses for this time.", ge=1
    )
    queued_max_requests: Int = key(500, "Requests that wait for others; above it, connections are not read.", ge=1)
    queued_max_request_bytes: Long = key(
        268_435_456, "Memory of requests; above it, large ones are read one at a time.", ge=1
    )
    queued_max_response_bytes: Long = key(
        268_435_456, "Memory of responses that wait to be read; above it, a Fetch gets 64 KiB or one batch.", ge=1
    )
    max_connections: Int = key(
        10_000,
        "Connections at a time, at most 3/4 of the process's limit of open files; further ones are closed.",
        ge=1,
    )
    max_connections_per_ip: Int = key(INT_MAX, "Connections from one address at a time.", ge=0)
    max_connections_per_ip_overrides: Names = key((), "Other limits for single addresses: ADDRESS:NUMBER,...")
    max_connection_creation_rate: Int = key(INT_MAX, "Connections accepted per second; others wait (KIP-612).", ge=1)
    max_connection_bytes_per_second: Long = key(
        LONG_MAX,
        "Bytes of requests per second of one connection. A client above it gets the time to wait (throttle_time_ms, "
        "KIP-219), and is not read meanwhile, a minute at most per request. Not in Kafka.",
        ge=1024,
    )
    connections_max_idle_ms: Long = key(600_000, "A connection that is idle for this time is closed.", ge=1)
    shutdown_drain_timeout_ms: Long = key(
        5_000,
        "Time that a stopping broker waits until responses are complete and read before it closes connections.",
        ge=0,
    )
    num_io_threads: Int = key(8, "Worker threads for the disk and the coordination.", ge=1, le=256)
    metrics_port: Int = key(-1, "Port of /metrics and /health; 0: a free port; -1: neither.", ge=-1, le=65535)
    metrics_host: str = key("127.0.0.1", "Address of /metrics and /health, which have no authentication.")
    consumer_lag_interval_ms: Long = key(
        30_000,
        "How often the lag of groups is computed for the Prometheus endpoint; 0: never.",
        ge=0,
    )
    fetch_max_bytes: Int = key(57_671_680, "Maximum bytes in one Fetch response.", ge=1024)
    decompressed_max_bytes: Int = key(
        67_108_864, "Maximum bytes of one batch after decompression, where the broker decompresses batches.", ge=1024
    )
    producer_id_expiration_ms: Int = key(
        86_400_000, "Time after which the state of an idle idempotent producer is removed.", ge=1
    )

    authenticator: OptionalPlugin = key(None, "Identifies clients; without one every client is User:ANONYMOUS.")
    authorizer: OptionalPlugin = key(
        None, "Decides what a principal may do; without one every client may do everything."
    )
    topic_validators: PluginChoices = key(
        (), "Topic validators, in the order in which they are asked; `schemas` is the last one unless it is listed."
    )
    services: PluginChoices = key((), "Services that run beside the broker, in the order in which they are started.")

    group_min_session_timeout_ms: Int = key(6_000, "The shortest session time-out of a group member.", ge=0)
    group_max_session_timeout_ms: Int = key(1_800_000, "The longest session time-out of a group member.", ge=0)
    group_initial_rebalance_delay_ms: Int = key(3_000, "Time that an empty group waits for more members.", ge=0)
    group_max_size: Int = key(INT_MAX, "Maximum number of members of one group.", ge=1)
    offset_metadata_max_bytes: Int = key(4_096, "Maximum length of the metadata of a commit.", ge=0)
    offsets_retention_minutes: Int = key(10_080, "Time that an empty group's offsets are kept, in minutes.", ge=1)
    offsets_retention_check_interval_ms: Long = key(600_000, "Time between two checks for expired offsets.", ge=1)

    inter_broker_listener_name: str | None = key(
        None, "The listener by which brokers fetch from each other; the first of `listeners` when not set."
    )
    controlled_shutdown_enable: bool = key(
        True, "Whether a stopping broker hands its partitions over to other in-sync replicas first."
    )
    replica_lag_time_max_ms: Long = key(
        30_000, "A follower that has not caught up for this time leaves the in-sync replicas.", ge=100
    )
    replica_selector_class: ReplicaSelector = key(
        None,
        "RackAwareReplicaSelector: consumers that name their rack read from an in-sync replica in it (KIP-392); "
        "otherwise they read from the leader.",
    )
    replica_fetch_wait_max_ms: Int = key(500, "Time that a follower's Fetch waits for records.", ge=1)
    replica_fetch_min_bytes: Int = key(1, "Bytes that a follower's Fetch waits for.", ge=1)
    replica_fetch_max_bytes: Int = key(1_048_576, "Bytes of one partition in the answer to a follower.", ge=1024)
    replica_fetch_response_max_bytes: Int = key(10_485_760, "Bytes of one answer to a follower.", ge=1024)
    replica_fetch_backoff_ms: Int = key(1_000, "Longest time until a partition that failed is fetched again.", ge=1)
    replica_socket_timeout_ms: Int = key(30_000, "Time that a follower waits for its leader's answer.", ge=1_000)
    max_incremental_fetch_session_cache_slots: Int = key(1_000, "Fetch sessions at a time (KIP-227).", ge=1)

    log_retention_check_interval_ms: Long = key(300_000, "Time between two checks for old segments.", ge=1)
    log_flush_scheduler_interval_ms: Long = key(3_000, "Time between two checks for logs whose flush is due.", ge=1)

    log_flush_offset_checkpoint_interval_ms: Long = key(
        60_000,
        "Time after which written data is flushed in the background; a restart after a crash does not read it.",
        ge=1,
    )
    num_recovery_threads_per_data_dir: Int = key(2, "Threads that open the logs at start-up.", ge=1, le=64)

    log_verify_on_read: bool = key(False, "Whether every read checks the CRC of its batches; clients check it anyway.")
    log_scrub_bytes_per_second: Long = key(
        4_194_304, "Bytes of old segments that are re-read and checked per second; 0: none.", ge=0
    )
    log_scrub_interval_ms: Long = key(
        604_800_000, "Time between the end of one such pass and the start of the next.", ge=0
    )

    log_cleaner_enable: bool = key(True, "Whether topics with cleanup.policy=compact are compacted.")
    log_cleaner_threads: Int = key(1, "Threads that compact logs.", ge=0)
    log_cleaner_dedupe_buffer_size: Long = key(
        134_217_728, "Memory for the last offsets of keys, all threads together; a larger log takes several passes.",
        ge=1_048_576,
    )  # fmt: skip
    log_cleaner_io_max_bytes_per_second: Double = key(
        sys.float_info.max, "Most bytes that compaction reads and writes in a second.", ge=1
    )
    log_cleaner_backoff_ms: Long = key(
        15_000, "Wait before the next search for logs to compact, if there was none.", ge=0
    )

    auto_leader_rebalance_enable: bool = key(True, "Whether the controller lets preferred leaders lead again.")
    leader_imbalance_check_interval_seconds: Long = key(
        300, "Time between two checks for preferred leaders that do not lead, in seconds.", ge=1
    )
    leader_imbalance_per_broker_percentage: Int = key(
        10, "Percentage of the partitions that prefer a broker above which others may not lead them.", ge=0
    )
    leader_replication_throttled_rate: Long = key(
        LONG_MAX, "Most bytes per second that leaders send to throttled replicas that are not in sync (KIP-73).", ge=1
    )
    follower_replication_throttled_rate: Long = key(
        LONG_MAX, "Most bytes per second that throttled replicas of this broker fetch while not in sync (KIP-73).", ge=1
    )

    compression_type: str = key(_TOPIC.compression_type, "Default of the topic config compression.type.")
    message_max_bytes: Int = key(_TOPIC.max_message_bytes, "Default of the topic config max.message.bytes.", ge=0)
    min_insync_replicas: Int = key(_TOPIC.min_insync_replicas, "Default of min.insync.replicas.", ge=1)
    log_cleanup_policy: CleanupPolicy = key(_TOPIC.cleanup_policy, "Default of cleanup.policy.")
    log_cleaner_delete_retention_ms: Long = key(_TOPIC.delete_retention_ms, "Default of delete.retention.ms.", ge=0)
    log_cleaner_max_compaction_lag_ms: Long = key(
        _TOPIC.max_compaction_lag_ms, "Default of max.compaction.lag.ms.", ge=1
    )
    log_cleaner_min_cleanable_ratio: Double = key(0.5, "Default of min.cleanable.dirty.ratio.", ge=0, le=1)
    log_cleaner_min_compaction_lag_ms: Long = key(0, "Default of min.compaction.lag.ms.", ge=0)
    log_flush_interval_messages: Long = key(_TOPIC.flush_messages, "Default of flush.messages.", ge=1)
    log_flush_interval_ms: Long = key(_TOPIC.flush_ms, "Default of flush.ms.", ge=0)
    log_index_interval_bytes: Int = key(_TOPIC.index_interval_bytes, "Default of index.interval.bytes.", ge=0)
    log_index_size_max_bytes: Int = key(_TOPIC.segment_index_bytes, "Default of segment.index.bytes.", ge=4)
    log_message_timestamp_after_max_ms: Long = key(
        _TOPIC.message_timestamp_after_max_ms, "Default of message.timestamp.after.max.ms.", ge=0
    )
    log_message_timestamp_before_max_ms: Long = key(
        _TOPIC.message_timestamp_before_max_ms, "Default of message.timestamp.before.max.ms.", ge=0
    )
    log_message_timestamp_type: TimestampType = key("CreateTime", "Default of message.timestamp.type.")
    log_retention_bytes: Long = key(_TOPIC.retention_bytes, "Default of retention.bytes.", ge=-1)
    log_retention_ms: Long | None = key(None, "Default of retention.ms.", ge=-1)
    log_retention_minutes: Int | None = key(None, "The same in minutes, when log.retention.ms is not set.", ge=-1)
    log_retention_hours: Int = key(168, "The same in hours, when neither is set.", ge=-1)
    log_roll_ms: Long | None = key(None, "Default of segment.ms.", ge=1)
    log_roll_hours: Int = key(168, "The same in hours, when log.roll.ms is not set.", ge=1)
    log_segment_bytes: Int = key(_TOPIC.segment_bytes, "Default of segment.bytes.", ge=14)
    log_segment_delete_delay_ms: Long = key(_TOPIC.file_delete_delay_ms, "Default of file.delete.delay.ms.", ge=0)
    unclean_leader_election_enable: bool = key(False, "Default of unclean.leader.election.enable.")
    log_verify_payload: VerifyPayload = key(_TOPIC.verify_payload, "Default of verify.payload.")

    @field_validator("max_connections_per_ip_overrides")
    @classmethod
    def _address_and_number(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            address, _, number = entry.rpartition(":")
            try:
                ip_address(address.strip("[] "))
            except ValueError as error:
                raise ValueError(f"expected ADDRESS:NUMBER, got {entry!r}") from error
            if not number.strip().isdecimal():
                raise ValueError(f"expected ADDRESS:NUMBER, got {entry!r}")
        return value

    @field_validator("listeners", "advertised_listeners", mode="before")
    @classmethod
    def _joined(cls, value: Any) -> Any:
        return ",".join(map(str, value)) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _consistent(self) -> BrokerConfig:
        for name, parse in (("listeners", self.bound), ("advertised.listeners", self.advertised)):
            try:
                parse()
            except ValueError as error:
                raise wrong_key(name, str(error)) from error
        names = [listener.name for listener in self.bound()]
        for listener in self.advertised():
            if listener.name not in names:
                raise wrong_key("advertised.listeners", f"has {listener.name}, which is not in listeners")
            if listener.host in ("", "0.0.0.0", "::"):
                raise wrong_key(
                    "advertised.listeners", f"clients cannot connect to {listener}; give a reachable address"
                )
        if self.inter_broker_listener_name not in (None, *names):
            known = ", ".join(names)
            raise wrong_key(
                "inter.broker.listener.name", f"{self.inter_broker_listener_name} is not in listeners ({known})"
            )
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise wrong_key("group.min.session.timeout.ms", "is above group.max.session.timeout.ms")
        return self

    @property
    def without_effect(self) -> Mapping[str, str]:
        """Kafka's keys that are set and have no effect here: checked, stored and shown."""
        return self._without_effect

    def with_kafka_keys(self, found: Mapping[str, str]) -> Self:
        """Returns a copy with these `without_effect`, as `kafka_keys_of` has returned them."""
        copy = self.model_copy()
        copy._without_effect = dict(found)
        return copy

    def security_protocols(self) -> dict[str, str]:
        """Returns the security protocol of each listener name."""
        pairs = (part.strip().partition(":") for part in self.listener_security_protocol_map.split(","))
        return {name: protocol for name, _, protocol in pairs}

    def bound(self) -> list[ListenerAddress]:
        """Returns the addresses to listen on, at least one."""
        return parse_listeners(self.listeners, self.security_protocols())

    def advertised(self) -> list[ListenerAddress]:
        """Returns the addresses that clients get. Port 0 stands for the port that was bound."""
        return parse_listeners(self.advertised_listeners or self.listeners, self.security_protocols())

    def connection_overrides(self) -> dict[str, int]:
        """Returns `max.connections.per.ip.overrides` by address."""
        pairs = (entry.rpartition(":") for entry in self.max_connections_per_ip_overrides)
        return {address.strip("[] "): int(number) for address, _, number in pairs}

    def topic_defaults(self) -> TopicConfig:
        """Returns the configuration of a topic that sets nothing itself."""
        found = {name: self.topic_default(name)[1] for name in BROKER_SYNONYMS}
        return TopicConfig.model_validate(found)

    def topic_default(self, name: str) -> tuple[str, Any]:
        """Returns the broker key that gives the default of a topic config, and its value in the topic's unit."""
        for broker_key, factor in BROKER_SYNONYMS[name]:
            value = getattr(self, broker_key.replace(".", "_"))
            if value is not None:
                return broker_key, value if factor == 1 or value == -1 else value * factor
        raise AssertionError(f"the last synonym of {name} always has a value")

    def is_set(self, broker_key: str) -> bool:
        """Returns whether the file sets the key (in DescribeConfigs: static broker config, not default)."""
        return broker_key in {dotted(field) for field in self.model_fields_set}


_OWN_KEYS = frozenset(dotted(name) for name in BrokerConfig.model_fields)


def kafka_keys_of(given: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns, of the keys given for a broker, those of Kafka that are no fields of `BrokerConfig`: the accepted
    ones with their values, and the refused ones with the reason."""
    found, wrong = {}, {}
    for name in given:
        if name in BROKER_KEYS and name not in _OWN_KEYS:
            try:
                found[name] = accepted(BROKER_KEYS[name], given[name])
            except ValueError as error:
                wrong[name] = str(error)
    return found, wrong
