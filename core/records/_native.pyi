# The compiled module; `fallback`, and `klammtest.native.produce_twin` for Produce, say what each function does.

from .checked_batch import CheckedBatch
from .fallback import Area, Binary, Buffer, ChainTuple, Columns, Lists, PieceTuple, WindowCounts
from .one_record import RecordTuple
from .record import Headers

def crc32c(data: Buffer, crc: int = 0, /) -> int: ...
def chain(data: Buffer, start: int, end: int, expected: int, dense: bool, verify: bool, /) -> ChainTuple: ...
def pieces(data: Buffer, room: int, /) -> list[PieceTuple]: ...
def lists(
    data: Buffer, count: int, base_offset: int, last_delta: int, base_timestamp: int, fixed: bool, /
) -> Lists: ...
def validate(
    data: Buffer, count: int, base_offset: int, last_delta: int, base_timestamp: int, fixed: bool, /
) -> tuple[int, int]: ...
def columns(areas: list[Area], from_offset: int, to_offset: int, /) -> Columns: ...
def window_counts(
    data: Buffer,
    count: int,
    base_offset: int,
    last_delta: int,
    base_timestamp: int,
    fixed: bool,
    from_offset: int,
    to_offset: int,
    window_ms: int,
    /,
) -> list[WindowCounts]: ...
def tally(timestamps: Buffer, sizes: Buffer, window_ms: int, /) -> list[tuple[int, int, int]]: ...
def int64s(items: list[int], /) -> bytes: ...
def sizes(keys: list[bytes | None], values: list[bytes | None], /) -> bytes: ...
def lengths(key_offsets: Buffer, value_offsets: Buffer, /) -> bytes: ...
def first_headers(data: Buffer, /) -> bytes | None: ...
def add_headers(batch: bytearray, room: int, headers: Headers, /) -> None: ...
def encode_records(
    records: list[RecordTuple], room: int = 0, window_ms: int = 0, /
) -> tuple[bytearray, int, int, list[tuple[int, int, int]]]: ...
def encode_columns(
    keys: Binary | None,
    values: Binary | None,
    timestamps: Buffer | None,
    timestamp: int,
    prefix: Buffer,
    more: Buffer,
    first: int,
    last: int,
    max_size: int,
    room: int = 0,
    /,
) -> tuple[bytearray, int, int, int]: ...
def seal(
    batch: bytearray | memoryview,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    count: int,
    /,
) -> None: ...
def partitions(keys: Binary | None, rows: int, partitions: int, /) -> bytes: ...
def read_fast_produce_request(
    frame: Buffer, /
) -> tuple[int, int, str, int, int, str | bytes, int, CheckedBatch] | None: ...
def write_fast_produce_response(
    version: int,
    topic: str | bytes,
    correlation_id: int,
    partition: int,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
    throttle_ms: int,
    /,
) -> bytes: ...
