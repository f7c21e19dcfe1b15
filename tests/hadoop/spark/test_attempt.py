"""The state machine of the sink's attempts: what the tests of the sink and the simulation do not reach."""

from __future__ import annotations

from klamm.hadoop.spark.attempt import (
    HELD_BYTES,
    Append,
    Attempt,
    AttemptState,
    Claim,
    Done,
    FoundRows,
    Refuse,
    Registered,
    Scan,
    Send,
    SentBatch,
)
from klammtest.sink_sim.actor import Rows


def joined(found: FoundRows) -> Attempt[Rows]:
    """Returns an attempt that has adopted another one's claim of partition 0, and found these rows."""
    attempt: Attempt[Rows] = Attempt("me", 0, 5, "run", "batch 5 task 0")
    attempt.start()
    attempt.ends({0: 10, 1: 20}, 0)
    attempt.registered(Registered(5, "run", {0: 7}))
    assert attempt.effect == Append(0, Claim("me", 0, {0: 7}), 0)
    attempt.appended(Claim("other", 0, {0: 7}))
    attempt.appended(Claim("me", 0, {}))
    assert attempt.effect == Scan(0)
    attempt.scanned({0: found})
    return attempt


def rows_of(effect: object) -> tuple[int, list[bytes]]:
    assert isinstance(effect, Send)
    first, chunks = effect.rows[0]
    return first, [row for chunk in chunks for row in chunk.rows]


def test_rows_that_compaction_removed_count_by_their_place() -> None:
    given = [b"%d" % n for n in range(5)]
    attempt = joined(FoundRows(3, {0: given[0], 2: given[2]}))
    attempt.add(0, Rows(given[:2]))
    attempt.add(0, Rows(given[2:]))
    attempt.finish()
    assert rows_of(attempt.effect) == (3, given[3:])
    turned = joined(FoundRows(3, {0: given[0], 2: given[2]}))
    turned.add(0, Rows(given[::-1]))
    assert isinstance(turned.effect, Refuse)
    assert "in another order" in turned.effect.reason


def test_nothing_is_sent_before_each_stored_row_was_found() -> None:
    attempt = joined(FoundRows(2, {0: b"a", 1: b"b"}))
    attempt.add(0, Rows([b"c", b"b"]))
    attempt.flush()
    assert attempt.effect is None
    attempt.add(0, Rows([b"a", b"d"]))
    attempt.flush()
    assert rows_of(attempt.effect) == (2, [b"c", b"d"])


def test_rows_that_wait_have_a_bound() -> None:
    class Large(Rows):
        nbytes = HELD_BYTES + 1  # type: ignore[assignment]

    attempt = joined(FoundRows(1, {0: b"a"}))
    attempt.add(0, Large([b"b"]))
    assert isinstance(attempt.effect, Refuse)
    assert "sort the rows within their partitions" in attempt.effect.reason


def test_after_a_refused_batch_only_unacknowledged_rows_are_left() -> None:
    attempt = joined(FoundRows())
    attempt.add(0, Rows([b"a", b"b", b"c", b"d"]))
    attempt.finish()
    attempt.batch_stored(SentBatch(0, 0, 1, 100))
    attempt.batch_refused()
    attempt.scanned({0: FoundRows(3, {1: b"b", 2: b"c"})})
    assert rows_of(attempt.effect) == (3, [b"d"])
    attempt.batch_stored(SentBatch(0, 3, 1, 200))
    attempt.sent()
    assert attempt.effect == Done()
    assert (attempt.written, attempt.found) == (2, 2)


def test_rows_that_the_broker_has_and_the_log_has_not_are_an_error_in_the_end() -> None:
    attempt = joined(FoundRows())
    attempt.add(0, Rows([b"a"]))
    attempt.finish()
    attempt.batch_refused()
    while attempt.state is AttemptState.SCANNING:
        attempt.scanned({})
    assert isinstance(attempt.effect, Refuse)
    assert "were deleted (retention, DeleteRecords)" in attempt.effect.reason
