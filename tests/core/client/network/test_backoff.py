from __future__ import annotations

import pytest

from klamm.core.client.network.backoff import Backoff, FailOver, Retries


def test_delays_double_up_to_the_maximum() -> None:
    backoff = Backoff(0.1, 1.0, jitter=0.0)
    assert [round(backoff.delay(n), 3) for n in (0, 1, 2, 3, 4, 5, 500)] == [0.1, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_jitter_spreads_both_ways() -> None:
    assert Backoff(0.1, 1.0, 0.2, randomness=lambda: 0.0).delay(1) == pytest.approx(0.08)
    assert Backoff(0.1, 1.0, 0.2, randomness=lambda: 1.0).delay(1) == pytest.approx(0.12)


def test_retries_sleep_until_the_time_is_up_and_then_raise_the_problem() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    retries = Retries(1.0, Backoff(0.2, 0.4, jitter=0.0), lambda: now[0], sleep)
    retries.wait(ValueError("first"))
    retries.wait(ValueError("second"))
    assert now[0] == pytest.approx(0.6)
    assert retries.left_s == pytest.approx(0.4)
    with pytest.raises(ValueError, match="third"):
        retries.wait(ValueError("third"))
    assert now[0] == pytest.approx(0.6)


def test_a_sleep_that_takes_longer_than_asked_ends_with_the_problem() -> None:
    """Not with the error of an attempt that has no time left, which does not say what is wrong."""
    now = [0.0]
    retries = Retries(1.0, Backoff(0.2, 0.4, jitter=0.0), lambda: now[0], lambda _: now.__setitem__(0, 1.5))
    with pytest.raises(ValueError, match="refused"):
        retries.wait(ValueError("refused"))


def test_one_problem_may_have_less_time() -> None:
    retries = Retries(100.0, Backoff(0.2, 0.4, jitter=0.0), lambda: 0.0, lambda _: None)
    with pytest.raises(ValueError, match="soon"):
        retries.wait(ValueError("soon"), until=0.1)


def test_a_fail_over_begins_at_once_and_slows_down_when_nobody_takes_over() -> None:
    even = FailOver(Backoff(0.02, 0.1, jitter=0), Backoff(0.1, 1.0, jitter=0), patience=6)
    assert [even.delay(failures) for failures in range(1, 12)] == [
        0.0, 0.02, 0.04, 0.08, 0.1, 0.1, 0.1, 0.2, 0.4, 0.8, 1.0,
    ]  # fmt: skip
