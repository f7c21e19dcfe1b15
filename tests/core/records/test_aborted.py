"""The filter of aborted records, against KIP-98's rule on random answers, and what it must not do."""

from __future__ import annotations

import random

import pytest

from klamm.core.records.aborted import hide_aborted
from klamm.core.records.control import TransactionMarker, encode_marker
from klamm.core.records.header import iter_headers, rewrite_base
from klamm.core.records.isolation import AbortedTransaction
from klammtest.logs import START_MS, batch
from klammtest.transactional_logs import Expected, committed, transactional


def log_of(seed: int) -> bytes:
    rng, parts, at = random.Random(seed), [], 0
    sequences = dict.fromkeys(range(4), 0)
    for _ in range(60):
        pid, what = rng.randrange(4), rng.random()
        if what < 0.55:
            count = rng.randrange(1, 4)
            made = transactional([b"t"] * count, producer=(pid, 0, sequences[pid]))
            sequences[pid] += count
        elif what < 0.7:
            count, made = 1, batch([b"plain"], producer=rng.choice([(-1, -1, -1), (pid + 10, 0, 0)]))
        else:
            count, made = 1, encode_marker(pid, 0, TransactionMarker(rng.random() < 0.5, 0), START_MS)
        rewrite_base(made, 0, at, 0)
        parts.append(bytes(made))
        at += count
    return b"".join(parts)


@pytest.mark.parametrize("seed", range(20))
def test_readers_see_the_records_of_committed_transactions(seed: int) -> None:
    data = log_of(seed)
    expected = Expected.of(data)
    stable = expected.last_stable(10**9, 0)
    starts = [(position, header.base_offset) for position, header in iter_headers(data)]
    rng = random.Random(seed)
    for position, first in rng.sample(starts, 8):
        answer = data[position:]
        aborted = expected.aborted(first, 10**9)
        shown = [header for _, header in iter_headers(hide_aborted(answer, aborted)) if not header.is_control]
        visible = [header.base_offset for header in shown if header.base_offset < stable]
        wanted = [h.base_offset for h in expected.headers if first <= h.base_offset < stable and not expected.hidden(h)]
        assert visible == wanted
        assert {record.offset for record in committed(answer, aborted)} >= set(wanted)


def test_an_answer_without_aborted_transactions_is_not_copied() -> None:
    data = log_of(1)
    assert hide_aborted(data, ()) is data


def test_plain_batches_of_the_producer_and_a_cut_off_batch_stay() -> None:
    parts = [batch([b"plain"], producer=(1, 0, 0)), transactional([b"t"], producer=(1, 0, 1))]
    for at, part in enumerate(parts):
        rewrite_base(part, 0, at, 0)
    data = b"".join(map(bytes, parts))
    hidden = hide_aborted(data + data[:30], [AbortedTransaction(1, 0)])
    assert [header.is_control for _, header in iter_headers(hidden)] == [False, True]
    assert len(hidden) == len(data) + 30
