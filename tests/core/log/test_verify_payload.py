"""`verify.payload`: what a broker takes, its readers can read."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from klamm.core.log.errors import InvalidRecordError, InvalidTimestampError, MessageTooLargeError, WouldBlockError
from klamm.core.log.partition_log import PartitionLog
from klamm.core.log.validation import ON_LOOP_PACKED, Validator
from klamm.core.records.header import HEADER_SIZE, BatchHeader, crc_of, set_crc
from klammtest.guarantees import guarantee
from klammtest.logs import (
    START_MS,
    ManualClock,
    append,
    append_checked,
    batch,
    codec_table,
    from_request,
    open_log,
    read_all,
)

CODECS = codec_table()
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
HOUR_MS = 3_600_000


def sealed(data: bytearray) -> bytearray:
    """With the length and the CRC that go with its bytes."""
    struct.pack_into(">i", data, 8, len(data) - 12)
    set_crc(data, 0, crc_of(data, 0, len(data)))
    return data


def of(name: str, payload: bytes, count: int = 3) -> bytearray:
    """A batch of that many records by its header, with a payload of the codec that need not hold them."""
    data = batch([b"x"] * count)[:HEADER_SIZE] + CODECS.by_name(name).compress(payload)
    struct.pack_into(">h", data, 21, CODECS.by_name(name).codec_id)
    return sealed(data)


def cut(name: str) -> bytearray:
    """The payload's last bytes are gone."""
    return sealed(of(name, bytes(batch([b"x" * 50] * 3)[HEADER_SIZE:]))[:-7])


def garbled(name: str) -> bytearray:
    """The payload is no output of the codec's."""
    data = of(name, b"")[:HEADER_SIZE] + b"\xa5" * 99
    return sealed(data)


def no_records(name: str) -> bytearray:
    """The payload unpacks to something else."""
    return of(name, b"\x01\x02 no records" * 10)


def too_few(name: str) -> bytearray:
    """Fewer records than the header says."""
    return of(name, bytes(batch([b"x"] * 2)[HEADER_SIZE:]))


def too_many(name: str) -> bytearray:
    """More records than the header says."""
    return of(name, bytes(batch([b"x"] * 4)[HEADER_SIZE:]))


def large(name: str) -> bytearray:
    """Bad in its last record, and too large for an event loop."""
    records = batch([random_bytes(n) for n in range(70)])[HEADER_SIZE:]
    records[-1] = 2  # one header, of which nothing is there
    data = of(name, bytes(records), 70)
    assert len(data) > ON_LOOP_PACKED
    return data


def random_bytes(seed: int) -> bytes:

    return random.Random(seed).randbytes(1000)


KINDS = (cut, garbled, no_records, too_few, too_many, large)


def take_unopened(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Validator, "verifies", lambda *_: False)


@guarantee("D13", "a batch whose records cannot be read is refused", plant=take_unopened)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_what_no_reader_could_read_is_refused(tmp_path: Path, name: str, kind: Callable[[str], bytearray]) -> None:
    log = open_log(tmp_path, verify_payload="all")
    log.begin_leader_epoch(0)
    refused = "the records of a batch with the right CRC cannot be read"
    with pytest.raises(InvalidRecordError, match=refused):
        append_checked(log, from_request(kind(name)))
    with pytest.raises(InvalidRecordError, match=refused):
        append(log, kind(name))
    assert log.log_end_offset == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_good_batch_is_taken_both_ways(tmp_path: Path, name: str) -> None:
    log = open_log(tmp_path, verify_payload="all")
    log.begin_leader_epoch(0)
    good = batch([b"a", b"b"], codec=CODECS.by_name(name), step_ms=5)
    assert append_checked(log, from_request(good))[:2] == (0, 1)
    assert append(log, bytearray(good)) == (2, 3)
    assert [record.value for record in read_all(log)] == [b"a", b"b"] * 2


@pytest.mark.parametrize(("verified", "taken"), [("none", ("none", "zstd")), ("uncompressed", ("zstd",)), ("all", ())])
def test_the_topic_says_which_are_read(tmp_path: Path, verified: str, taken: tuple[str, ...]) -> None:
    log = open_log(tmp_path)
    log.reconfigure(log.config.model_copy(update={"verify_payload": verified}))
    for name in ("none", "zstd"):
        if name in taken:
            append(log, too_few(name))
        else:
            with pytest.raises(InvalidRecordError):
                append(log, too_few(name))


@pytest.mark.parametrize("config", [{"cleanup_policy": "compact"}, {"compression_type": "gzip"}])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_topic_whose_batches_are_opened_anyway(
    tmp_path: Path, config: dict[str, str], kind: Callable[[str], bytearray]
) -> None:
    log = open_log(tmp_path, verify_payload="none", **config)
    with pytest.raises(InvalidRecordError, match="cannot be read"):
        append(log, kind("zstd"))


def test_only_what_unpacks_in_no_time_is_opened_on_the_loop(tmp_path: Path) -> None:
    log = open_log(tmp_path, verify_payload="all")
    log.begin_leader_epoch(0)
    zstd = CODECS.by_name("zstd")
    packed = batch([random_bytes(n) for n in range(70)], codec=zstd)
    assert log.append_may_block(packed)
    grows = batch([bytes(1_000_000)], codec=zstd)
    assert not log.append_may_block(grows), "its header does not tell"
    for many in (packed, grows):
        with pytest.raises(WouldBlockError):
            append_checked(log, from_request(many), on_loop=True)
        append(log, bytearray(many))
    with pytest.raises(WouldBlockError):
        log.append_as_leader(bytearray(grows), 0, on_loop=True)
    assert not log.append_may_block(batch())
    assert log.log_end_offset == 71


def test_a_batch_that_grows_beyond_the_bound_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, verify_payload="all")
    log.decompressed_max_bytes = 100_000
    with pytest.raises(MessageTooLargeError, match=r"decompressed\.max\.bytes"):
        append(log, batch([bytes(200_000)], codec=CODECS.by_name("zstd")))
    append(log, batch([bytes(200_000)]))


def claims(data: bytearray, max_timestamp: int) -> bytearray:
    struct.pack_into(">q", data, 35, max_timestamp)
    return sealed(data)


def stored_max(log: PartitionLog) -> int:
    return BatchHeader.parse(log.read(log.log_end_offset - 1, 1000).data).max_timestamp


@guarantee("D17", "the largest timestamp of a batch is its records', not its header's", plant=take_unopened)
@pytest.mark.parametrize("said", [0, 5, START_MS - 1, START_MS + 2, START_MS + HOUR_MS])
@pytest.mark.parametrize("verified", ["uncompressed", "all"])
def test_a_max_timestamp_that_no_record_has_is_corrected(tmp_path: Path, verified: str, said: int) -> None:
    """Retention would take it within seconds, or never."""
    log = open_log(tmp_path, verify_payload=verified)
    log.begin_leader_epoch(0)
    data = claims(batch([b"a", b"b"], step_ms=1), said)
    append_checked(log, from_request(data))
    assert stored_max(log) == START_MS + 1
    found = log.offset_for_timestamp(START_MS + 1)
    assert found is not None
    assert found.offset == 1
    assert log.apply_retention(START_MS + log.config.retention_ms) == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("first", "said"), [(-1, 0), (START_MS, 5), (START_MS, -1)])
def test_timestamps_that_cannot_be_are_corrected_whatever_the_topic_says(
    tmp_path: Path, name: str, first: int, said: int
) -> None:
    log = open_log(tmp_path, verify_payload="none")
    append(log, claims(batch([b"a"], timestamp_ms=first, codec=CODECS.by_name(name)), said))
    assert stored_max(log) == first


def test_a_corrected_timestamp_is_held_to_its_bounds(tmp_path: Path) -> None:
    log = open_log(tmp_path, ManualClock(), message_timestamp_after_max_ms=HOUR_MS)
    ahead = batch([b"a", b"b"], step_ms=2 * HOUR_MS)
    with pytest.raises(InvalidTimestampError, match="after now"):
        append(log, claims(ahead, START_MS))
    assert log.log_end_offset == 0
