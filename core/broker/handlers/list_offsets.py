"""ListOffsets: returns the first offset, the next one, or the first at or after a timestamp (KIP-79, KIP-734).

There is no tiered storage (KIP-405): the first local offset is the first offset, and the highest tiered offset and
the first one to be uploaded (KIP-1005, KIP-1023) are unknown, as in a Kafka without it. So the time-out of version
10 and above, for reads of tiered storage, is ignored.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...errors import BrokerError, ErrorCode, KlammError
from ...interfaces.security.authorizer import AclOperation, ResourceType
from ...log.partition_log import ReadIsolation
from ...protocol.messages import Entity
from ..replication.replica import Replica
from ..request import Request
from ..services import Services

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_FROM = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""The first version in which a negative timestamp has a meaning."""
_NOT_FOUND = (-1, -1, -1)


async def list_offsets(services: Services, request: Request) -> Entity:
    """Looks up the offsets. A search by time may open batches, so it runs on a worker thread. A partition that is
    named more than once has INVALID_REQUEST, as in Kafka."""
    topics = []
    asked = Counter((topic.name, p.partition_index) for topic in request.message.topics for p in topic.partitions)
    for topic in request.message.topics:
        refused = services.access.refusal(request, AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name)
        parts = []
        for p in topic.partitions:
            twice = None if asked[topic.name, p.partition_index] == 1 else ErrorCode.invalid_request
            parts.append(await _partition(services, request, topic.name, p, refused or twice))
        topics.append(request.part("ListOffsetsTopicResponse", name=topic.name, partitions=tuple(parts)))
    return request.respond(topics=tuple(topics))


async def _partition(services: Services, request: Request, topic: str, asked: Any, refused: ErrorCode | None) -> Entity:
    code, found = ErrorCode.none, _NOT_FOUND
    epoch = asked.current_leader_epoch if request.version >= 4 else -1
    led = refused or services.led(topic, asked.partition_index, epoch)
    if isinstance(led, Replica):
        try:
            found = await _find(services, request, led, asked.timestamp)
        except KlammError as error:
            code = error.code
    else:
        code = led
    timestamp, offset, leader_epoch = found
    return request.part(
        "ListOffsetsPartitionResponse",
        partition_index=asked.partition_index,
        error_code=code,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=leader_epoch,
    )


async def _find(services: Services, request: Request, led: Replica, timestamp: int) -> tuple[int, int, int]:
    """Returns (timestamp, offset, leader epoch), each -1 if there is none."""
    isolation = ReadIsolation.of(request.message.isolation_level if request.version >= 2 else 0)
    if timestamp < 0 and request.version < _FROM.get(timestamp, 1 << 16):
        raise BrokerError(ErrorCode.unsupported_version, f"{led.name}: timestamp {timestamp} has no meaning here")
    if timestamp == LATEST:
        _check_watermark(request, led)
        return -1, led.log.end_for(isolation), led.leader_epoch
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NOT_FOUND
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, led.log.log_start_offset, led.leader_epoch
    if timestamp == MAX_TIMESTAMP:
        found = await services.workers.disk(led.log.offset_of_largest_timestamp, isolation=isolation)
    else:
        found = await services.workers.disk(led.log.offset_for_timestamp, timestamp, isolation=isolation)
    if found is None:
        if led.leader is None:
            raise BrokerError(ErrorCode.not_leader_or_follower, f"{led.name}: deposed while the offset was looked up")
        _check_watermark(request, led)
    return found or _NOT_FOUND


def _check_watermark(request: Request, led: Replica) -> None:
    """Raises `BrokerError` OFFSET_NOT_AVAILABLE if this is a new leader that does not know the high watermark yet:
    the requested record may be committed and not be visible here (KIP-207)."""
    if led.leader is not None and not led.leader.latest_offset_is_known:
        newer = request.version >= 5
        code = ErrorCode.offset_not_available if newer else ErrorCode.leader_not_available
        raise BrokerError(code, f"{led.name}: the new leader does not know the high watermark yet")
