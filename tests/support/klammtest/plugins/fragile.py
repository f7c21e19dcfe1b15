"""A service beside a broker that is as healthy as the test wants it."""

from __future__ import annotations

from collections.abc import Iterable

from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.provider import Provider
from klamm.core.interfaces.service import BrokerContext, Service, ServiceMetric

problems: list[str] = []


class Fragile:
    """Unhealthy while `problems` has a line."""

    def start(self) -> None:
        return

    def stop(self) -> None:
        return

    def health(self) -> str | None:
        return problems[0] if problems else None

    def metrics(self) -> Iterable[ServiceMetric]:
        return ()


@hookimpl
def klamm_services() -> Iterable[Provider[[BrokerContext], Service]]:
    return [Provider("fragile", lambda _, __: Fragile())]
