"""Which replicas a topic's settings throttle."""

from __future__ import annotations

import pytest

from klamm.core.replication.throttle import ThrottledReplicas


@pytest.mark.parametrize(
    ("entries", "covered"),
    [((), False), (("*",), True), (("0:1",), True), (("0:2", "1:1"), False), (("0:2", "0:1"), True)],
)
def test_which_replicas_are_throttled(entries: tuple[str, ...], covered: bool) -> None:
    assert ThrottledReplicas.parse(entries).covers(0, 1) is covered
