"""The headers by which an audited producer marks its batches, and how the broker tier reads them.

A batch is one client's, so only its first record is marked: with host, application and id of the producer, and with
`klamm.batch`, which names the batch by its number of records, topic and partition. A record that is forwarded with its
original headers is seldom the first of a batch of that number in that partition, so its mark is void there. If all
records lie in one window, `klamm.batch` also names the window and the number of bytes, because the producer has counted
them; the broker tier then need not count an uncompressed batch.

A mark whose id is longer than `MAX_OWNER_BYTES` is not valid: its records count as those of a client that does not
audit. `klamm.Producer` does not start with such an id.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from klamm.core.records.varint import read_varint
from klamm.plugin import AuditIdentity, CorruptRecordError, Counted, Headers, TopicPartition

from ..event import FOREIGN, UNATTRIBUTED

HOST_HEADER: Final = "klamm.host"
APPLICATION_HEADER: Final = "klamm.application"
PRODUCER_HEADER: Final = "klamm.producer"
BATCH_HEADER: Final = "klamm.batch"

MAX_OWNER_BYTES: Final = 512
"""The most bytes of a producer's id in UTF-8. Events of the broker tier contain it in each of its counts, so it bounds
their size.
"""


class OneWindow(NamedTuple):
    """The content of a batch whose records are all in the window that starts at `start_ms`; `size` is their bytes
    together."""

    window_ms: int
    start_ms: int
    size: int


class Mark(NamedTuple):
    """The mark in the headers of a record. `batch`: the batch of which it is the first record; a mark that names
    none is void. `holds`: the content of that batch, if the mark states it."""

    source: str
    batch: str | None = None
    holds: OneWindow | None = None


def mark(identity: AuditIdentity, partition: TopicPartition, counted: Counted, window_ms: int) -> Headers:
    """Returns the headers that a producer adds to the first record of a batch."""
    batch = batch_name(partition, sum(records for _, records, _ in counted))
    if len(counted) == 1 and counted[0][0] >= 0:
        timestamp, _, size = counted[0]
        batch = f"{batch} {window_ms} {timestamp - timestamp % window_ms} {size}"
    named = (
        (HOST_HEADER, identity.host),
        (APPLICATION_HEADER, identity.application),
        (PRODUCER_HEADER, identity.owner),
        (BATCH_HEADER, batch),
    )
    return tuple((name, value.encode()) for name, value in named)


@lru_cache(4096)
def batch_name(partition: TopicPartition, records: int) -> str:
    return f"{records} {partition}"


def owner_bytes(owner: str) -> int:
    """Returns the size of a producer's id as events encode it. A byte that is not UTF-8 was decoded to U+FFFD, which is
    encoded in three bytes.
    """
    return len(owner.encode())


def mark_of(headers: bytes) -> Mark:
    """Reads the mark of a record with these headers, as `native.window_counts` gives them.

    Raises `CorruptRecordError` if the bytes are not whole headers: the caller need not have checked them.
    """
    found: list[tuple[str, bytes | None]] = []
    pos = 0
    try:
        while pos < len(headers):
            name, pos = _part(headers, pos)
            if name is None:
                raise CorruptRecordError("a header has no name")
            value, pos = _part(headers, pos)
            found.append((name.decode(), value))
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptRecordError(f"the headers of a record: {error}") from error
    return read_mark(tuple(found))


def _part(headers: bytes, pos: int) -> tuple[bytes | None, int]:
    """Returns the name or value whose length is at `pos` (None for the length -1), and the position after it."""
    size, pos = read_varint(headers, pos)
    if size == -1:
        return None, pos
    if not 0 <= size <= len(headers) - pos:
        raise CorruptRecordError(f"a header's name or value has the length {size}, {len(headers) - pos} bytes are left")
    return headers[pos : pos + size], pos + size


def read_mark(headers: Headers) -> Mark:
    """Returns the last mark: a producer adds its own after the headers of the application, which may include the mark
    of a record's original sender.
    """
    audited = False
    batch: str | None = None
    holds: OneWindow | None = None
    for name, value in reversed(headers):
        if name == BATCH_HEADER and batch is None:
            batch, holds = _read_batch(value or b"")
        elif name == PRODUCER_HEADER and value:
            owner = value[: MAX_OWNER_BYTES + 1].decode(errors="replace")
            return Mark(FOREIGN) if owner_bytes(owner) > MAX_OWNER_BYTES else Mark(owner, batch, holds)
        audited = audited or name == APPLICATION_HEADER
    return Mark(UNATTRIBUTED if audited else FOREIGN, batch, holds)


def _read_batch(value: bytes) -> tuple[str, OneWindow | None]:
    words = value.decode(errors="replace").split(" ")
    try:
        holds = OneWindow(*map(int, words[2:])) if len(words) == 5 else None
    except ValueError:
        holds = None
    return " ".join(words[:2]), holds
