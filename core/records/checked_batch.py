"""A batch that was checked, when it was read from a request, by the rules that hold for every topic.

The limits of a topic's configuration (size, codec, timestamps, payload) are checked when the batch is appended. The
compiled module makes this check while it reads the request (`records/native/produce.c`).
"""

from __future__ import annotations

CheckedBatch = tuple[memoryview, int, int, int, int, int, int]
"""A batch that breaks none of the rules: the batch; its number of records, base timestamp, max timestamp, codec id
and producer id; the CRC that it must have, -1 if that was verified."""
