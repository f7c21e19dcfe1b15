"""Conditional appends: a tagged field of Klamm's own in a partition of a Produce request (v9 up), which other brokers
skip. A broker that knows it says so in ApiVersions: a client must ask for it there first.

    field 10000: end offset (int64), leader epoch of the record before it, or -1 (int32)

The batch is stored only if the log ends there; else the partition is answered with OPERATION_NOT_ATTEMPTED.
"""

from __future__ import annotations

import struct
from typing import Final

from ...errors import ErrorCode, ProtocolError
from ...records.offset_and_epoch import OffsetAndEpoch
from ..primitives import Reader, tagged

FEATURE: Final = "klamm.conditional.append"
"""The feature in ApiVersions of a broker that knows the field."""
MOVED: Final = ErrorCode.operation_not_attempted
FIELD: Final = 10_000
"""The tag of the field, above the numbers that Kafka uses."""
_END = struct.Struct(">qi")


def expected_end(end: OffsetAndEpoch) -> bytes:
    """Returns the tagged fields of a partition whose batch is stored only at this end."""
    return b"\1" + tagged(FIELD, _END.pack(*end))


def read_expected_end(reader: Reader) -> OffsetAndEpoch | None:
    """Reads the tagged fields of a partition. Raises `ProtocolError` if the field has another size."""
    data = reader.tags().get(FIELD)
    if data is not None and len(data) != _END.size:
        raise ProtocolError(f"the expected end of a Produce has {len(data)} bytes, not {_END.size}")
    return None if data is None else OffsetAndEpoch(*_END.unpack(data))
