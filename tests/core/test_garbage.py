"""Collections are rare while modules are imported, and as they were before afterwards."""

from __future__ import annotations

import gc
from contextlib import suppress

import pytest

from klamm.core.garbage import rare_collections


@pytest.mark.parametrize("fails", [False, True])
def test_the_thresholds_come_back(fails: bool) -> None:
    usual = gc.get_threshold()
    with suppress(ImportError), rare_collections():
        assert gc.get_threshold()[0] > usual[0]
        if fails:
            raise ImportError
    assert gc.get_threshold() == usual
