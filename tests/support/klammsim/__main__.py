"""Runs `make sim`."""

from __future__ import annotations

from .campaign import ReplicationSimulation

raise SystemExit(ReplicationSimulation.main())
