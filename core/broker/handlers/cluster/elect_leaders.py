"""ElectLeaders (KIP-183, KIP-460): preferred leaders lead again, or any live replica where there is no leader."""

from __future__ import annotations

import logging

from ....errors import BrokerError, ErrorCode, KlammError
from ....interfaces.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from ....protocol.messages import Entity
from ....records.partition import TopicPartition
from ...request import Request
from ...services import Services
from ..topics.answers import wire_error

log = logging.getLogger(__name__)
_PREFERRED, _UNCLEAN = 0, 1


async def elect_leaders(services: Services, request: Request) -> Entity:
    """Answers when the elections are written. Null partitions stand for all; those that need no election are then left
    out. Version 0 knows only preferred leaders, and has no error for the whole request.
    """
    topics = request.message.topic_partitions
    asked = None if topics is None else [TopicPartition(t.topic, number) for t in topics for number in t.partitions]
    try:
        services.access.check(request, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
        unclean = _is_unclean(request)
        results = await services.workers.coordination(services.cluster.elect, asked, unclean=unclean)
    except KlammError as error:
        code, text = wire_error(error)
        return _answer(request, code, dict.fromkeys(asked or (), (code, text)))
    elected = [str(tp) for tp, (code, _) in results.items() if code is ErrorCode.none]
    if elected:
        log.info("%s leaders elected for %s", "unclean" if unclean else "preferred", ", ".join(sorted(elected)))
    await services.leadership.refresh()
    return _answer(request, ErrorCode.none, results)


def _is_unclean(request: Request) -> bool:
    kind = request.message.election_type if request.version >= 1 else _PREFERRED
    if kind not in (_PREFERRED, _UNCLEAN):
        raise BrokerError(ErrorCode.invalid_request, f"election type {kind}: expected 0 (preferred) or 1 (unclean)")
    return bool(kind == _UNCLEAN)


def _answer(request: Request, code: ErrorCode, results: dict[TopicPartition, tuple[ErrorCode, str]]) -> Entity:
    topics: dict[str, list[Entity]] = {}
    for tp, (error, text) in results.items():
        row = request.part(
            "PartitionResult", partition_id=tp.partition, error_code=error, error_message=text if error else None
        )
        topics.setdefault(tp.topic, []).append(row)
    return request.respond(
        error_code=code,
        replica_election_results=tuple(
            request.part("ReplicaElectionResult", topic=topic, partition_result=tuple(rows))
            for topic, rows in topics.items()
        ),
    )
