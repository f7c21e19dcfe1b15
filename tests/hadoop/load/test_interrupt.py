"""Ctrl-C while a JVM starts: a child process in place of the JVM."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from klamm.hadoop.load.interrupt import Interrupt, child_processes


@pytest.fixture
def interrupt() -> Iterator[Interrupt]:
    made = Interrupt()
    made.install()
    yield made
    made.remove()


def start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], start_new_session=True)


def interrupted_start(interrupt: Interrupt, started: list[subprocess.Popen[bytes]]) -> None:
    with interrupt.starting_jvm():
        started.append(start())
        assert started[0].pid in child_processes()
        ctrl_c(0.05)
        time.sleep(60)


def interrupted_wait(interrupt: Interrupt) -> None:
    with interrupt.starting_jvm():
        ctrl_c(0.05)
        time.sleep(60)


def swallowed_interrupt(interrupt: Interrupt) -> None:
    with interrupt.starting_jvm():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        except SystemExit:
            raise RuntimeError("the JVM is gone") from None


def ctrl_c(after_s: float) -> None:
    threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_ctrl_c_ends_the_start_at_once_and_kills_what_it_started(interrupt: Interrupt) -> None:
    other, before = start(), time.monotonic()
    started: list[subprocess.Popen[bytes]] = []
    try:
        with pytest.raises(SystemExit) as ended:
            interrupted_start(interrupt, started)
        assert ended.value.code == 130
        assert time.monotonic() - before < 30, "it was delayed to the end of the start"
        assert started[0].wait(30) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_ctrl_c_in_a_later_start_kills_the_jvm_of_an_earlier_one(interrupt: Interrupt) -> None:
    with interrupt.starting_jvm():
        started = start()
    with pytest.raises(SystemExit):
        interrupted_wait(interrupt)
    assert started.wait(30) == -signal.SIGKILL


def test_an_error_that_follows_the_interrupt_does_not_replace_it(interrupt: Interrupt) -> None:
    """py4j may swallow the exception; then its connection to the dead JVM fails."""
    with pytest.raises(SystemExit) as ended:
        swallowed_interrupt(interrupt)
    assert ended.value.code == 130


def test_other_errors_pass(interrupt: Interrupt) -> None:
    with pytest.raises(RuntimeError, match="no Java"), interrupt.starting_jvm():
        raise RuntimeError("no Java")
    interrupt.check()
