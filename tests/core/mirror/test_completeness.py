"""Up to which time a mirror has all that its source had committed."""

from __future__ import annotations

from klamm.core.mirror.completeness import CompleteUntil


def test_a_mirror_at_its_source_s_end_is_complete_now() -> None:
    known = CompleteUntil(100)
    known.on_answer(200, 10, 10)
    assert known.at_ms == 200


def test_a_mirror_that_is_always_behind_is_complete_up_to_the_last_end_that_it_has_reached() -> None:
    known = CompleteUntil(100)
    known.on_answer(200, 5, 10)
    assert known.at_ms == 100
    known.on_answer(300, 9, 20)
    assert known.at_ms == 100
    known.on_answer(400, 12, 30)  # the end of 200 is reached
    assert known.at_ms == 200
    known.on_answer(500, 29, 40)
    assert known.at_ms == 200
    known.on_answer(600, 30, 50)  # that of 400
    assert known.at_ms == 400


def test_tombstones_are_missed_after_the_time_for_which_the_source_keeps_them() -> None:
    known = CompleteUntil(1000)
    assert not known.missed_tombstones(1500, 500)
    assert known.missed_tombstones(1501, 500)
