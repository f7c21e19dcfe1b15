"""Services beside a broker: started in order, stopped in the opposite order, asked for health and metrics."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from klamm.core.broker.background.background_services import BackgroundServices
from klamm.core.broker.metrics_collector import of_services
from klamm.core.errors import KlammError
from klamm.core.interfaces.service import ServiceMetric


class Recorded:
    """A service that writes its calls down. `bad`: the names of methods that raise."""

    def __init__(self, name: str, calls: list[str], bad: Iterable[str] = ()) -> None:
        self._name, self._calls, self._bad = name, calls, set(bad)

    def _called(self, what: str) -> None:
        self._calls.append(f"{what} {self._name}")
        if what in self._bad:
            raise KlammError(f"{what} of {self._name}")

    def start(self) -> None:
        self._called("start")

    def stop(self) -> None:
        self._called("stop")

    def health(self) -> str | None:
        if "health" in self._bad:
            raise KlammError("not known")
        return None if self._name == "a" else f"{self._name} waits"

    def metrics(self) -> Iterable[ServiceMetric]:
        if "metrics" in self._bad:
            raise KlammError("none today")
        return [ServiceMetric("mirror_lag", "Records behind.", 7, {"topic": self._name})]


def test_they_stop_in_the_opposite_order_and_one_that_raises_keeps_none_running() -> None:
    calls: list[str] = []

    async def run() -> None:
        services = BackgroundServices()
        await services.start("a", Recorded("a", calls))
        await services.start("b", Recorded("b", calls, ["stop"]))
        with pytest.raises(KlammError, match="start of c"):
            await services.start("c", Recorded("c", calls, ["start"]))
        await services.stop()

    asyncio.run(run())
    assert calls == ["start a", "start b", "start c", "stop c", "stop b", "stop a"]


class Blocked(Recorded):
    """Its methods `bad` wait until the test ends."""

    def __init__(self, name: str, calls: list[str], bad: Iterable[str], until: threading.Event) -> None:
        super().__init__(name, calls)
        self._waits, self._until = set(bad), until

    def _called(self, what: str) -> None:
        super()._called(what)
        if what in self._waits:
            assert self._until.wait(60)


def test_one_that_blocks_keeps_neither_the_broker_from_starting_nor_the_others_from_being_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[str] = []
    end = threading.Event()

    async def run() -> None:
        services = BackgroundServices(start_timeout_s=0.05, stop_timeout_s=0.5)
        await services.start("b", Blocked("b", calls, ["start"], end))
        assert services.health() == {"b": "it has not started yet"}
        await services.stop()
        services = BackgroundServices(stop_timeout_s=0.5)
        await services.start("a", Recorded("a", calls))
        await services.start("c", Blocked("c", calls, ["stop"], end))
        await services.stop()

    try:
        asyncio.run(run())
    finally:
        end.set()
    assert calls == ["start b", "stop b", "start a", "start c", "stop c", "stop a"]
    said = [record.getMessage() for record in caplog.records if "within" in record.getMessage()]
    assert said == [
        "service b has not started within 0.05 s; the broker continues",
        "service c has not stopped within 0.5 s; the broker continues",
    ]


def test_one_that_starts_late_is_healthy_then() -> None:
    end = threading.Event()

    async def run() -> None:
        services = BackgroundServices(start_timeout_s=0.05)
        await services.start("a", Blocked("a", [], ["start"], end))
        end.set()
        deadline = time.monotonic() + 60
        while services.health() != {"a": None} and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert services.health() == {"a": None}

    asyncio.run(run())


def test_health_and_metrics_survive_a_service_that_raises() -> None:
    async def run() -> BackgroundServices:
        services = BackgroundServices()
        for name, bad in (("a", ()), ("b", ()), ("b", ("health", "metrics"))):
            await services.start(name, Recorded(name, [], bad))
        return services

    services = asyncio.run(run())
    assert services.health() == {"a": None, "b": "b waits", "b'": "KlammError('not known')"}
    assert [(metric.name, metric.labels) for metric in services.metrics()] == [
        ("mirror_lag", {"topic": "a"}),
        ("mirror_lag", {"topic": "b"}),
    ]


def test_samples_of_one_name_are_one_family_of_the_endpoint() -> None:
    class Collected:
        def collect(self) -> Iterable[object]:
            return of_services(
                [
                    ServiceMetric("mirror_lag", "Records behind.", 7, {"topic": "a"}),
                    ServiceMetric("mirror_records", "Records copied.", 9, is_counter=True),
                    ServiceMetric("mirror_lag", "Records behind.", 8, {"topic": "b"}),
                ]
            )

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected())  # type: ignore[arg-type]
    assert generate_latest(registry).decode().splitlines() == [
        "# HELP klamm_mirror_lag Records behind.",
        "# TYPE klamm_mirror_lag gauge",
        'klamm_mirror_lag{topic="a"} 7.0',
        'klamm_mirror_lag{topic="b"} 8.0',
        "# HELP klamm_mirror_records_total Records copied.",
        "# TYPE klamm_mirror_records_total counter",
        "klamm_mirror_records_total 9.0",
    ]
