"""The limit on rates: it holds over time, debts are waited for, and a new rate counts at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.token_bucket import TokenBucket


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_second_s_tokens_go_at_once_and_then_each_in_its_time() -> None:
    clock = Clock()
    rate = TokenBucket(10, clock=clock)
    for _ in range(10):
        assert rate.wait_s() == 0
        rate.spend()
    assert rate.wait_s() == pytest.approx(0.1)
    clock.now += 0.05
    assert rate.wait_s() == pytest.approx(0.05)
    clock.now += 0.1
    assert rate.wait_s() == 0
    clock.now += 60
    for _ in range(10):
        assert rate.wait_s() == 0
        rate.spend()
    assert rate.wait_s() > 0, "what was not used before is not there"
    rate.change(1_000)
    clock.now += 0.001
    assert rate.wait_s() == 0


def test_a_debt_is_waited_for_at_the_rate_of_now() -> None:
    clock = Clock()
    rate = TokenBucket(1000, clock=clock)
    rate.spend(2999)
    assert rate.wait_s() == pytest.approx(2)
    rate.change(10_000)
    assert rate.wait_s() == pytest.approx(0.2)
    clock.now += 0.21
    assert rate.wait_s() == 0


def test_without_a_burst_all_work_is_waited_for() -> None:
    clock = Clock()
    rate = TokenBucket(1000, burst_s=0, clock=clock)
    clock.now += 60
    assert rate.wait_s() == 0
    rate.spend(500)
    assert rate.wait_s() == pytest.approx(0.5)


@given(st.integers(1, 10_000), st.lists(st.tuples(st.integers(0, 5_000), st.floats(0, 3)), max_size=60))
def test_no_more_than_the_rate_passes_but_one_answer(rate: int, answers: list[tuple[int, float]]) -> None:
    """Over any time from the start: at most the rate, one second's worth of burst, and the last answer."""
    clock = Clock()
    bucket = TokenBucket(rate, clock=clock)
    passed = 0.0
    for size, pause in answers:
        clock.now += pause
        if (wait_s := bucket.wait_s()) > 0:
            clock.now += wait_s + 1e-6
            assert bucket.wait_s() == 0
        assert passed <= rate * (clock.now - 100 + 1) + 1
        bucket.spend(size)
        passed += size
