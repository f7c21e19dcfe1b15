"""UpdateFeatures (KIP-584, KIP-778, KIP-1022): sets the finalized levels of features, all of the request or none."""

from __future__ import annotations

import logging
from typing import Any

from ....cluster.features import FeatureUpdate, UpgradeType
from ....errors import BrokerError, ErrorCode, KlammError
from ....interfaces.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from ....protocol.messages import Entity
from ...request import Request
from ...services import Services
from ..topics.answers import wire_error

log = logging.getLogger(__name__)


async def update_features(services: Services, request: Request) -> Entity:
    """Answered by the controller, once the levels are stored. Up to version 1 every feature of the request has its
    own result; all are the same."""
    validate_only = getattr(request.message, "validate_only", False)
    try:
        services.access.check(request, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
        updates = [_update(request, asked) for asked in request.message.feature_updates]
        if not updates:
            raise BrokerError(ErrorCode.invalid_request, "the request names no feature")
        await services.workers.coordination(services.cluster.update_features, updates, validate_only=validate_only)
    except KlammError as error:
        return _answer(request, *wire_error(error))
    if not validate_only:
        log.info("feature levels are now %s", ", ".join(f"{each.name} {each.level}" for each in updates))
    return _answer(request, ErrorCode.none, None)


def _update(request: Request, asked: Any) -> FeatureUpdate:
    if request.version == 0:
        kind = int(UpgradeType.SAFE_DOWNGRADE if asked.allow_downgrade else UpgradeType.UPGRADE)
    else:
        kind = asked.upgrade_type
    return FeatureUpdate(asked.feature, asked.max_version_level, kind)


def _answer(request: Request, code: ErrorCode, text: str | None) -> Entity:
    results = (
        tuple(
            request.part("UpdatableFeatureResult", feature=asked.feature, error_code=code, error_message=text)
            for asked in request.message.feature_updates
        )
        if request.version <= 1
        else ()
    )
    return request.respond(error_code=code, error_message=text, results=results)
