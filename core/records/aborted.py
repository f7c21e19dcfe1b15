"""The consumer's part of KIP-98: leaves out the batches of aborted transactions in the answer to a Fetch.

They are marked as control batches, which no reader returns and every reader's position passes. The marks are outside of
what a reader checks: it does not open control batches, so their CRC does not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from ..errors import CorruptRecordError
from .control import read_marker
from .header import CONTROL, CRC_FROM, iter_headers
from .isolation import AbortedTransaction

_ATTRIBUTES_LOW: Final = CRC_FROM + 1
"""The position of the attributes' lower byte in a batch."""


def hide_aborted(data: bytes, aborted: Iterable[AbortedTransaction]) -> bytes:
    """Returns the batches with those of aborted transactions marked as control batches; `data` itself if there are
    none. `aborted`: the list in the answer that contains `data`; it applies to no other answer.

    A transaction of the list hides its producer's transactional batches from its first offset to the producer's next
    abort marker. Batches behind a damaged one stay as they are: no reader reaches them.
    """
    waiting = sorted(aborted, key=attrgetter("first_offset"), reverse=True)
    if not waiting:
        return data
    hidden: set[int] = set()
    marked = bytearray(data)
    try:
        for position, header in iter_headers(data):
            while waiting and waiting[-1].first_offset <= header.last_offset:
                hidden.add(waiting.pop().producer_id)
            if header.producer_id not in hidden or not header.is_transactional:
                continue
            if not header.is_control:
                hide(marked, position)
            elif (marker := read_marker(data, position, header)) is not None and not marker.commit:
                hidden.discard(header.producer_id)
    except CorruptRecordError:
        pass  # the reader that comes to this batch reports it
    return bytes(marked)


def hide(batches: bytearray | memoryview, position: int) -> None:
    """Marks the batch at this position as a control batch."""
    batches[position + _ATTRIBUTES_LOW] |= CONTROL
