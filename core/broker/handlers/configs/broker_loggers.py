"""Reads and changes the levels of a broker's loggers while it runs (KIP-412): resource type BROKER_LOGGER.

Rules, as Kafka's: the resource's name is this broker's number; a level is set or deleted (reset to the file's, else to
that of the parent logger), never added to; the root logger's level can only be set; a change is checked completely
before any of it is made, and is lost when the process ends. Levels have Kafka's names: WARN and FATAL are Python's
WARNING and CRITICAL, and TRACE is DEBUG.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from ....config.describe import ConfigDescription
from ....config.section import ConfigSource, ConfigType
from ....errors import BrokerError, ErrorCode
from ....process_log import ROOT, ProcessLog
from ...services import Services
from .alter_configs import Alteration, AlterConfigOp, ConfigChange, check_well_formed

log = logging.getLogger(__name__)

_PYTHONS: Final = {
    "TRACE": "DEBUG",
    "DEBUG": "DEBUG",
    "INFO": "INFO",
    "WARN": "WARNING",
    "WARNING": "WARNING",
    "ERROR": "ERROR",
    "FATAL": "CRITICAL",
    "CRITICAL": "CRITICAL",
}
_KAFKAS: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}
_DOC: Final = "The least that the logger says: TRACE, DEBUG, INFO, WARN, ERROR or FATAL."


def logger_entries(services: Services, name: str) -> list[ConfigDescription]:
    return [
        ConfigDescription(
            logger,
            _KAFKAS.get(level, level),
            ConfigType.STRING,
            ConfigSource.DYNAMIC_BROKER_LOGGER,
            _DOC,
            read_only=False,
            synonyms=(),
        )
        for logger, level in _process_log(services, name).levels().items()
    ]


def alter_loggers(services: Services, resource: Alteration, validate_only: bool) -> None:
    said = _process_log(services, resource.resource_name)
    check_well_formed(f"loggers of broker {services.broker_id}", resource.configs)
    known = said.levels()
    levels = {change.name: _level(known, change) for change in resource.configs}
    if validate_only:
        return
    said.change(levels)
    now = said.levels()
    for name in levels:
        log.info("logger %s logs %s and above until the broker is restarted", name, now[name])


def _process_log(services: Services, name: str) -> ProcessLog:
    if name != str(services.broker_id):
        raise BrokerError(
            ErrorCode.invalid_request, f"loggers of broker {name!r}: ask it itself; this is broker {services.broker_id}"
        )
    if services.process_log is None:
        raise BrokerError(ErrorCode.invalid_request, "this broker's loggers belong to the program that it is a part of")
    return services.process_log


def _level(known: Mapping[str, str], change: ConfigChange) -> str | None:
    """Returns the level to be set; None resets it to the inherited one."""
    name, operation = change.name, change.config_operation
    if operation not in (AlterConfigOp.SET, AlterConfigOp.DELETE):
        raise BrokerError(ErrorCode.invalid_request, f"logger {name}: a level is set or deleted, nothing else")
    if name not in known:
        raise BrokerError(ErrorCode.invalid_config, f"logger {name!r} does not exist")
    if operation == AlterConfigOp.DELETE:
        if name == ROOT:
            raise BrokerError(ErrorCode.invalid_request, f"the level of {ROOT} cannot be deleted, only set")
        return None
    level = _PYTHONS.get(str(change.value).upper())
    if level is None:
        raise BrokerError(
            ErrorCode.invalid_config,
            f"logger {name}: {change.value!r} is no level (there are: TRACE, DEBUG, INFO, WARN, ERROR, FATAL)",
        )
    return level
