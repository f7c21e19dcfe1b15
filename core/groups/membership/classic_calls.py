"""The requests that a member of a classic group sends to its coordinator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from ...errors import ErrorCode
from ...interfaces.offsets import CommittedOffset
from ...protocol.apis import ApiKey
from ...protocol.messages import Schema
from ...records.partition import TopicPartition
from .consumer_protocol import encode_subscription

PROTOCOL_TYPE = "consumer"


class CoordinatorClient(Protocol):
    """The part of a client that a member uses; `klamm.core.client.cluster_client.ClusterClient` implements it.
    Blocking and thread-safe. Retriable errors, such as a moved or loading coordinator, are retried within
    `timeout_s`; others raise `BrokerError`. After each `check_s` seconds without an answer the client checks whether
    the coordinator has moved."""

    def call_coordinator(
        self,
        group: str,
        api: ApiKey,
        build: Callable[[Schema], Any],
        errors: Callable[[Any], Iterable[ErrorCode]],
        *,
        timeout_s: float | None = None,
        check_s: float | None = None,
    ) -> Any: ...

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
        generation: int = -1,
        timeout_s: float | None = None,
    ) -> None: ...

    def fetch_offsets(
        self, group: str, partitions: Collection[TopicPartition] | None = None, *, timeout_s: float | None = None
    ) -> dict[TopicPartition, CommittedOffset]: ...


@dataclass(frozen=True)
class ClassicSettings:
    """`subscription`: the number of this member's streams by topic. `strategies`: names of assignors in the order of
    preference. Times are in seconds; `max_poll_interval_s` is also the rebalance time-out (KIP-62)."""

    group: str
    subscription: Mapping[str, int]
    strategies: tuple[str, ...] = ("range",)
    session_timeout_s: float = 45.0
    heartbeat_s: float = 3.0
    max_poll_interval_s: float = 300.0
    request_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Joined:
    """The result of a join. `subscriptions` (metadata by member id) is set for the leader only."""

    member_id: str
    generation: int
    protocol: str
    leads: bool
    subscriptions: Mapping[str, bytes]


class ClassicCalls:
    """One member's requests. Each raises `BrokerError` with the coordinator's code if it is refused."""

    def __init__(self, client: CoordinatorClient, settings: ClassicSettings) -> None:
        self._client = client
        self._settings = settings

    def join(self, member_id: str, on_member_id: Callable[[str], None]) -> Joined:
        """Joins, and waits until the rebalance ends. The coordinator may first respond with the member id to join with
        (KIP-394); it is passed to `on_member_id`, so that a member that is closed in the meantime can leave."""
        message = self._join_once(member_id)
        if message.error_code is ErrorCode.member_id_required:
            on_member_id(message.member_id)
            message = self._join_once(message.member_id)
        return Joined(
            message.member_id,
            message.generation_id,
            message.protocol_name or "",
            message.leader == message.member_id,
            {member.member_id: member.metadata for member in message.members},
        )

    def _join_once(self, member_id: str) -> Any:
        settings = self._settings
        metadata = encode_subscription(settings.subscription)

        def build(schema: Schema) -> Any:
            return schema.message(
                group_id=settings.group,
                session_timeout=timedelta(seconds=settings.session_timeout_s),
                rebalance_timeout=timedelta(seconds=settings.max_poll_interval_s),
                member_id=member_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=[{"name": name, "metadata": metadata} for name in settings.strategies],
            )

        def errors(message: Any) -> list[ErrorCode]:
            return [] if message.error_code is ErrorCode.member_id_required else [message.error_code]

        return self._wait(ApiKey.JOIN_GROUP, build, errors)

    def sync(self, joined: Joined, assignments: Mapping[str, bytes]) -> bytes:
        """Returns this member's assignment, once the leader has sent it."""

        def build(schema: Schema) -> Any:
            return schema.message(
                group_id=self._settings.group,
                generation_id=joined.generation,
                member_id=joined.member_id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=joined.protocol,
                assignments=[{"member_id": member, "assignment": share} for member, share in assignments.items()],
            )

        return bytes(self._wait(ApiKey.SYNC_GROUP, build, _error).assignment)

    def _wait(self, api: ApiKey, build: Callable[[Schema], Any], errors: Callable[[Any], Iterable[ErrorCode]]) -> Any:
        """Sends a request that the coordinator answers when all members have sent theirs. A rebalance may last long, so
        a coordinator that does not answer because it has stopped is noticed by asking who coordinates the group, once
        in each heartbeat interval."""
        settings = self._settings
        timeout_s = settings.max_poll_interval_s + settings.request_timeout_s
        return self._client.call_coordinator(
            settings.group, api, build, errors, timeout_s=timeout_s, check_s=settings.heartbeat_s
        )

    def heartbeat(self, member_id: str, generation: int) -> None:
        def build(schema: Schema) -> Any:
            return schema.build(group_id=self._settings.group, generation_id=generation, member_id=member_id)

        self._client.call_coordinator(
            self._settings.group, ApiKey.HEARTBEAT, build, _error, timeout_s=self._settings.heartbeat_s
        )

    def leave(self, member_id: str) -> None:
        def build(schema: Schema) -> Any:
            members = [{"member_id": member_id, "group_instance_id": None}]
            return schema.message(group_id=self._settings.group, member_id=member_id, members=members)

        timeout_s = min(self._settings.request_timeout_s, 5.0)
        self._client.call_coordinator(self._settings.group, ApiKey.LEAVE_GROUP, build, _error, timeout_s=timeout_s)


def _error(message: Any) -> list[ErrorCode]:
    return [message.error_code]
