"""Runs `make sim`."""

from __future__ import annotations

from .campaign import main

raise SystemExit(main())
