"""Record batches made from a seed, passed through the compiled module and through its twin."""

from __future__ import annotations

import argparse
import random
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from klamm.core.errors import CorruptRecordError
from klamm.core.protocol.bounds_check import write_uvarint
from klamm.core.records import fallback
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import HEADER_SIZE, BatchHeader, crc_of, set_crc
from klamm.core.records.one_record import RecordTuple, encode_headers

from . import produce_twin

SIZES = (0, 0, 1, 3, 10, 63, 64, 100, 127, 128, 300, 8191, 8192, 20_000)
FALLBACK = SimpleNamespace(
    **vars(fallback),
    read_fast_produce_request=produce_twin.read_fast_produce_request,
    write_fast_produce_response=produce_twin.write_fast_produce_response,
)
"""All functions of the compiled module, in Python."""
EDGES = (-(2**63), -(2**31), -1, 0, 1, 2**31 - 1, 2**31, 2**62, 2**63 - 1)


def some_bytes(rng: random.Random) -> bytes | None:
    return None if rng.random() < 0.15 else rng.randbytes(rng.choice(SIZES[: rng.choice((6, 6, 6, 10, 14))]))


def some_headers(rng: random.Random) -> tuple[tuple[str, bytes | None], ...]:
    if rng.random() < 0.7:
        return ()
    names = ("", "trace", "größe", "€", "🦀", "x" * 200)
    return tuple((rng.choice(names), some_bytes(rng)) for _ in range(rng.randrange(4)))


def some_records(rng: random.Random) -> list[RecordTuple]:
    """Makes 1 to 40 records; some have times at the limits of 64 bits."""
    start = rng.choice((0, 1_700_000_000_000, -1))
    far = rng.random() < 0.05
    records = []
    for _ in range(rng.choice((1, 2, 5, 12, 40))):
        stamp = rng.choice(EDGES[3:7]) if far else start + rng.randrange(-5, 100_000)
        records.append((stamp, some_bytes(rng), some_bytes(rng), some_headers(rng)))
    return records


def unopenable(records: Sequence[RecordTuple]) -> bytes:
    """Returns a batch with a correct CRC whose attributes say gzip but whose payload is not gzip."""
    raw = bytearray(encode_batch(records))
    raw[22] |= 1  # the codec, in the attributes
    set_crc(raw, 0, crc_of(raw, 0, len(raw)))
    return bytes(raw)


def spoiled(rng: random.Random, data: bytes) -> bytes:
    """Returns the data with a few bytes changed, removed, repeated or appended."""
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        what = rng.randrange(5)
        at = rng.randrange(len(raw) + 1) if rng.random() < 0.5 else min(rng.randrange(24), len(raw))
        if what == 0 and at < len(raw):
            raw[at] ^= 1 << rng.randrange(8)
        elif what == 1 and at < len(raw):
            raw[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
        elif what == 2:
            del raw[at : at + rng.choice((1, 2, 9))]
        elif what == 3:
            raw[at:at] = rng.choice((b"\xff" * 5, b"\xff" * 10, b"\x80" * 9 + b"\x01", rng.randbytes(3)))
        else:
            raw += rng.randbytes(rng.randrange(1, 4))
    return bytes(raw)


def produce_request(rng: random.Random, batch: bytes) -> bytes:
    """Makes a Produce request of one batch for one partition, without its length; some have an unusual field."""
    version = rng.choice((3, 5, 8, 9, 9, 12, 13, 13)) if rng.random() < 0.95 else rng.choice((-1, 2, 14))
    client = rng.choice((b"", b"me", "größe".encode(), b"\xff\xfe"[: 2 * (rng.random() < 0.1)]))
    topic = rng.choice(("t", "topic", "größe", "x" * 126, "x" * rng.choice((1, 127, 200)))).encode()
    acks, one, empty = (usual if rng.random() < 0.95 else rng.choice((0, 1, 2, -1)) for usual in (-1, 1, -1))
    partition = rng.choice((0, 3, 2**31 - 1, -1))
    front = struct.pack(">hhih", 0, version, rng.choice(EDGES[1:6]) % 2**31, len(client) or empty) + client
    if version < 9:
        around = struct.pack(">hhiih", empty, acks, 30_000, one, len(topic))
        return front + around + topic + struct.pack(">iii", one, partition, len(batch)) + batch
    size = write_uvarint(len(batch) + 1)
    if rng.random() < 0.1:
        size = size[:-1] + bytes((size[-1] | 0x80, 0))  # longer than necessary
    around = struct.pack(">BBhiB", 0, empty + 1, acks, 30_000, one + 1)
    if version < 13:
        around += bytes((min(len(topic) + 1, 255),))
    else:
        topic = rng.randbytes(16)
    tail = b"\0\0\0" if rng.random() < 0.95 else rng.choice((b"\0\0", b"\0\1\0", b"\0\0\0more"))
    return front + around + topic + struct.pack(">Bi", one + 1, partition) + size + batch + tail


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the result of a call, or the type and message of the error that it raises."""
    try:
        return function(*arguments)
    except (CorruptRecordError, ValueError, OverflowError) as error:
        return type(error), str(error)


_NO_BUFFERS = frozenset({"encode_records", "add_headers", "write_fast_produce_response"})
"""Functions that take objects of Python and no buffers."""


@dataclass
class Twins:
    """Two implementations side by side; `differences` stays empty while they agree."""

    one: Any
    other: Any = field(default_factory=lambda: FALLBACK)
    compared: int = 0
    refused: int = 0
    fast: int = 0
    """Number of Produce requests that both could read."""
    hold: Callable[[Any], Any] = lambda argument: argument
    """Prepares the arguments of `one`: a sanitizer needs buffers that end with their data."""

    def same(self, name: str, *arguments: Any) -> Any:
        """Returns both results if they are equal; else `AssertionError` with the arguments."""
        given = arguments if name in _NO_BUFFERS else [self.hold(argument) for argument in arguments]
        first, second = outcome(getattr(self.one, name), *given), outcome(getattr(self.other, name), *arguments)
        assert first == second, f"{name}{arguments!r}:\n{first!r}\n{second!r}"
        self.compared += 1
        self.refused += isinstance(first, tuple) and bool(first) and isinstance(first[0], type)
        return first

    def batch(self, seed: int) -> None:
        """Compares all functions on one generated batch and on spoiled copies of it."""
        rng = random.Random(seed)
        records = some_records(rng)
        written = self.same("encode_records", records)
        if isinstance(written[0], type):
            return
        base, latest, _ = written[1:]
        self._marked(rng, records)
        self._sealed(rng, len(records), written[0], base, latest)
        data = encode_batch(records, base_offset=rng.choice((0, 5, 2**40, 2**63 - 100)))
        header = BatchHeader.parse(data)
        area = data[HEADER_SIZE:]
        self._read(rng, area, header)
        for _ in range(2):
            self._read(rng, spoiled(rng, area), header)
        self._chain(rng, data)
        self._columns(rng, records)
        self._produce(rng, data)

    def _marked(self, rng: random.Random, records: Sequence[RecordTuple]) -> None:
        """Compares headers that are added to the first record, of whole batches and of spoiled ones."""
        room = rng.choice((0, 1, 30, 500))
        whole = bytes(self.same("encode_records", records, room, rng.choice((1, 1000, 2**40)))[0])
        front = room + HEADER_SIZE
        for data in (whole, whole[:front] + spoiled(rng, whole[front : front + 100])):
            self.same("first_headers", data[front:])
            more, copies = some_headers(rng), (bytearray(data), bytearray(data))
            made = [
                outcome(twin.add_headers, copy, room, more)
                for twin, copy in zip((self.one, self.other), copies, strict=True)
            ]
            assert (made[0], copies[0]) == (made[1], copies[1]), (data, room, more, made)

    def _produce(self, rng: random.Random, batch: bytes) -> None:
        """Compares on the request as it is, with a false header under a correct CRC, and with bytes spoiled
        anywhere.
        """
        raw = bytearray(batch)
        self.fast += self.same("read_fast_produce_request", produce_request(rng, batch)) is not None
        for _ in range(rng.randrange(3)):
            raw[rng.choice((rng.randrange(12), rng.randrange(16, HEADER_SIZE)))] = rng.choice((0, 1, 4, 0x7F, 0xFF))
        set_crc(raw, 0, crc_of(raw, 0, len(raw)))
        self.fast += self.same("read_fast_produce_request", produce_request(rng, bytes(raw))) is not None
        self.same("read_fast_produce_request", spoiled(rng, produce_request(rng, batch)))
        numbers = [rng.choice(EDGES[1:6]) if rng.random() < 0.1 else rng.randrange(2**31) for _ in range(6)]
        self.same(
            "write_fast_produce_response",
            rng.choice((*range(3, 14), 13, 13, 2, 14)),
            rng.choice(("t", "größe", "x" * 126, "x" * 255, rng.randbytes(16), rng.randbytes(16), b"short")),
            *numbers,
        )

    def _sealed(self, rng: random.Random, count: int, batch: bytearray, base: int, latest: int) -> None:
        one, other = bytearray(batch), bytearray(batch)
        said = (rng.randrange(2**63), rng.randrange(100), 0, count - 1, base, latest, rng.randrange(-1, 2**62),
                rng.randrange(-1, 2**15), rng.randrange(-1, 2**31), count)  # fmt: skip
        self.one.seal(one, *said)
        self.other.seal(other, *said)
        assert one == other
        assert self.same("chain", one, 0, len(one), -1, True, True)[0] == 1 or said[0] + count > 2**63 - 1

    def _read(self, rng: random.Random, area: bytes, header: BatchHeader) -> None:
        count = header.record_count if rng.random() < 0.9 else rng.choice((0, 1, 2, 2**31 - 1))
        base = header.base_offset if rng.random() < 0.95 else rng.choice(EDGES)
        stamp = header.base_timestamp if rng.random() < 0.9 else rng.choice(EDGES)
        fixed = rng.random() < 0.1
        self.same("lists", area, count, base, header.last_offset_delta, stamp, fixed)
        self.same("validate", area, count, base, header.last_offset_delta, stamp, fixed)
        one = (area, 0, len(area), count, base, header.last_offset_delta, stamp, fixed)
        padded = (b"abc" + area + b"d", 3, 3 + len(area), *one[3:])
        limits = rng.choice(((0, 2**63 - 1), (base + 1, base + 3), (-(2**63), base)))
        self.same("columns", [one, padded][: rng.randrange(3)] or [one], *(min(n, 2**63 - 1) for n in limits))
        within = (*(min(n, 2**63 - 1) for n in limits), rng.choice((1, 7, 1000, 600_000, 2**62, 0)))
        self.same("window_counts", area, *one[3:], *within)
        stamps, sizes = (array("q", (rng.choice(many) for _ in range(7))) for many in (EDGES[:-1], range(2**40)))
        cut = rng.choice((56, 56, 48, 0, 3))
        self.same("tally", stamps.tobytes()[:cut], sizes.tobytes()[: rng.choice((cut, 8))], within[2])
        self.same("int64s", [*stamps, *rng.choice(([], [-(2**63)], [True]))])

    def _chain(self, rng: random.Random, data: bytes) -> None:
        second = bytearray(data)
        second[0:8] = rng.choice((100, 2**40 + 50, 7)).to_bytes(8, "big")
        second[12:16] = rng.randrange(3).to_bytes(4, "big")
        whole = data + bytes(second) + data[: rng.randrange(len(data))]
        front = spoiled(rng, whole[:61]) + whole[61:] if rng.random() < 0.4 else whole
        expected = rng.choice((-1, 0, 5, 2**40))
        for verify in (False, True):
            self.same("chain", front, 0, len(front), expected, rng.random() < 0.5, verify)
        self.same("pieces", front, rng.choice((0, len(data), 2 * len(data), 4096)))

    def _columns(self, rng: random.Random, records: Sequence[RecordTuple]) -> None:
        wide = rng.random() < 0.3
        kind = pa.large_binary() if wide else pa.binary()
        skip = rng.randrange(3)
        keys, values = ([None] * skip + [record[i] for record in records] for i in (1, 2))
        stamps = pa.array([record[0] for record in records], pa.int64()).buffers()[1] if rng.random() < 0.5 else None
        key, value = (binary(pa.array(items, kind).slice(skip)) for items in (keys, values))
        if rng.random() < 0.1:
            key = (key[0], key[1], key[2].slice(0, key[2].size // 2), *key[3:])
        first = rng.randrange(len(records))
        last = rng.randrange(first, len(records) + 3)
        prefix, more = rng.choice((b"", b"\0\0\0\0\7")), encode_headers(some_headers(rng))
        limit = rng.choice((0, 200, 1000, 1 << 20))
        self.same("encode_columns", rng.choice((None, key)), value, stamps, 7, prefix, more, first, last, limit)
        self.same("partitions", rng.choice((None, key)), len(records) + rng.choice((0, 0, 2)), rng.choice((1, 3, 12)))


def binary(column: pa.Array) -> tuple[Any, Any, Any, int, int]:
    """Returns the buffers of a binary array as `encode_columns` takes them."""
    bitmap, offsets, data = column.buffers()
    width = 8 if pa.types.is_large_binary(column.type) else 4
    return bitmap, offsets, data if data is not None else pa.py_buffer(b""), column.offset, width


def main() -> int:
    """`make native-twin`: prints one line; returns 1 if the two differ."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    from klamm.core.records import _native

    twins = Twins(_native)
    for number in range(chosen.batches):
        seed = chosen.seed + number
        try:
            twins.batch(seed)
        except AssertionError as error:
            print(f"seed {seed}: {error}", file=sys.stderr)
            print(f"campaign native-twin injected {number} compared {twins.compared} different 1")
            return 1
    counts = f"compared {twins.compared} malformed {twins.refused} different 0"
    print(f"campaign native-twin injected {chosen.batches} {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
