"""Batches whose decompressed size is huge, or whose record count is false."""

from __future__ import annotations

import random
import struct

from harness import Result, Run
from klamm.core.errors import ErrorCode
from klamm.core.records.header import CRC_AT, HEADER_SIZE, crc_of
from klammtest.broker import running_broker
from klammtest.logs import codec_table
from klammtest.requests import batch, produce
from klammtest.wire import WireClient
from peers.bombard import Bombardment

TOPICS = {
    "control": {"partitions": 1},
    "compacted": {"partitions": 1, "config": {"cleanup.policy": "compact"}},
    "recompressed": {"partitions": 1, "config": {"compression.type": "lz4"}},
    "verified": {"partitions": 1, "config": {"verify.payload": "all"}},
}
CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
COUNTS = (2**31 - 1, 1_000_000, 3)
GROWN = 384 * 2**20
MOST_MEMORY = 400 * 2**20
"""Memory limit in bytes. The log decompresses a batch up to `decompressed.max.bytes`, 64 MiB; a decoder needs twice
that while its buffer grows, and malloc keeps some of it for the threads that used it. A fully decompressed bomb would
take far more.
"""
MOST_BYTES = 1_000_000
REFUSED = {ErrorCode.corrupt_message, ErrorCode.invalid_record, ErrorCode.message_too_large}
RECORDS_AT = 57


class Bombs:
    name = "bombs"
    injects = (
        "batches of each codec that grow to 384 MB, and batches that claim 2^31-1, a million or 3 records, to a topic "
        "that is compacted, one that is recompressed and one with verify.payload=all, with the right CRC"
    )
    asserts = "CORRUPT_MESSAGE, INVALID_RECORD or MESSAGE_TOO_LARGE; the broker serves, and its memory is bounded"
    plants = "an ordinary batch is sent and treated as a bomb"
    tools = ()

    def run(self, run: Run) -> Result:
        result = Result(wanted=20 if run.quick else 200)
        with running_broker(run.folder, topics=TOPICS) as broker:
            with WireClient(broker.bootstrap) as wire:
                for number, chance in run.injections(1, 10):
                    bombs = _bombs(chance, plant=run.plant)
                    for topic in ("compacted", "recompressed", "verified"):
                        for name, bomb in bombs:
                            if (
                                "lz4" not in name or topic != "recompressed"
                            ):  # stored unread: the broker does not decompress it
                                _send(number, wire, topic, name, bomb, result)
            Bombardment([broker], result, MOST_MEMORY).finish()
        return result


def _send(number: int, wire: WireClient, topic: str, name: str, bomb: bytes, result: Result) -> None:
    result.injected += 1
    error = produce(wire, topic, bomb).error_code
    result.count(error.name)
    if error not in REFUSED:
        result.wrong(number, f"{name} to {topic}: {error.name}")


def _bombs(chance: random.Random, *, plant: bool) -> list[tuple[str, bytes]]:
    table = codec_table()
    fill = bytes((chance.randrange(256),))
    made = []
    for name, codec_id in CODECS.items():
        packed = bytes(table.by_id(codec_id).compress(fill * GROWN))
        made.append((f"a {name} bomb", _batch(packed[:MOST_BYTES], codec_id, 1)))
    for count in COUNTS:
        lie = bytearray(batch(b"one", b"two", codec=table.by_id(1)))
        made.append((f"a claim of {count} records", _claiming(lie, count)))
    if plant:
        made.append(("the plant", batch(b"x")))
    return made


def _batch(packed: bytes, codec_id: int, count: int) -> bytes:
    """Returns a batch with this payload, whatever it contains."""
    data = bytearray(batch(b"x")[:HEADER_SIZE]) + packed
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">h", data, 21, codec_id)
    return _claiming(data, count)


def _claiming(data: bytearray, count: int) -> bytes:
    struct.pack_into(">i", data, 23, count - 1)
    struct.pack_into(">i", data, RECORDS_AT, count)
    struct.pack_into(">I", data, CRC_AT, crc_of(data, 0, len(data)))
    return bytes(data)


CAMPAIGNS = [Bombs()]
