"""Ports that belong to one test process for as long as it runs: `klamm.testing.ports`."""

from __future__ import annotations

from klamm.testing.ports import PORTS, Reservations, free_port, free_ports_in_a_row, reserve

__all__ = ["PORTS", "Reservations", "free_port", "free_ports_in_a_row", "reserve"]
