"""Every request and response offered, at every version: round trips, random bytes, injected tags, lying counts."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.core.errors import ErrorCode, ProtocolError
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.bounds_check import MAX_ELEMENTS, write_uvarint
from klammtest.apis import SERVED

each_api = pytest.mark.parametrize("api", SERVED, ids=lambda api: api.name)


def requests(api: ApiKey) -> list[messages.Schema]:
    """Returns the API's requests of each version that is served."""
    low, high = SERVED[api]
    return [messages.request(api, version) for version in range(low, high + 1)]


def requests_and_responses(api: ApiKey) -> list[messages.Schema]:
    low, high = SERVED[api]
    return [*requests(api), *(messages.response(api, version) for version in range(low, high + 1))]


def sample(cls: type[Any]) -> Any:
    """A message with one element in every array, and every field set to something plain."""
    return cls(**{f.name: _value(f.type, f.default) for f in fields(cls)})


def _value(kind: Any, default: Any) -> Any:
    arms = [arm for arm in get_args(kind) if arm not in (type(None), ...)]
    if getattr(kind, "__origin__", None) is tuple:
        return (_value(arms[0], MISSING),)
    if arms:
        return _value(arms[0], default)
    if is_dataclass(kind):
        return sample(kind)  # type: ignore[arg-type]  # a class, not an instance
    if default is not MISSING and default is not None:
        return default
    if issubclass(kind, timedelta):
        return timedelta(milliseconds=1)
    if issubclass(kind, datetime):
        return datetime.fromtimestamp(1, UTC)
    for base, value in ((ErrorCode, ErrorCode.none), (bool, True), (int, 1), (float, 0.5), (str, "x"), (bytes, b"xy")):
        if issubclass(kind, base):
            return kind(value) if base is bytes else value
    return UUID(int=1) if kind is UUID else None


@each_api
def test_what_is_encoded_is_decoded(api: ApiKey) -> None:
    for schema in requests_and_responses(api):
        message = sample(schema.root)
        data = schema.encode(message)
        assert schema.decode(data) == message, schema.name
        assert schema.decode(bytearray(b"head" + data), 4) == message, schema.name
        with pytest.raises(ProtocolError, match="left over"):
            schema.decode(data + b"\0")
        if data:
            with pytest.raises(ProtocolError):
                schema.decode(data[:-1])


@settings(max_examples=15)
@given(data=st.binary(max_size=300))
@each_api
def test_random_bytes_are_a_message_or_a_protocol_error(api: ApiKey, data: bytes) -> None:
    for schema in requests(api):
        with suppress(ProtocolError):
            schema.decode(data)


@settings(max_examples=20)
@given(at=st.floats(0, 1), value=st.integers(0, 255), cut=st.booleans())
@each_api
def test_damaged_messages_are_a_message_or_a_protocol_error(api: ApiKey, at: float, value: int, cut: bool) -> None:
    for schema in requests(api):
        data = bytearray(schema.encode(sample(schema.root)) or b"\0")
        position = int(at * (len(data) - 1))
        data[position] = value
        with suppress(ProtocolError):
            schema.decode(bytes(data[: position + 1] if cut else data))


def tag_sections(schema: messages.Schema) -> list[bytes]:
    """The sample's bytes, once for each of its tag sections with an unknown tag put into it.

    Sections are found by trial: an unknown tag goes in where a count of tagged fields stands, and only there is the
    result the same message.
    """
    data = schema.encode(sample(schema.root))
    unknown = write_uvarint(77) + write_uvarint(3) + b"abc"
    found = []
    for position, byte in enumerate(data):
        if byte < 0x7F:
            found.append(data[:position] + bytes([byte + 1]) + unknown + data[position + 1 :])
    return found


def levels(cls: type[Any]) -> int:
    """Returns how many structs the sample holds outside of tagged fields: each ends with one tag section."""
    count = 1
    for f in fields(cls):
        if "tag" not in f.metadata:
            for kind in (f.type, *get_args(f.type), *(b for a in get_args(f.type) for b in get_args(a))):
                count += levels(kind) if is_dataclass(kind) else 0  # type: ignore[arg-type]
    return count


@each_api
def test_an_unknown_tag_is_skipped_at_every_level(api: ApiKey) -> None:
    for schema in requests_and_responses(api):
        if not schema.flexible:
            continue
        message = sample(schema.root)
        skipped = 0
        for data in tag_sections(schema):
            try:
                skipped += schema.decode(data) == message
            except ProtocolError:
                continue  # that byte was no count of tagged fields
        assert skipped >= levels(schema.root), schema.name


def test_unknown_tags_within_known_tagged_structs_are_skipped() -> None:
    schema = messages.response(ApiKey.FETCH, 12)
    partition = schema.part(
        "PartitionData", partition_index=0, error_code=ErrorCode.none, high_watermark=1, aborted_transactions=None,
        records=None, diverging_epoch=schema.part("EpochEndOffset", epoch=5, end_offset=6),
    )  # fmt: skip
    topic = schema.part("FetchableTopicResponse", topic="t", partitions=(partition,))
    message = schema.build(throttle_time=timedelta(), error_code=ErrorCode.none, responses=(topic,))
    epoch, unknown = struct.pack(">iq", 5, 6), b"\x01\x09\x02hi"
    plain, grown = bytes([len(epoch) + 1]) + epoch + b"\0", bytes([len(epoch + unknown)]) + epoch + unknown
    data = schema.encode(message)
    assert plain in data
    assert schema.decode(data.replace(plain, grown)) == message


@pytest.mark.parametrize("count", [2**31 - 1, 10**6, 11])
def test_a_lying_count_is_refused_at_once(count: int) -> None:
    legacy, flexible = messages.request(ApiKey.METADATA, 1), messages.request(ApiKey.METADATA, 9)
    with pytest.raises(ProtocolError):
        legacy.decode(struct.pack(">i", count) + b"\0\0" * 10)
    with pytest.raises(ProtocolError):
        flexible.decode(write_uvarint(count + 1) + b"\x01\0" * 10)


def test_too_many_elements_are_refused_before_any_is_built() -> None:
    count = MAX_ELEMENTS + 1
    with pytest.raises(ProtocolError, match=f"more than {MAX_ELEMENTS} array elements"):
        messages.request(ApiKey.METADATA, 1).decode(struct.pack(">i", count) + b"\0\0" * count)
    deep = struct.pack(">h", 1) + b"g" + struct.pack(">i", 2)
    deep += 2 * (struct.pack(">hi", 0, count // 2 + 1) + b"\0\0\0\0" * (count // 2 + 1))
    with pytest.raises(ProtocolError, match="array elements"):
        messages.request(ApiKey.OFFSET_FETCH, 1).decode(deep)


def test_many_elements_within_the_bound_are_read() -> None:
    count = 20_000
    message = messages.request(ApiKey.METADATA, 1).decode(struct.pack(">i", count) + b"\0\1t" * count)
    assert len(message.topics) == count


def test_a_varint_without_an_end_is_refused() -> None:
    with pytest.raises(ProtocolError):
        messages.request(ApiKey.METADATA, 9).decode(b"\xff" * 40_000)


def test_what_cannot_be_written_is_one_error() -> None:
    schema = messages.response(ApiKey.HEARTBEAT, 4)
    with pytest.raises(ProtocolError, match="cannot write HeartbeatResponse"):
        schema.encode(schema.build(throttle_time="soon", error_code=ErrorCode.none))


@pytest.mark.parametrize(("version", "null"), [(2, b"\xff\xff\xff\xff"), (8, b"\0")], ids=["legacy", "flexible"])
def test_a_null_array_is_refused_where_kafkas_definition_has_none(version: int, null: bytes) -> None:
    """kio reads it as None, and a handler would stumble over it."""
    schema = messages.request(ApiKey.OFFSET_COMMIT, version)
    data = schema.encode(sample(schema.root))
    empty = schema.encode(schema.build(**{**_values(schema, data), "topics": ()}))
    end = b"\0" if schema.flexible else b""
    length = 1 if schema.flexible else 4
    nothing = empty[: len(empty) - len(end) - length] + null + end
    with pytest.raises(ProtocolError, match="a null array before byte"):
        schema.decode(nothing)


def _values(schema: messages.Schema, data: bytes) -> dict[str, Any]:
    message = schema.decode(data)
    return {f.name: getattr(message, f.name) for f in fields(schema.root)}
