"""Produce requests of clients (v3 to v12, without topic ids), encoded here: the record batches are pieces of the
request, not copies.

The rest costs a fifth of the generated writer's time, on the thread that sends all of a producer's requests. (Reading
the response here, field by field, would not be faster than kio.)

A test compares the bytes with kio's, for every version.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from ...records.offset_and_epoch import OffsetAndEpoch
from ..bounds_check import write_uvarint
from ..messages import Buffer
from ..primitives import INT32, array, string
from .conditional import expected_end

_FLEXIBLE_FROM = 9
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_NUMBER_AND_SIZE = struct.Struct(">ii")
_SMALL = 4096
"""The size in bytes below which a batch is cheaper to copy than to write separately."""


def write_produce_request(
    batches: Mapping[str, Mapping[int, Buffer]],
    acks: int,
    timeout_ms: int,
    version: int,
    after: Mapping[str, Mapping[int, OffsetAndEpoch]] | None = None,
) -> list[Buffer]:
    """Returns a request with one batch for each partition, by topic, in pieces to be written one after the other.
    `after`: the log end that each batch expects, for a broker that has the feature (`conditional`), from version 9 on.
    """
    flexible = version >= _FLEXIBLE_FROM
    tags = b"\0" if flexible else b""
    pieces: list[Buffer] = []
    text = bytearray(string(None, flexible))  # no transactional id
    text += _ACKS_AND_TIMEOUT.pack(acks, timeout_ms) + array(len(batches), flexible)
    for topic, partitions in batches.items():
        text += string(topic, flexible) + array(len(partitions), flexible)
        for number, batch in partitions.items():
            size = len(batch)
            text += INT32.pack(number) + write_uvarint(size + 1) if flexible else _NUMBER_AND_SIZE.pack(number, size)
            if size < _SMALL:
                text += batch
            else:
                pieces += [text, batch]
                text = bytearray()
            text += tags if after is None else expected_end(after[topic][number])
        text += tags
    text += tags
    return [*pieces, text] if text else pieces
