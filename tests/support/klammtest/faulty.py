"""Installs a hook at the fault points for the length of a block: `klamm.testing.fault_points`."""

from __future__ import annotations

from klamm.testing.fault_points import fault_hook

__all__ = ["fault_hook"]
