"""Fault points: rules, counting, and that they do nothing by default."""

from __future__ import annotations

import errno

import pytest

from klamm.core import faults
from klamm.core.errors import ConfigError
from klamm.core.faults import ScriptedFaults, fault_point


def test_nothing_happens_by_default() -> None:
    fault_point("anything")


def test_a_hook_sees_every_point() -> None:
    seen: list[str] = []
    faults.install(seen.append)
    try:
        fault_point("a.b")
        fault_point("c")
    finally:
        faults.install(None)
    fault_point("d")
    assert seen == ["a.b", "c"]


def test_rules_fire_at_their_pass() -> None:
    hook = ScriptedFaults("a@2=ENOSPC, b@3+=EIO")
    hook("a")
    with pytest.raises(OSError, match="injected at a") as caught:
        hook("a")
    assert caught.value.errno == errno.ENOSPC
    hook("a")
    for n in range(1, 6):
        if n < 3:
            hook("b")
        else:
            with pytest.raises(OSError, match="injected at b"):
                hook("b")
    assert hook.passed == {"a": 3, "b": 5}


@pytest.mark.parametrize("rules", ["a", "a=", "a=NOSUCH", "a@x=EIO", "=kill", "a=explode"])
def test_bad_rules_are_one_clear_line(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"KLAMM_FAULTS: .* should be point"):
        ScriptedFaults(rules)
