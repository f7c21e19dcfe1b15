"""ApiVersions (KIP-35, KIP-511, KIP-584, KIP-1242): the served APIs and versions, what else this broker can do, and the
client's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import ErrorCode
from ...protocol.api_versions import VERSION as NAMES_BROKER_FROM
from ...protocol.apis import ApiKey
from ...protocol.messages import Entity
from ...protocol.produce.conditional import FEATURE as CONDITIONAL_APPEND
from ..request import Request
from ..services import Services

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""KIP-511's form of a client's software name and version."""


def _wrong_broker(services: Services, message: Any) -> ErrorCode:
    """Returns REBOOTSTRAP_REQUIRED if the client expects another broker at this address, for instance since the
    address was given to another broker. A client names both cluster and broker, or neither."""
    named = message.cluster_id, message.node_id
    if named == (None, -1) or named == (services.image.cluster_id, services.broker_id):
        return ErrorCode.none
    return ErrorCode.invalid_request if None in named or -1 in named else ErrorCode.rebootstrap_required


def api_versions(services: Services, request: Request, advertised: Mapping[ApiKey, tuple[int, int]]) -> Entity:
    """Answers the served APIs. `advertised`: the lowest and the highest version of each."""
    error = ErrorCode.none
    if request.message is None:
        error = ErrorCode.unsupported_version
    elif request.version >= 3:
        name, version = request.message.client_software_name, request.message.client_software_version
        if _SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version):
            request.connection.introduce(name, version)
            if request.version >= NAMES_BROKER_FROM:
                error = _wrong_broker(services, request.message)
        else:
            error = ErrorCode.invalid_request
    ranges = advertised.items() if error in (ErrorCode.none, ErrorCode.unsupported_version) else ()
    keys = tuple(request.part("ApiVersion", api_key=k, min_version=low, max_version=high) for k, (low, high) in ranges)
    return request.respond(
        error_code=error,
        api_keys=keys,
        supported_features=(
            (request.part("SupportedFeatureKey", name=CONDITIONAL_APPEND, min_version=1, max_version=1),)
            if request.version >= 3
            else ()
        ),
    )
