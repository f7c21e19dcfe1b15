"""Short runs of the campaigns of `make faults`: Klamm passes them, and each planted anomaly is found."""

from __future__ import annotations

import re

import pytest

from klammtest.suite.campaigns import run_campaign

IN_PROCESS = [
    "bit-flip-checkpoint",
    "bit-flip-index",
    "bit-flip-log",
    "clock-jump",
    "compaction-kill",
    "fsync-eio",
    "kill-at-fault-point",
    "segment-cut",
]
WITH_BROKER = [
    "audit-kill",
    "deleted-kill",
    "disk-full",
    "kill9-confluent-kafka",
    "kill9-klamm",
    "offset-store-kill",
    "paused-broker",
    "paused-coordinator",
    "restored-log",
    "two-brokers",
]


@pytest.mark.parametrize("name", IN_PROCESS + WITH_BROKER)
def test_nothing_is_lost_or_served_corrupt(name: str) -> None:
    done = run_campaign(name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(
        rf"^campaign {name} injected [1-9]\d* acknowledged [1-9]\d* lost 0 corrupt-served 0$",
        done.stdout,
        re.MULTILINE,
    )


def test_what_is_planted_is_found() -> None:
    done = run_campaign("--plant", *IN_PROCESS, "kill9-klamm")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("plant found") == len(IN_PROCESS) + 1
