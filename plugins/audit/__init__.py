"""The built-in audit (design D10): every tier counts by topic and window of record time; `klamm audit` compares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm.plugin import Command, Provider, hookimpl

if TYPE_CHECKING:
    from klamm.plugin import Audit

    from .config import AuditConfig


def _create(config: AuditConfig) -> Audit:
    from .system import KlammAudit  # the client is imported only if the audit is used

    return KlammAudit(config)


@hookimpl
def klamm_audits() -> Iterable[Provider[[], Audit]]:
    """Registers the audit system `klamm`."""
    config = "klamm.plugins.audit.config:AuditConfig"
    return [Provider("klamm", _create, config, "counts by topic and window, as Avro events in the audit topic")]


@hookimpl
def klamm_commands() -> Iterable[Command]:
    """Registers `klamm audit`."""
    summary = "Compare what producers, broker, consumers and loads have counted."
    return [Command("audit", "klamm.plugins.audit.cli:app", summary)]
