"""The compiled module and its twin give the same bytes and the same errors. (`make native-twin`: 100,000 batches.)"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.core.errors import CorruptRecordError
from klamm.core.records import fallback, native
from klamm.core.records.chain import Chain, check_chain
from klamm.core.records.encode import encode_batch
from klamm.core.records.fallback import PieceTuple
from klammtest.native.batches import Twins, produce_request
from klammtest.native.produce_twin import CHECKED_BYTES, MOST_BYTES

_native = pytest.importorskip("klamm.core.records._native", reason="klamm was installed without a C compiler")
BATCHES = 1500


def test_generated_batches() -> None:
    twins = Twins(_native)
    for seed in range(BATCHES):
        twins.batch(seed)
    assert twins.refused > BATCHES, "malformed input is a part of it"
    assert twins.compared - twins.refused > BATCHES
    assert twins.fast > BATCHES / 2


@settings(max_examples=500)
@given(
    data=st.binary(max_size=60),
    count=st.integers(-1, 5),
    base_offset=st.integers(-(2**63), 2**63 - 1),
    last_delta=st.integers(-1, 10),
    stamp=st.integers(-(2**63), 2**63 - 1),
    fixed=st.booleans(),
)
def test_any_bytes(data: bytes, count: int, base_offset: int, last_delta: int, stamp: int, fixed: bool) -> None:
    said = (count, base_offset, last_delta, stamp, fixed)
    twins = Twins(_native)
    twins.same("lists", data, *said)
    twins.same("columns", [(data, 0, len(data), *said)], 0, 2**63 - 1)


@settings(max_examples=300)
@given(data=st.binary(max_size=200), cut=st.integers(0, 7), expected=st.integers(-1, 3))
def test_any_chain(data: bytes, cut: int, expected: int) -> None:
    batch = encode_batch([(1, b"k", b"v", ())])
    raw = batch[:16] + data[:cut] + batch[16 + cut :] + data
    Twins(_native).same("chain", raw, 0, len(raw), expected, True, False)
    Twins(_native).same("pieces", raw, 100)


@settings(max_examples=300)
@given(data=st.binary(max_size=5000), seed=st.integers(0, 2**32 - 1), at=st.integers(0, 9))
def test_crc(data: bytes, seed: int, at: int) -> None:
    assert _native.crc32c(memoryview(data)[at:], seed) == fallback.crc32c(memoryview(data)[at:], seed)


@pytest.mark.parametrize("size", [3071, 3072, 3080, 3081, 6143, 6144, 65_536, 100_003])
def test_the_crc_of_what_is_read_in_three_streams(size: int) -> None:
    data = random.Random(size).randbytes(size)
    for seed in (0, 1, 2**32 - 1):
        assert _native.crc32c(data, seed) == fallback.crc32c(data, seed)


def test_a_fast_request_of_any_size_shows_its_batch_in_place() -> None:
    for size in (0, 100, 5000, 524_000, 525_000):
        batch = encode_batch([(1, None, bytes(size), ())])
        frame = bytearray(produce_request(random.Random(1), batch))
        read = Twins(_native).same("read_fast_produce_request", frame)
        assert (read is None) == (len(batch) > MOST_BYTES)
        if read is not None:
            read[-1][0][0:3] = b"now"
            assert b"now" in frame
            read[-1][0][-1] ^= 1
            again = Twins(_native).same("read_fast_produce_request", frame)
            assert (again is None) == (len(batch) <= CHECKED_BYTES), "a small batch's CRC is checked"


def test_a_response_takes_only_what_fits() -> None:
    twins = Twins(_native)
    wrong_topics = (
        (14, "t"),
        (9, "t" * 127),
        (3, "t" * 256),
        (9, bytes(16)),
        (13, "t"),
        (13, bytes(15)),
        (13, bytes(17)),
    )
    for wrong in (*((*topic, 1) for topic in wrong_topics), (9, "t", 2**31), (9, "t", 2**70)):
        assert twins.same("write_fast_produce_response", *wrong, 1, 1, 1, 1, 1)[0] is ValueError
    for arguments in (
        (9, "t"),
        (9, None, 1, 1, 1, 1, 1, 1),
        (9, "t", "1", 1, 1, 1, 1, 1),
        (9, "t", None, 1, 1, 1, 1, 1),
    ):
        with pytest.raises(TypeError):
            _native.write_fast_produce_response(*arguments)
    with pytest.raises(TypeError):
        _native.read_fast_produce_request("text")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("chain", (b"abc", 2, 9, -1, False, False)),
        ("chain", (b"abc", -1, 2, -1, False, False)),
        ("columns", ([(b"abc", 2, 9, 0, 0, 0, 0, False)], 0, 1)),
        ("encode_records", ([],)),
        ("encode_records", ([(-(2**63), None, None, ()), (2**63 - 1, None, None, ())],)),
        ("encode_columns", (None, None, None, 0, b"", b"\0", 0, 0, 100)),
        ("encode_columns", (None, (None, b"\0" * 8, b"", -1, 4), None, 0, b"", b"\0", 0, 1, 100)),
        ("encode_columns", (None, (None, b"\0" * 8, b"", 0, 5), None, 0, b"", b"\0", 0, 1, 100)),
        ("encode_columns", (None, (b"", b"\0" * 8, b"", 0, 4), None, 0, b"", b"\0", 0, 1, 100)),
        ("encode_columns", (None, (None, b"\0\0\0\0\x05\0\0\0", b"four", 0, 4), None, 0, b"", b"\0", 0, 1, 100)),
        ("encode_columns", (None, None, b"\0" * 8, 0, b"", b"\0", 0, 2, 100)),
        ("encode_columns", (None, None, None, 0, b"", b"\0", 0, 2**62, 100)),
        ("partitions", (None, -1, 3)),
        ("partitions", (None, 1, 0)),
        ("seal", (bytearray(60), 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)),
    ],
)
def test_arguments_that_make_no_sense(name: str, arguments: tuple[Any, ...]) -> None:
    assert isinstance(Twins(_native).same(name, *arguments)[0], type)


@pytest.mark.parametrize(
    "records",
    [[("1", b"", b"", ())], [(1, "k", b"", ())], [(1, b"", b"", [])], [(1, b"")], [7], [(1, b"", b"", ((b"n", b""),))]],
)
def test_objects_of_other_types_are_type_errors(records: list[Any]) -> None:
    with pytest.raises(TypeError):
        _native.encode_records(records)


def test_a_name_with_a_lone_surrogate_is_an_error_in_both() -> None:
    records: list[Any] = [(1, b"", b"", (("\ud800", b""),))]
    for encode in (_native.encode_records, fallback.encode_records):
        with pytest.raises(UnicodeEncodeError):
            encode(records)


def test_what_a_chain_says() -> None:
    first = encode_batch([(5, b"k", b"v", ())] * 3, base_offset=10, leader_epoch=1)
    second = encode_batch([(9, b"k", b"v", ())], base_offset=13, leader_epoch=2)
    data = first + second + first[:70]
    size = len(first)
    expected = Chain(2, size + len(second), 10, 14, 9, size, [(1, 10), (2, 13)])
    assert check_chain(data, expected=10, dense=True, verify=True) == expected
    assert check_chain(data, size, expected=11) == expected._replace(batches=1, first_offset=13, epochs=[(2, 13)])
    assert check_chain(b"", expected=7) == Chain(0, 0, -1, 7, -1, -1, [])
    with pytest.raises(CorruptRecordError, match="byte 0: a batch begins at offset 10, 9 is expected"):
        check_chain(data, expected=9, dense=True)
    with pytest.raises(CorruptRecordError, match=f"byte {size}: .* at offset 10, at least 13 is expected"):
        check_chain(first + first)
    flipped = bytearray(data)
    flipped[65] ^= 1
    with pytest.raises(CorruptRecordError, match="byte 0: the CRC"):
        check_chain(flipped, verify=True)


@pytest.mark.parametrize("pieces", [_native.pieces, fallback.pieces])
def test_what_pieces_say(pieces: Callable[[bytes, int], list[PieceTuple]]) -> None:
    first = encode_batch([(5, b"k", b"v", ())] * 3, base_offset=10, leader_epoch=1)
    second = encode_batch([(9, b"k", b"v", ())], base_offset=13, producer_id=7, producer_epoch=0, base_sequence=0)
    third = encode_batch([(7, b"k", b"v", ())], base_offset=14)
    data, one, two = first + second + third + first[:70], len(first), len(first) + len(second)
    three = two + len(third)
    assert pieces(data, three) == [(0, three, 10, 14, 9, 13, one, 12, 5, [one])]
    assert pieces(data, two) == [
        (0, two, 10, 13, 9, 13, one, 12, 5, [one]),
        (two, three, 14, 14, 7, 14, three - two, 14, 7, []),
    ]
    assert [piece[:2] for piece in pieces(data, 0)] == [(0, one), (one, two), (two, three)]
    assert pieces(b"", 9) == []
    with pytest.raises(CorruptRecordError, match=f"byte {one}: no batch can have this header"):
        pieces(first + bytes(70), 9)


def test_the_twin_can_be_chosen() -> None:
    ask = "from klamm.core.records import native; print(native.IMPLEMENTATION)"
    for asked, answer in (("1", "fallback"), ("0", "native")):
        run = subprocess.run(
            [sys.executable, "-c", ask], env={**os.environ, "KLAMM_FALLBACK": asked}, capture_output=True, text=True,
            timeout=180, check=True,
        )  # fmt: skip
        assert run.stdout.strip() == answer
    assert native.IMPLEMENTATION in ("fallback", "native")
