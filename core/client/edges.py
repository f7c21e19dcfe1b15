"""The two ends of a log, as timestamps in `ClusterClient.list_offsets`."""

from __future__ import annotations

__all__ = ["EARLIEST", "LATEST"]

LATEST = -1
"""The end of the log that consumers see (the high watermark)."""
EARLIEST = -2
"""The first offset that still exists."""
