"""`klamm broker --brokers 3`: three processes, one cluster, started and stopped together."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from klammtest.broker import ENVIRONMENT, KLAMM
from klammtest.ports import free_ports_in_a_row
from klammtest.requests import metadata
from klammtest.service_manager import service_manager
from klammtest.waiting import eventually
from klammtest.wire import WireClient

START_S = 120.0


class Group:
    """The process of `klamm broker --brokers 3`."""

    def __init__(self, folder: Path, port: int, environment: Mapping[str, str]) -> None:
        self.folder, self.port = folder, port
        self.file = folder / "klamm.yaml"
        self.file.write_text(
            yaml.safe_dump(
                {
                    "broker": {"listeners": f"PLAINTEXT://127.0.0.1:{port}", "log.dirs": "./data"},
                    "coordination": {"plugin": "embedded", "path": "./tree.db", "session.timeout.ms": 10_000},
                }
            )
        )
        self._out = (folder / "out").open("wb")
        self._err = (folder / "err").open("wb")
        self.process = subprocess.Popen(
            [KLAMM, "broker", "--brokers", "3"],
            cwd=folder,
            env={**ENVIRONMENT, **environment},
            stdout=self._out,
            stderr=self._err,
        )

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    def wait_ready(self) -> None:
        ready = lambda: "klamm brokers ready: ids 0, 1, 2" in self.out  # noqa: E731
        eventually(lambda: ready() or self.process.poll() is not None, "ready", START_S)
        assert self.process.poll() is None, self.err

    def broker_pid(self, broker_id: int) -> int:
        return int((self.folder / ("data" if broker_id == 0 else f"data-{broker_id}") / ".lock").read_text())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(START_S)
        self._out.close()
        self._err.close()


@contextmanager
def group(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[Group]:
    made = Group(folder, free_ports_in_a_row(3), environment or {})
    try:
        yield made
    finally:
        made.close()


def brokers(port: int) -> set[tuple[int, int]]:
    with WireClient(f"127.0.0.1:{port}") as wire:
        answer = metadata(wire, [])
        return {(broker.node_id, broker.port) for broker in answer.brokers}


def test_three_brokers_are_one_cluster_and_ctrl_c_stops_all(tmp_path: Path) -> None:
    with service_manager() as manager, group(tmp_path, manager.environment) as running:
        running.wait_ready()
        for index in range(3):
            where = f"PLAINTEXT://127.0.0.1:{running.port + index}"
            assert f"[{index}] klamm broker ready: id {index}, {where}" in running.out
            eventually(lambda index=index: len(brokers(running.port + index)) == 3, "the image", START_S)
        assert brokers(running.port) == {(n, running.port + n) for n in range(3)}
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(START_S) == 130
        assert manager.poll() == [{"READY": "1", "STATUS": "ids 0, 1, 2"}, {"STOPPING": "1"}]
        assert "Traceback" not in running.err


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGHUP])
def test_two_signals_at_once_stop_all(tmp_path: Path, first: signal.Signals) -> None:
    """As a terminal and a service manager may send them together."""
    with group(tmp_path) as running:
        running.wait_ready()
        running.process.send_signal(first)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60.0) in (0, 130), running.err


def test_hangups_until_all_have_ended_leave_the_stop_clean(tmp_path: Path) -> None:
    with group(tmp_path) as running:
        running.wait_ready()
        running.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 60.0
        while running.process.poll() is None and time.monotonic() < deadline:
            running.process.send_signal(signal.SIGHUP)
            time.sleep(0.0005)
        assert running.process.poll() == 0, running.err


def test_a_broker_that_dies_is_reported_and_started_again_alone(tmp_path: Path) -> None:
    with group(tmp_path) as running:
        running.wait_ready()
        os.kill(running.broker_pid(1), signal.SIGKILL)
        said = "klamm: broker 1 was ended by SIGKILL; the others continue"
        eventually(lambda: said in running.err, "the report", START_S)
        again = re.search(r"Start it again: klamm (.*)", running.err)
        assert again is not None
        with (tmp_path / "again").open("wb") as out:
            alone = subprocess.Popen([KLAMM, *again[1].split()], cwd=tmp_path, env=ENVIRONMENT, stdout=out)
        try:
            eventually(lambda: "klamm broker ready: id 1" in (tmp_path / "again").read_text(), "ready again", START_S)
        finally:
            alone.terminate()
            alone.wait(START_S)
        assert alone.returncode == 0


def test_if_one_cannot_start_none_runs(tmp_path: Path) -> None:
    (tmp_path / "data-2").write_text("not a directory")
    with group(tmp_path) as running:
        assert running.process.wait(START_S) == 1
        assert "klamm: broker 2 did not start: it ended with status 1; the others are stopped" in running.err
        assert "brokers ready" not in running.out


def test_brokers_stop_when_their_parent_is_killed(tmp_path: Path) -> None:
    with group(tmp_path) as running:
        running.wait_ready()
        pids = [running.broker_pid(index) for index in range(3)]
        running.process.kill()
        running.process.wait(START_S)
        for pid in pids:
            eventually(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "its end", START_S)


@pytest.mark.parametrize("only", [3, -1])
def test_only_names_one_of_the_brokers(tmp_path: Path, only: int) -> None:
    (tmp_path / "klamm.yaml").write_text("")
    done = subprocess.run(
        [KLAMM, "broker", "--brokers", "3", f"--only={only}"],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=START_S,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == f"klamm: --only {only}: --brokers 3 are the ids 0 to 2\n"
