"""What a broker notifies its service manager of, and the unit that rests on it."""

from __future__ import annotations

import configparser
import os
import signal
from pathlib import Path

import pytest

from klamm.core.cli.broker.service_manager import notify, watchdog_interval_s
from klammtest.broker import running_broker
from klammtest.service_manager import service_manager

UNIT = Path(__file__).resolve().parents[4] / "examples" / "klamm.service"


def test_ready_reloading_watchdog_and_stopping(tmp_path: Path) -> None:
    with service_manager() as manager:
        environment = {**manager.environment, "WATCHDOG_USEC": "200000"}
        with running_broker(tmp_path, environment=environment) as broker:
            manager.wait_for("READY")
            assert manager.received[0] == {"READY": "1", "STATUS": f"id 0, PLAINTEXT://{broker.bootstrap}"}
            manager.wait_for("WATCHDOG", 3)
            os.kill(broker.pid, signal.SIGHUP)
            manager.wait_for("READY", 2)
            assert broker.stop() == 0
            manager.wait_for("STOPPING")
    told = [one for one in manager.received if "WATCHDOG" not in one]
    assert [next(iter(one)) for one in told] == ["READY", "RELOADING", "READY", "STOPPING"]
    assert int(told[1]["MONOTONIC_USEC"]) > 0


def test_no_manager_and_one_that_does_not_listen_are_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    assert caplog.messages == []
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/at/all")
    notify("READY=1")
    assert caplog.messages == [
        "the service manager (NOTIFY_SOCKET) was not notified of READY=1: [Errno 2] No such file or directory"
    ]


def test_the_watchdog_s_interval_is_half_of_the_unit_s() -> None:
    own = str(os.getpid())
    assert watchdog_interval_s({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": own}) == 30
    assert watchdog_interval_s({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}) is None
    assert watchdog_interval_s({"WATCHDOG_USEC": "soon"}) is None
    assert watchdog_interval_s({}) is None


def test_the_unit_waits_for_the_notifications() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(UNIT)
    service = unit["Service"]
    assert (service["Type"], service["WatchdogSec"]) == ("notify", "60")
    assert service["ExecStart"].endswith("klamm broker --config /etc/klamm/klamm.yaml")
    assert service["ExecReload"].endswith("klamm config reload --config /etc/klamm/klamm.yaml")
