"""The faults that a test plants in a broker's answers (`KlammBroker.fail_next`, `delay_next`, `disconnect_next`).

`Faults` holds the requested faults; `FaultyDispatch` wraps the broker's dispatcher and carries them out. A request
without a fault passes unchanged.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from klamm.core.broker.delayed_reply import DelayedReply, Reply
from klamm.core.broker.handlers.dispatch import read_request
from klamm.core.broker.handlers.table import APIS
from klamm.core.broker.request import ConnectionContext, Dispatch, Request
from klamm.core.errors import ErrorCode, ProtocolError
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.fetch import Fetched, write_fetch_response
from klamm.core.protocol.headers import response_frame
from klamm.core.protocol.messages import Buffer
from klamm.core.protocol.produce.response import Produced, write_produce_response

__all__ = ["Fault", "Faults", "FaultyDispatch", "api_named", "error_named"]

_BY_NAME: Final = {api.name.replace("_", "").lower(): api for api in APIS}


def api_named(name: str) -> ApiKey:
    """Returns the API of this name, as Kafka's protocol guide writes it (`FindCoordinator`) or as a constant."""
    found = _BY_NAME.get(name.replace("_", "").lower())
    if found is None:
        spelled = {"".join(word.capitalize() for word in api.name.split("_")): api for api in APIS}
        raise ValueError(f"no request {name!r} is served{_nearest(name, list(spelled))}")
    return found


def error_named(name: str) -> ErrorCode:
    """Returns the error code of Kafka's name for it, such as `NOT_LEADER_OR_FOLLOWER`."""
    known = {code.name.upper(): code for code in ErrorCode}
    if name.upper() not in known:
        raise ValueError(f"Kafka has no error {name!r}{_nearest(name.upper(), list(known))}")
    return known[name.upper()]


def _nearest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f": is {near[0]} meant?" if near else ""


@dataclass(slots=True)
class Fault:
    """The fault of requests of one API. `left`: how many more times it happens; None: until it is cleared."""

    api: ApiKey
    left: int | None
    error: ErrorCode | None = None
    delay_s: float = 0.0
    carried_out: bool = False
    """For a fault without error or delay: whether the request takes effect before its connection is closed."""

    def __str__(self) -> str:
        what = "disconnect"
        if self.error is not None:
            what = f"fail with {self.error.name.upper()}"
        elif self.delay_s:
            what = f"delay by {self.delay_s:g} s"
        elif self.carried_out:
            what = "disconnect after it is carried out"
        return f"{self.api.name}: {what}, {'until cleared' if self.left is None else f'{self.left} more'}"


class Faults:
    """Thread-safe. Faults of one API happen in the order in which they were added."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Raises `ValueError` if no such answer can be made."""
        if fault.left is not None and fault.left < 1:
            raise ValueError(f"times={fault.left}: should be at least 1, or None")
        if fault.error is not None and fault.api not in _REFUSALS:
            able = ", ".join(sorted(api.name for api in _REFUSALS))
            raise ValueError(f"{fault.api.name} cannot be answered with an error by this switch; {able} can")
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def take(self, api: int) -> Fault | None:
        """Returns the next fault of this API, and counts it."""
        if not self._faults:
            return None
        with self._lock:
            found = next((fault for fault in self._faults if fault.api == api), None)
            if found is not None and found.left is not None:
                found.left -= 1
                if not found.left:
                    self._faults.remove(found)
        return found

    def lines(self) -> list[str]:
        with self._lock:
            return [str(fault) for fault in self._faults]


class FaultyDispatch:
    """A connection's `Dispatch` that wraps another. Belongs to the event loop."""

    def __init__(self, faults: Faults, dispatch: Dispatch) -> None:
        self._faults = faults
        self._dispatch = dispatch

    def __call__(
        self, connection: ConnectionContext, frame: bytearray
    ) -> Reply | DelayedReply | Coroutine[Any, Any, Reply]:
        fault = self._faults.take(int.from_bytes(frame[:2]))
        if fault is None:
            return self._dispatch(connection, frame)
        if fault.error is not None:
            return _refused(read_request(connection, frame, APIS)[1], fault.error)
        if fault.delay_s or fault.carried_out:
            return self._carried_out(connection, frame, fault)
        raise _disconnected(fault)

    async def _carried_out(self, connection: ConnectionContext, frame: bytearray, fault: Fault) -> Reply:
        await asyncio.sleep(fault.delay_s)
        outcome = self._dispatch(connection, frame)
        if isinstance(outcome, DelayedReply):
            await outcome.outcome()
            outcome = outcome.take()
        reply = await outcome if asyncio.iscoroutine(outcome) else outcome
        if fault.carried_out:
            raise _disconnected(fault)
        return reply


def _disconnected(fault: Fault) -> ProtocolError:
    return ProtocolError(f"the test closes the connection of this {fault.api.name}")


def _refused(request: Request, error: ErrorCode) -> Reply:
    """Returns the answer to a request that is not carried out. As in Kafka, a Produce without acks has none: its
    connection is closed."""
    if request.api is ApiKey.PRODUCE and request.message.acks == 0:
        raise ProtocolError(f"the test refuses a Produce with acks=0: {error.name.upper()}")
    return response_frame(request.api, request.version, request.correlation_id, _REFUSALS[request.api](request, error))


def _produce(request: Request, error: ErrorCode) -> list[Buffer]:
    refused = [Produced(p.topic, p.partition, error) for p in request.message.partitions]
    return [write_produce_response(refused, request.version)]


def _fetch(request: Request, error: ErrorCode) -> list[Buffer]:
    """Returns the error of each partition that the request names; of the request, if it names none (KIP-227)."""
    by_id = request.version >= 13
    refused = [
        Fetched(topic.topic_id.bytes if by_id else topic.topic, partition.partition, error)
        for topic in request.message.topics
        for partition in topic.partitions
    ]
    whole = ErrorCode.none if refused else error
    return write_fetch_response(refused, request.version, error=whole)


def _list_offsets(request: Request, error: ErrorCode) -> list[Buffer]:
    unknown = {"error_code": error, "timestamp": -1, "offset": -1, "leader_epoch": -1}
    topics = [
        request.part(
            "ListOffsetsTopicResponse",
            name=topic.name,
            partitions=tuple(
                request.part("ListOffsetsPartitionResponse", partition_index=p.partition_index, **unknown)
                for p in topic.partitions
            ),
        )
        for topic in request.message.topics
    ]
    return _body(request, topics=tuple(topics))


def _offset_commit(request: Request, error: ErrorCode) -> list[Buffer]:
    kind = "topic_id" if request.version >= 10 else "name"
    topics = [
        request.part(
            "OffsetCommitResponseTopic",
            **{kind: getattr(topic, kind)},
            partitions=tuple(
                request.part("OffsetCommitResponsePartition", partition_index=p.partition_index, error_code=error)
                for p in topic.partitions
            ),
        )
        for topic in request.message.topics
    ]
    return _body(request, topics=tuple(topics))


def _create_topics(request: Request, error: ErrorCode) -> list[Buffer]:
    topics = [
        request.part(
            "CreatableTopicResult", name=topic.name, error_code=error, error_message=None, configs=(), topic_id=None
        )
        for topic in request.message.topics
    ]
    return _body(request, topics=tuple(topics))


def _find_coordinator(request: Request, error: ErrorCode) -> list[Buffer]:
    row = {"error_code": error, "error_message": None, "node_id": -1, "host": "", "port": -1}
    if request.version < 4:
        return _body(request, **row)
    keys = request.message.coordinator_keys
    return _body(request, coordinators=tuple(request.part("Coordinator", key=key, **row) for key in keys))


def _init_producer_id(request: Request, error: ErrorCode) -> list[Buffer]:
    return _body(request, error_code=error, producer_id=-1, producer_epoch=-1)


def _join_group(request: Request, error: ErrorCode) -> list[Buffer]:
    protocol = None if request.version >= 7 else ""
    return _body(
        request, error_code=error, generation_id=-1, protocol_type=None, protocol_name=protocol, leader="",
        skip_assignment=False, member_id=request.message.member_id, members=(),
    )  # fmt: skip


def _sync_group(request: Request, error: ErrorCode) -> list[Buffer]:
    return _body(request, error_code=error, assignment=b"", protocol_type=None, protocol_name=None)


def _heartbeat(request: Request, error: ErrorCode) -> list[Buffer]:
    return _body(request, error_code=error)


def _body(request: Request, **fields: object) -> list[Buffer]:
    assert request.reply is not None
    return [request.reply.encode(request.respond(**fields))]


_REFUSALS: Final[dict[ApiKey, Callable[[Request, ErrorCode], list[Buffer]]]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.JOIN_GROUP: _join_group,
    ApiKey.SYNC_GROUP: _sync_group,
    ApiKey.HEARTBEAT: _heartbeat,
}
"""The body of the answer that refuses a request of each API."""
