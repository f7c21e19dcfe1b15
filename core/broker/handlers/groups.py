"""Classic consumer groups: translates the requests for the coordinator of `core/groups`, which decides everything."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ...errors import ErrorCode, KlammError
from ...groups.coordinator.requests import (
    DescribedGroup,
    GroupState,
    JoinRequest,
    JoinResult,
    MemberIdentity,
    SyncRequest,
    SyncResult,
)
from ...interfaces.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from ...protocol.messages import Entity
from ...replication.partition_state import NO_LEADER
from ..coordinator.coordinator_errors import commit_code
from ..request import Request
from ..services import Services
from .metadata import nodes

_GROUP_KEY, _TRANSACTION_KEY = 0, 1
_CLASSIC = "classic"


def _ms(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)


def _refusal(services: Services, request: Request, operation: AclOperation, group_id: str) -> ErrorCode | None:
    return services.access.refusal(request, operation, ResourceType.GROUP, group_id)


async def find_coordinator(services: Services, request: Request) -> Entity:
    message = request.message
    keys = message.coordinator_keys if request.version >= 4 else (message.key,)
    of_groups = request.version == 0 or message.key_type == _GROUP_KEY
    found = [await _coordinator(services, request, key, of_groups) for key in keys]
    if request.version >= 4:
        return request.respond(coordinators=tuple(request.part("Coordinator", **row) for row in found))
    return request.respond(**found[0])


async def _coordinator(services: Services, request: Request, key: str, of_groups: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"key": key, "node_id": -1, "host": "", "port": -1, "error_message": None}
    if not of_groups and request.message.key_type != _TRANSACTION_KEY:
        code = ErrorCode.invalid_request
        return {**row, "error_code": code, "error_message": f"{request.message.key_type} is no kind of key"}
    if not of_groups:  # the one error at which every client stops at once, as with InitProducerId
        code = ErrorCode.transactional_id_authorization_failed
        return {**row, "error_code": code, "error_message": "transactions are not served"}
    refused = _refusal(services, request, AclOperation.DESCRIBE, key)
    if refused is not None:
        return {**row, "error_code": refused}
    message = "the group's partition of __consumer_offsets has no leader now"
    try:
        node_id = await services.groups.find_coordinator(key)
    except KlammError as error:
        node_id, message = NO_LEADER, str(error)
    for node, host, port, _ in nodes(services, request.listener):
        if node == node_id:
            return {**row, "node_id": node, "host": host, "port": port, "error_code": ErrorCode.none}
    return {**row, "error_code": ErrorCode.coordinator_not_available, "error_message": message}


async def join_group(services: Services, request: Request) -> Entity:
    m = request.message
    connection = request.connection
    refused = _refusal(services, request, AclOperation.READ, m.group_id)
    if refused is not None:
        return _joined(request, JoinResult(refused, m.member_id))
    result = await services.groups.members.join(
        JoinRequest(
            group_id=m.group_id,
            member_id=m.member_id,
            protocol_type=m.protocol_type,
            protocols=tuple((p.name, p.metadata) for p in m.protocols),
            session_timeout_ms=_ms(m.session_timeout),
            rebalance_timeout_ms=_ms(m.rebalance_timeout) if request.version >= 1 else -1,
            instance_id=m.group_instance_id if request.version >= 5 else None,
            client_id=request.client_id,
            client_host="/" + connection.peer.rpartition(":")[0].strip("[]"),
            member_id_required=request.version >= 4,
            skips_assignment=request.version >= 9,
        )
    )
    return _joined(request, result)


def _joined(request: Request, result: JoinResult) -> Entity:
    members = tuple(
        request.part(
            "JoinGroupResponseMember",
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            metadata=member.metadata,
        )
        for member in result.members
    )
    protocol = result.protocol if result.protocol is not None or request.version >= 7 else ""
    return request.respond(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=protocol,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=members,
    )


async def sync_group(services: Services, request: Request) -> Entity:
    m = request.message
    refused = _refusal(services, request, AclOperation.READ, m.group_id)
    if refused is not None:
        return _synced(request, SyncResult(refused))
    result = await services.groups.members.sync(
        SyncRequest(
            group_id=m.group_id,
            member_id=m.member_id,
            generation=m.generation_id,
            assignments=tuple((a.member_id, a.assignment) for a in m.assignments),
            instance_id=m.group_instance_id if request.version >= 3 else None,
            protocol_type=m.protocol_type if request.version >= 5 else None,
            protocol=m.protocol_name if request.version >= 5 else None,
        )
    )
    return _synced(request, result)


def _synced(request: Request, result: SyncResult) -> Entity:
    return request.respond(
        error_code=result.error,
        assignment=result.assignment,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
    )


def heartbeat(services: Services, request: Request) -> Entity:
    m = request.message
    instance_id = m.group_instance_id if request.version >= 3 else None
    code = _refusal(services, request, AclOperation.READ, m.group_id) or services.groups.not_mine(m.group_id)
    if code is None:
        code = services.groups.coordinator.heartbeat(m.group_id, m.member_id, m.generation_id, instance_id)
    return request.respond(error_code=code)


def leave_group(services: Services, request: Request) -> Entity:
    """Removes members: one up to version 2, several from version 3 on."""
    m = request.message
    several = request.version >= 3
    leaving = (
        [MemberIdentity(x.member_id, x.group_instance_id) for x in m.members]
        if several
        else [MemberIdentity(m.member_id)]
    )
    error = _refusal(services, request, AclOperation.READ, m.group_id)
    error = error or (services.groups.not_mine(m.group_id) if m.group_id else ErrorCode.invalid_group_id)
    if error is not None:
        return request.respond(error_code=error, members=())
    codes = services.groups.coordinator.leave(m.group_id, leaving)
    members = tuple(
        request.part("MemberResponse", member_id=who.member_id, group_instance_id=who.instance_id, error_code=code)
        for who, code in zip(leaving, codes, strict=True)
        if several
    )
    return request.respond(error_code=ErrorCode.none if several else codes[0], members=members)


async def list_groups(services: Services, request: Request) -> Entity:
    """Lists the groups that this broker coordinates. All are of the type "classic": a filter that does not name it
    matches none (KIP-848)."""
    states = request.message.states_filter if request.version >= 4 else ()
    types = request.message.types_filter if request.version >= 5 else ()
    try:
        with_offsets = await services.groups.offsets.groups()
    except KlammError as error:
        return request.respond(error_code=commit_code(error), groups=())
    listed = services.groups.coordinator.list_groups(states, with_offsets)
    if types and _CLASSIC not in (name.lower() for name in types):
        listed = []
    if not services.access.allows(request, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        listed = [g for g in listed if _refusal(services, request, AclOperation.DESCRIBE, g.group_id) is None]
    groups = tuple(
        request.part(
            "ListedGroup",
            group_id=g.group_id,
            protocol_type=g.protocol_type,
            group_state=g.state.value,
            group_type=_CLASSIC,
        )
        for g in listed
    )
    code = ErrorCode.coordinator_load_in_progress if services.groups.loading else ErrorCode.none
    return request.respond(error_code=code, groups=groups)


async def describe_groups(services: Services, request: Request) -> Entity:
    with_offsets, unread = frozenset[str](), ErrorCode.none
    try:
        with_offsets = frozenset(await services.groups.offsets.groups())
    except KlammError as error:
        unread = commit_code(error)  # the members are known even so
    groups = []
    for group_id in request.message.groups:
        refused = _refusal(services, request, AclOperation.DESCRIBE, group_id)
        if refused is not None:
            unseen = DescribedGroup(group_id, GroupState.DEAD)
            groups.append(_described(services, request, unseen, refused))
            continue
        code = services.groups.not_mine(group_id) or ErrorCode.none
        described = services.groups.coordinator.describe(group_id, has_offsets=group_id in with_offsets)
        if code is ErrorCode.none and described.state is GroupState.DEAD:
            code = unread  # it may have offsets
            if code is ErrorCode.none and request.version >= 6:
                code = ErrorCode.group_id_not_found
        groups.append(_described(services, request, described, code))
    return request.respond(groups=tuple(groups))


def _described(services: Services, request: Request, group: DescribedGroup, error: ErrorCode) -> Entity:
    asked = request.version >= 3 and request.message.include_authorized_operations
    members = tuple(
        request.part(
            "DescribedGroupMember",
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata,
            member_assignment=member.assignment,
        )
        for member in group.members
    )
    return request.part(
        "DescribedGroup",
        error_code=error,
        error_message=f"Group {group.group_id} not found." if error is ErrorCode.group_id_not_found else None,
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=members,
        authorized_operations=services.access.operations(
            asked and error is ErrorCode.none, request, ResourceType.GROUP, group.group_id
        ),
    )


async def delete_groups(services: Services, request: Request) -> Entity:
    results = []
    for group_id in dict.fromkeys(request.message.groups_names):
        refused = _refusal(services, request, AclOperation.DELETE, group_id)
        code = refused or await services.groups.deletions.delete(group_id)
        results.append(request.part("DeletableGroupResult", group_id=group_id, error_code=code))
    return request.respond(results=tuple(results))
