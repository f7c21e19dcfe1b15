"""The rules for topic names."""

from __future__ import annotations

import pytest

from klamm.core.cluster.topic_names import check_no_collision, check_topic_name
from klamm.core.errors import BrokerError, ErrorCode


@pytest.mark.parametrize("name", ["a", "A-z_0.9", "__klamm_audit", "...", "x" * 249])
def test_legal_names(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../etc", "größe", "a b", "a\n", "x" * 250, "a\0"])
def test_illegal_names(name: str) -> None:
    with pytest.raises(BrokerError) as caught:
        check_topic_name(name)
    assert caught.value.code is ErrorCode.invalid_topic_exception
    assert "\n" not in str(caught.value)


def test_names_that_collide_in_metrics() -> None:
    check_no_collision("a.b", ["a.c", "a.b", "ab"])
    with pytest.raises(BrokerError, match="collides with 'a_b'"):
        check_no_collision("a.b", ["x", "a_b"])
