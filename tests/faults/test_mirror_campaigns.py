"""A short run of a campaign of `make faults-mirror`, and a planted anomaly."""

from __future__ import annotations

import re

from klammtest.suite.campaigns import run_campaign

SEED = 2
"""With it the link is paused, no broker dies, and the source is not lost: the shortest of the campaign's lives."""


def test_a_mirror_keeps_everything_and_reports_every_gap() -> None:
    done = run_campaign("--mirror", "--at", "0", "retention-ahead", seed=SEED)
    assert done.returncode == 0, done.stdout + done.stderr
    line = r"^campaign retention-ahead injected [1-9]\d* acknowledged [1-9]\d* lost 0 corrupt-served 0$"
    assert re.search(line, done.stdout, re.MULTILINE)
    assert re.search(r"\bgaps [1-9]\d* .*\bdoubled 0 reordered 0\b", done.stdout)


def test_what_is_planted_in_a_mirror_is_found() -> None:
    done = run_campaign("--mirror", "--plant", "--at", "0", "retention-ahead", seed=SEED)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "plant found" in done.stdout
