"""A short run of the campaign `connections`: it judges limits, release and the client's records, but no time."""

from __future__ import annotations

import re

from klammtest.suite.campaigns import run_campaign


def test_a_crowd_of_connections_holds_no_more_than_it_may() -> None:
    done = run_campaign("connections")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(
        r"^campaign connections injected 585 acknowledged [1-9]\d* lost 0 corrupt-served 0\b", done.stdout, re.MULTILINE
    )


def test_unbounded_responses_are_found() -> None:
    done = run_campaign("connections", "--plant")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "plant found" in done.stdout
