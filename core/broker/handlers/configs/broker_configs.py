"""A broker's configuration as Kafka's admin clients see and change it (KIP-226): the cluster stores the values they
set.

Resource "" is all brokers, and any broker answers it; a number is one broker, and only that broker answers it. As
with Kafka, a value that cannot be applied is INVALID_REQUEST.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ....config.describe import ConfigDescription, describe_all_brokers, describe_broker
from ....config.dynamic import DEFINITIONS, check_dynamic, is_dynamic, overlaid
from ....config.kafka_keys import BROKER_KEYS
from ....config.section import ConfigType
from ....errors import BrokerError, ConfigError, ErrorCode
from ...services import Services
from .alter_configs import Alteration, ConfigChange, changed, check_well_formed

log = logging.getLogger(__name__)


def broker_entries(services: Services, name: str) -> list[ConfigDescription]:
    live = services.live
    if _broker_id(services, name) is None:
        return describe_all_brokers(live.for_all)
    return describe_broker(live.file, live.for_all, live.for_this, live.elsewhere)


async def alter_broker(services: Services, resource: Alteration, validate_only: bool) -> None:
    broker_id = _broker_id(services, resource.resource_name)
    check_well_formed(_what(broker_id), resource.configs)

    def change(stored: Mapping[str, str]) -> Mapping[str, str]:
        return _changed(services, broker_id, stored, resource.changes(stored))

    if validate_only:
        change(services.cluster.image().broker_config(broker_id))
        return
    await services.workers.coordination(services.cluster.alter_broker_config, broker_id, change)
    log.info("%s: changed %s", _what(broker_id), ", ".join(sorted(c.name for c in resource.configs)))
    image = services.cluster.image()
    await services.live.overlay(image.broker_config(None), image.broker_config(services.broker_id))


def _what(broker_id: int | None) -> str:
    return "all brokers" if broker_id is None else f"broker {broker_id}"


def _broker_id(services: Services, name: str) -> int | None:
    if name == "":
        return None
    if name != str(services.broker_id):
        raise BrokerError(ErrorCode.invalid_request, f"ask broker {name} itself; this is broker {services.broker_id}")
    return services.broker_id


def _changed(
    services: Services, broker_id: int | None, stored: Mapping[str, str], changes: tuple[ConfigChange, ...]
) -> Mapping[str, str]:
    """Returns the stored settings after the changes. Raises `BrokerError` if the broker could not run with them.

    A change without effect is no error, whatever the key: the deletion of a key that is not stored, or setting a key
    that cannot be changed to its value in force.
    """
    after, live = dict(stored), services.live
    in_force = {entry.name: entry for entry in broker_entries(services, str(services.broker_id))}
    try:
        for each in changes:
            entry = in_force.get(each.name)
            current = stored.get(each.name, (entry.value if entry else None) or "")
            value = changed(each, entry.type if entry else ConfigType.STRING, current)
            if value is None:
                after.pop(each.name, None)
            elif entry is None or each.name in stored or value != current or is_dynamic(each.name):
                check_dynamic(each.name)
                _check_for_all(broker_id, each.name)
                after[each.name] = value
        _check_codec(services, after)
        overlaid(live.file, *((after, live.for_this) if broker_id is None else (live.for_all, after)))
    except ConfigError as error:
        raise BrokerError(ErrorCode.invalid_request, str(error)) from error
    return after


def _check_for_all(broker_id: int | None, name: str) -> None:
    if broker_id is None and name not in DEFINITIONS and BROKER_KEYS[name].update == "per-broker":
        raise ConfigError(f"{name} is set for one broker at a time, not for all")


def _check_codec(services: Services, after: Mapping[str, str]) -> None:
    known = {"producer", "uncompressed", *services.codecs.names()}
    codec = after.get("compression.type", "producer")
    if codec not in known:
        raise ConfigError(f"compression.type: {codec!r} is no codec (there are: {', '.join(sorted(known))})")
