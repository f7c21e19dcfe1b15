"""When garbage is collected: not while modules are imported, and late in a process that may be a short one."""

from __future__ import annotations

import gc
import subprocess
import sys
from contextlib import suppress

import pytest

from klamm.core.garbage import no_collections


@pytest.mark.parametrize("fails", [False, True])
def test_collections_are_enabled_again(fails: bool) -> None:
    with suppress(ImportError), no_collections():
        assert not gc.isenabled()
        if fails:
            raise ImportError
    assert gc.isenabled()


def test_collections_that_were_disabled_stay_so() -> None:
    with no_collections():
        with no_collections():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_first_collection_of_a_process_is_late_and_the_next_ones_are_not() -> None:
    program = """
import gc
from klamm.core.garbage import late_first_collection
usual = gc.get_threshold()
late_first_collection()
seen = []
gc.callbacks.append(lambda phase, info: seen.append(len(kept)))
kept = []
while not seen:
    kept.append([])
assert 50_000 < seen[0] <= 100_000, seen
assert gc.get_threshold() == usual
"""
    subprocess.run([sys.executable, "-c", program], check=True)
