"""Bounded fuzzing: the same examples in every run, more of them with `make fuzz TIMES=n` (`KLAMM_FUZZ=n`)."""

from __future__ import annotations

import os

from hypothesis import settings

__all__ = ["fuzzed"]


def fuzzed(examples: int, steps: int = 30) -> settings:
    """Returns the settings of a test of this many examples, or a multiple of them, which are drawn at random then.
    `steps`: of each example of a state machine."""
    times = int(os.environ.get("KLAMM_FUZZ", "1"))
    return settings(
        max_examples=examples * times, stateful_step_count=steps, derandomize=times == 1, database=None, deadline=None
    )
