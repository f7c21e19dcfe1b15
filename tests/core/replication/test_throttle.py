"""The limit on replicas that catch up: its rate holds over time, and in-sync replicas never wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.replication.throttle import UNLIMITED, ReplicationQuota, ThrottledReplicas, must_wait


def test_what_is_used_above_the_rate_is_waited_for() -> None:
    quota = ReplicationQuota(1000, 0.0)
    assert not quota.is_exceeded(0.0)
    quota.used(3000, 0.0)
    assert quota.wait_ms(0.0) == 2000
    assert quota.is_exceeded(1999.0)
    assert not quota.is_exceeded(2001.0)


def test_an_in_sync_replica_never_waits() -> None:
    quota = ReplicationQuota(1, 0.0)
    quota.used(10**9, 0.0)
    assert must_wait(quota, throttled=True, in_sync=False, now_ms=1.0)
    assert not must_wait(quota, throttled=True, in_sync=True, now_ms=1.0)
    assert not must_wait(quota, throttled=False, in_sync=False, now_ms=1.0)


def test_without_a_limit_nothing_waits_or_is_counted() -> None:
    quota = ReplicationQuota(UNLIMITED, 0.0)
    quota.used(10**15, 0.0)
    assert quota.wait_ms(0.0) == 0
    quota.set_rate(1000, 1.0)
    assert not quota.is_exceeded(2.0)


def test_a_new_rate_holds_from_now_on() -> None:
    quota = ReplicationQuota(1000, 0.0)
    quota.used(2000, 0.0)
    quota.set_rate(10_000, 0.0)
    assert quota.wait_ms(0.0) == 100
    assert not quota.is_exceeded(101.0)


@given(st.integers(1, 10_000), st.lists(st.tuples(st.integers(0, 5_000), st.floats(0, 3_000)), max_size=60))
def test_no_more_than_the_rate_passes_but_one_answer(rate: int, answers: list[tuple[int, float]]) -> None:
    """Over any time from the start: at most the rate, one second's worth of burst, and the last answer."""
    quota = ReplicationQuota(rate, 0.0)
    now = passed = 0.0
    for size, pause in answers:
        now += pause
        if quota.is_exceeded(now):
            now += quota.wait_ms(now) + 0.001
            assert not quota.is_exceeded(now)
        assert passed <= rate * (now / 1000 + 1) + 1
        quota.used(size, now)
        passed += size


@pytest.mark.parametrize(
    ("entries", "covered"),
    [((), False), (("*",), True), (("0:1",), True), (("0:2", "1:1"), False), (("0:2", "0:1"), True)],
)
def test_which_replicas_are_throttled(entries: tuple[str, ...], covered: bool) -> None:
    assert ThrottledReplicas.parse(entries).covers(0, 1) is covered
