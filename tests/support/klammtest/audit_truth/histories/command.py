"""The part of `make audit-truth` that `HISTORIES=n` runs."""

from __future__ import annotations

from . import mirrored
from .campaign import Score, campaign, in_memory, run
from .mutations import MUTATIONS, found_at

SHOWN = 10


def command(histories: int, seed: int, at: int | None, *, plant: bool) -> int:
    """Runs histories 0 to `histories`, or `at` alone, and prints what the reports said; `plant`: mutations instead, of
    which each must be found in so many histories.

    Returns the exit status: 1 if a report was wrong or a mutation was not found.
    """
    if plant:
        return _plant(histories, seed)
    if at is not None:
        return _one(seed, at)
    score = campaign(seed, histories)
    for line in score.lines():
        print(line)
    complain(score, seed)
    return 0 if score.right else 1


def complain(score: Score, seed: int) -> None:
    """Prints what was wrong, and how to see it again."""
    for tier in score.too_unknown:
        print(f"  too much is unknown: {tier} {100 * score.unknown(tier):.1f} %")
    for number, text in score.wrong[:SHOWN]:
        print(f"  history {number}: {text}")
    if score.wrong:
        print(f"  replay: make audit-truth HISTORIES=1 SEED={seed} AT={score.wrong[0][0]}")


def _one(seed: int, at: int) -> int:
    with in_memory():
        history = run(seed, at, traced=True)
        mirror = mirrored.run(seed, at)
    print(f"history {at} of seed {seed}: {', '.join(sorted(history.troubles)) or 'no trouble'}")
    for line in history.trace:
        print(f"  {line}")
    print(f"its mirror: {', '.join(mirror.steps)}")
    for event in mirror.topic.events:
        print(f"  {event}")
    for text in (*history.wrong, *mirror.wrong):
        print(f"wrong: {text}")
    return 1 if history.wrong or mirror.wrong else 0


def _plant(histories: int, seed: int) -> int:
    missed = 0
    for mutation in MUTATIONS:
        at = found_at(mutation, seed, histories)
        missed += at is None
        where = f"found by history {at}" if at is not None else f"NOT found in {histories} histories"
        print(f"{mutation.rule}: {mutation.what}: {where}", flush=True)
    return 1 if missed else 0
