"""Fixtures that several parts of the tests share live in `tests/support/klammtest`."""

from __future__ import annotations

pytest_plugins = ["klammtest.zookeeper", "klammtest.guarantees", "pytester"]
