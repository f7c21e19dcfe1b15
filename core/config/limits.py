"""The largest numbers of Kafka's types."""

from __future__ import annotations

SHORT_MAX = 2**15 - 1
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
"""The largest int64: of offsets, times and sizes."""
