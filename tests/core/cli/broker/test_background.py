"""`klamm broker --background`, `klamm broker status` and `klamm broker stop`."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm.core.log.log_directory import holder
from klammtest.broker import ENVIRONMENT, KLAMM
from klammtest.ports import free_port, free_ports_in_a_row

Klamm = Callable[..., Any]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    for name in ("PYTHONPATH", "PYTHONUNBUFFERED"):
        monkeypatch.setenv(name, ENVIRONMENT[name])
    yield tmp_path
    for data in tmp_path.glob("data*"):
        if (process := holder(data)) is not None:  # a failed test's
            os.kill(process, 9)


def configure(port: int) -> None:
    Path("klamm.yaml").write_text(
        f"broker: {{listeners: 'PLAINTEXT://127.0.0.1:{port}', log.dirs: data}}\ncoordination: {{plugin: embedded}}\n"
    )


def test_it_starts_is_found_and_stops(klamm: Klamm, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(port := free_port())
    where = f"PLAINTEXT://127.0.0.1:{port}"
    assert klamm("broker", "status").out == "broker 0 does not run: data in data\n"
    started = klamm("broker", "--background")
    assert (started.status, started.err) == (0, "")
    found = re.fullmatch(rf"klamm broker ready: id 0, {where}; pid (\d+), log data/broker.log\n", started.out)
    assert found is not None
    socket.create_connection(("127.0.0.1", port)).close()
    pid = int(found[1])
    again = klamm("broker", "--background")
    line = f"klamm: broker 0 runs already: pid {pid}, data in data; `klamm broker stop` stops it\n"
    assert (again.status, again.err) == (1, line)
    shown = klamm("broker", "status")
    assert (shown.status, shown.out) == (0, f"broker 0 runs: {where}; pid {pid}, data in data\n")
    os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as shorter:
        shorter.setattr("klamm.core.cli.broker.background._ANSWER_S", 0.5)
        shown = klamm("broker", "status")
    os.kill(pid, signal.SIGCONT)
    line = (
        f"broker 0 does not answer: no answer to ApiVersions from 127.0.0.1:{port} in time; pid {pid}, data in data\n"
    )
    assert (shown.status, shown.out) == (3, line)
    stopped = klamm("broker", "stop")
    assert (stopped.status, stopped.out) == (0, f"broker 0 has stopped (pid {pid})\n")
    assert holder(here / "data") is None
    assert klamm("broker", "status").status == 3
    nothing = klamm("broker", "stop")
    assert (nothing.status, nothing.err) == (1, "klamm: no broker runs on data\n")


def test_of_two_starts_at_once_one_waits_and_finds_the_other(here: Path) -> None:
    configure(free_port())
    command = [KLAMM, "broker", "--background"]
    both = [subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for _ in range(2)]  # fmt: skip
    ready, refused = sorted(process.communicate()[0] for process in both)
    pid = holder(here / "data")
    assert refused == f"klamm: broker 0 runs already: pid {pid}, data in data; `klamm broker stop` stops it\n"
    assert f"; pid {pid}, log data/broker.log" in ready
    assert sorted(process.returncode for process in both) == [0, 1]


def test_a_lock_that_cannot_be_read_is_no_stopped_broker(klamm: Klamm, here: Path) -> None:
    configure(free_port())
    (here / "data" / ".lock").mkdir(parents=True)
    done = klamm("broker", "status")
    (here / "data" / ".lock").rmdir()
    assert (done.status, done.out) == (1, "")
    assert re.fullmatch(r"klamm: cannot read .*/data/\.lock: Is a directory\n", done.err), done.err


def test_one_that_cannot_start_says_why_with_its_status(klamm: Klamm, here: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        configure(taken.getsockname()[1])
        failed = klamm("broker", "--background")
    assert failed.status == 2
    assert failed.out == ""
    assert failed.err.count("\n") == 1
    assert re.match(r"klamm: .*cannot listen on 127\.0\.0\.1:", failed.err), failed.err
    assert holder(here / "data") is None
    Path("klamm.yaml").write_text("broker: {log.dir: data}\ncoordination: {plugin: embedded}\n")
    assert "log.dirs" in klamm("broker", "--background").err  # the nearest key; no process is started


def test_two_brokers_of_one_host(klamm: Klamm, here: Path) -> None:
    configure(free_ports_in_a_row(2))
    started = klamm("broker", "--background", "--brokers", "2")
    assert re.fullmatch(r"klamm brokers ready: ids 0, 1; pid \d+, log data/broker.log\n", started.out), started.err
    assert klamm("broker", "status", "--brokers", "2").status == 0
    stopped = klamm("broker", "stop", "--brokers", "2")
    assert re.fullmatch(r"broker 0 has stopped \(pid \d+\)\nbroker 1 has stopped \(pid \d+\)\n", stopped.out)


def test_stop_finds_a_broker_in_the_foreground(klamm: Klamm, here: Path) -> None:
    configure(free_port())
    process = subprocess.Popen([KLAMM, "broker"], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"klamm broker ready")
    assert klamm("broker", "stop").status == 0
    assert process.wait(60) == 0
    process.stdout.close()


def test_options_before_the_subcommand_are_refused(klamm: Klamm, here: Path) -> None:
    done = klamm("broker", "--brokers", "2", "stop")
    assert done.status == 2
    assert "--brokers stands before 'stop'; write: klamm broker stop [OPTIONS]" in done.err
