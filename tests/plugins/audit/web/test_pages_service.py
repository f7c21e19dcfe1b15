"""The audit's pages as a service: alone, as part of the audit's service, and beside a real broker."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("starlette", reason="the extra `web` is not installed")
from klamm import Producer
from klamm.core.config.settings import load_settings
from klamm.core.errors import ConfigError, KlammError
from klamm.plugins.audit.config import AuditConfig
from klamm.plugins.audit.query import audit_config
from klamm.plugins.audit.system import KlammAudit
from klamm.plugins.audit.web.service import AuditPages
from klammtest.audits import MemoryLogs
from klammtest.broker import running_broker
from klammtest.pages.audit_page import hand_made
from klammtest.ports import free_port

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "audit-pages.yaml"
TIMEOUT_S = 120


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def api(url: str) -> Any:
    with urllib.request.urlopen(f"{url}api/topics", timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def test_it_serves_counts_its_answers_and_stops() -> None:
    source = hand_made()
    pages = AuditPages(source, "127.0.0.1", 0, "port")
    codes = (200, 304, 400, 404, 503)
    assert [(m.labels["status"], m.value) for m in pages.metrics()] == [(str(code), 0) for code in codes]
    pages.start()
    try:
        found = [status(pages.url), status(f"{pages.url}topics/none")]
        source.error = KlammError("away")
        found.append(status(pages.url))
        assert found == [200, 404, 503]
        assert pages.health() is None
        assert [(m.name, m.labels, m.value, m.is_counter) for m in pages.metrics()] == [
            ("audit_pages_requests", {"status": str(code)}, int(code in found), True) for code in codes
        ]
    finally:
        pages.stop()
    assert source.closed
    assert pages.health() is None, "it was told to end"
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(pages.url, timeout=TIMEOUT_S)


def test_an_address_that_is_taken_is_one_line_and_it_stops_all_the_same() -> None:
    source = hand_made()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        pages = AuditPages(source, "127.0.0.1", taken.getsockname()[1], "audit.pages.port")
        with pytest.raises(
            ConfigError, match=r"^audit\.pages\.port: cannot listen on 127\.0\.0\.1:\d+: Address already in"
        ):
            pages.start()
        pages.stop()
    assert source.closed


def test_the_audit_has_no_pages_unless_a_port_is_configured() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        service = KlammAudit(AuditConfig.model_validate({"pages.port": port})).broker(MemoryLogs())
        with pytest.raises(ConfigError, match=r"^audit\.pages\.port: cannot listen"):
            service.start()
        service.stop()
    off = KlammAudit(AuditConfig()).broker(MemoryLogs())
    assert (off.health(), list(off.metrics())) == (None, [])


def test_a_broker_serves_the_pages_of_its_audit(tmp_path: Path) -> None:
    """As the example configures them, on a free port."""
    metrics = free_port()
    assert audit_config(load_settings(EXAMPLE)).pages_port > 0
    given = {**yaml.safe_load(EXAMPLE.read_text())["audit"], "topics": ["trips"], "pages.port": 0}
    given |= {"publish.interval.ms": 100, "broker.interval.ms": 50}
    with running_broker(
        tmp_path, topics={"trips": {"partitions": 1}}, broker={"metrics.port": metrics}, audit=given
    ) as broker:
        text = broker.config_path.read_text()
        broker.config_path.write_text(f"{text}producer:\n  bootstrap.servers: {broker.bootstrap}\n")
        [url] = re.findall(r"audit's pages are on (http://127\.0\.0\.1:\d+/)", broker.log())
        with Producer(broker.config_path) as producer:
            for _ in range(10):
                producer.send("trips", b"value")
        deadline = time.monotonic() + TIMEOUT_S
        while [topic["topic"] for topic in api(url)["topics"]] != ["trips"] and time.monotonic() < deadline:
            time.sleep(0.5)
        assert status(f"{url}topics/trips") == 200
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=TIMEOUT_S) as answer:
            told = answer.read().decode()
        assert 'klamm_server_service_healthy{service="audit"} 1.0' in told
        assert 'klamm_audit_pages_requests_total{status="200"}' in told
        assert broker.stop() == 0, broker.log()
        with pytest.raises(urllib.error.URLError, match="refused"):
            urllib.request.urlopen(url, timeout=TIMEOUT_S)
