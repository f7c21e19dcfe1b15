"""Waits for a condition: `klamm.testing.waiting`."""

from __future__ import annotations

from klamm.testing.waiting import PATIENCE_S, eventually, freeze, until, within

__all__ = ["PATIENCE_S", "eventually", "freeze", "until", "within"]
