"""Converts the columns of the source to the rows of the lake; runs in Spark's Python workers, on Arrow batches.

A row is the columns of the Avro record, then `_key`, `_partition`, `_offset`, `_timestamp` and `_size` (key plus value,
in bytes, as the audit counts them), then the directory: `dt` and, if asked for, `hr`, from the record's timestamp in
the format's time zone. A record without a value (a tombstone) has nulls for the record's columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from klamm.core.errors import SchemaError
from klamm.core.interfaces.envelope import Envelope, SchemaKey
from klamm.core.plugins import plugin_host
from klamm.schemas.avro.model import AvroType
from klamm.schemas.avro.parsing import parse_type
from klamm.schemas.columns.arrowtype import arrow_type
from klamm.schemas.columns.decode import Decoded, PayloadDecoder, without_prefix
from klamm.schemas.registry.registry import Writers
from klamm.schemas.registry.subject_schemas import describe

from ..lake.layout import INVALID
from .record_type import check

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
META: Final = (
    pa.field("_key", pa.binary()),
    pa.field("_partition", pa.int32()),
    pa.field("_offset", pa.int64()),
    pa.field("_timestamp", TIMESTAMP),
    pa.field("_size", pa.int32()),
)
QUARANTINE: Final = (
    pa.field("_error", pa.string()),
    pa.field("_value", pa.binary()),
    pa.field("_end_offset", pa.int64()),
)
"""`_end_offset` is set for a batch that cannot be opened: one row for the offsets [`_offset`, `_end_offset`)."""
RAW: Final = (pa.field("value", pa.binary()),)
"""The columns of a topic whose values have no schema."""
_NAMES: Final = {"dt": "%Y-%m-%d", "hr": "%H"}
RESERVED: Final = frozenset(f.name for f in (*META, *QUARANTINE)) | {"load", "dt", "hr"}


@dataclass(frozen=True)
class RowFormat:
    """The properties of a topic that a worker needs; pickled.

    `reader` is the text of the schema that the lake's columns follow, None for raw bytes. `writers` has the texts of
    all registered schemas. Records whose timestamp is outside [`min_us`, `max_us`] are invalid. `quarantine`: rows that
    cannot be read are marked by `_error` instead of ending the load.
    """

    topic: str
    partition_by: tuple[str, ...]
    reader: str | None
    writers: Writers
    envelope: str
    plugins: tuple[str, ...]
    min_us: int
    max_us: int
    quarantine: bool
    timezone: str = "UTC"

    def fields(self) -> tuple[pa.Field, ...]:
        """The columns of the values. Raises `SchemaError` for a record type that no lake can hold."""
        if self.reader is None:
            return RAW
        avro = self.record_type()
        check(self.topic, avro, RESERVED)
        return tuple(arrow_type(avro))

    def record_type(self) -> AvroType:
        """Parses `reader`, which is not None. Raises `SchemaError` if that is no schema."""
        try:
            return parse_type(self.reader or "")
        except SchemaError as error:
            raise SchemaError(f"topic {self.topic}: {error}") from error

    def schema(self) -> pa.Schema:
        """The rows' schema in Arrow."""
        directory = [pa.field(name, pa.string()) for name in self.partition_by]
        return pa.schema([*self.columns(), *directory])

    def columns(self) -> pa.Schema:
        """Returns the schema of the rows without their directories."""
        return pa.schema([*self.fields(), *META, *(QUARANTINE if self.quarantine else ())])

    def directories(self, places: pa.Array) -> list[pa.Array]:
        """Returns the values of the directory columns for these days or hours; null stays null and marks an invalid
        record. A null hour is Hive's default partition.
        """
        return [pc.strftime(places, _NAMES[name]) for name in self.partition_by]


class RowMaker:
    """Makes the lake's rows in one task, which keeps the decoders by schema."""

    def __init__(self, format_: RowFormat) -> None:
        self._format = format_
        self._schema = format_.schema()
        self._kept = format_.columns()
        self._decoders: dict[SchemaKey, PayloadDecoder] = {}

    @cached_property
    def _envelope(self) -> Envelope:
        return plugin_host(self._format.plugins).envelopes.create(self._format.envelope)

    @cached_property
    def _reader(self) -> AvroType:
        return parse_type(self._format.reader or "")

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows with the directory columns."""
        columns = [*self._columns(batch), *self._directories(batch.column("timestamp"))]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def placed(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array]:
        """Returns the rows without the directory columns, and the place of each row."""
        rows = pa.RecordBatch.from_arrays(self._columns(batch), schema=self._kept)
        return rows, self.places(batch.column("timestamp"))

    def _columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        values = batch.column("value")
        bad: dict[int, str] = {}
        columns: list[pa.Array] = [values]
        unopened = self._unopened(batch)
        if self._format.reader is not None:
            decoded = self._decode(values, unopened)
            columns, bad = decoded.rows.flatten(), dict(decoded.bad)
        bad |= unopened
        if bad and not self._format.quarantine:
            self._refuse(batch, bad)
        columns += self._meta(batch)
        if self._format.quarantine:
            columns += [*_quarantined(values, bad), batch.column("endOffset")]
        return columns

    def _unopened(self, batch: pa.RecordBatch) -> dict[int, str]:
        """Returns the rows that stand for batches which cannot be opened, with the reason."""
        if not self._format.quarantine:
            return {}
        reasons = batch.column("error")
        rows = pc.indices_nonzero(pc.is_valid(reasons))
        return dict(zip(rows.to_pylist(), reasons.take(rows).to_pylist(), strict=True))

    def _refuse(self, batch: pa.RecordBatch, bad: Mapping[int, str]) -> None:
        row = min(bad)
        partition, offset = batch.column("partition")[row].as_py(), batch.column("offset")[row].as_py()
        raise SchemaError(
            f"topic {self._format.topic} partition {partition} offset {offset}: {bad[row]}; nothing is loaded "
            "(on.bad.record: quarantine sets such records aside)"
        )

    def _decode(self, values: pa.Array, unopened: Mapping[int, str]) -> Decoded:
        """Returns the values as structs, in the order of the batch; each is decoded with the schema that its envelope
        names.
        """
        size = self._envelope.prefix_size
        if unopened:
            values = pc.if_else(_among(unopened, len(values)), pa.scalar(None, values.type), values)
        prefixes = pc.binary_slice(values, 0, size).dictionary_encode()
        bad: dict[int, str] = {}
        found: list[tuple[pa.Array, pa.Array]] = []
        for number, prefix in enumerate(prefixes.dictionary.to_pylist()):
            rows = pc.indices_nonzero(pc.equal(prefixes.indices, number))
            group = values if len(rows) == len(values) else values.take(rows)
            decoded = self._decode_group(prefix, without_prefix(group, size))
            bad.update({rows[i].as_py(): why for i, why in decoded.bad.items()})
            found.append((rows, decoded.rows))
        return Decoded(_scatter(found, len(values), arrow_type(self._reader)), bad)

    def _decode_group(self, prefix: bytes, payloads: pa.Array) -> Decoded:
        try:
            decoder = self._decoder(self._envelope.parse(prefix))
        except SchemaError as error:
            bad = dict.fromkeys(range(len(payloads)), str(error))
            return Decoded(pa.nulls(len(payloads), arrow_type(self._reader)), bad)
        return decoder.decode(payloads)

    def _decoder(self, key: SchemaKey) -> PayloadDecoder:
        if key not in self._decoders:
            text = self._format.writers.get(key)
            if text is None:
                raise SchemaError(f"no schema is registered as {describe(key)}")
            self._decoders[key] = PayloadDecoder(text, self._reader)
        return self._decoders[key]

    def _meta(self, batch: pa.RecordBatch) -> list[pa.Array]:
        sizes = [pc.fill_null(pc.binary_length(batch.column(name)), 0) for name in ("key", "value")]
        return [
            batch.column("key"),
            batch.column("partition"),
            batch.column("offset"),
            batch.column("timestamp"),
            pc.add(*sizes),
        ]

    def _directories(self, timestamps: pa.Array) -> list[pa.Array]:
        """Returns the directory names of the rows; each name is formatted once per batch."""
        places = self.places(timestamps).dictionary_encode()
        names = self._format.directories(places.dictionary)
        columns = [column.take(places.indices) for column in names]
        return [
            pc.fill_null(column, INVALID) if name == "dt" else column
            for name, column in zip(self._format.partition_by, columns, strict=True)
        ]

    def places(self, timestamps: pa.Array) -> pa.Array:
        """Returns the day or the hour of each record, which determines its directory; null for an invalid record.

        It is in the format's time zone, whatever the worker's zone is: the repeated hour, when clocks are set back, is
        one directory.
        """
        instants = timestamps.cast(pa.int64())
        least, most = self._format.min_us, self._format.max_us
        first, last = (pc.min_max(instants)[name].as_py() for name in ("min", "max"))
        if instants.null_count or first is None or not least <= first <= last <= most:
            inside = pc.and_(pc.greater_equal(instants, least), pc.less_equal(instants, most))
            instants = pc.if_else(pc.fill_null(inside, False), instants, pa.scalar(None, pa.int64()))
        times = instants.cast(pa.timestamp("us"))
        if (zone := self._format.timezone) != "UTC":
            times = pc.local_timestamp(instants.cast(pa.timestamp("us", tz=zone)))
        return pc.floor_temporal(times, unit="hour" if "hr" in self._format.partition_by else "day")


def _scatter(groups: list[tuple[pa.Array, pa.Array]], length: int, kind: pa.DataType) -> pa.Array:
    """Puts the groups' rows at their places; places without a group are null."""
    if len(groups) == 1 and len(groups[0][0]) == length:
        return groups[0][1]
    if not groups:
        return pa.nulls(length, kind)
    places = pa.concat_arrays([rows for rows, _ in groups])
    filled = pc.is_in(_numbers(length), places)
    sources = pc.sort_indices(places).cast(pa.int64())
    positions = pc.replace_with_mask(pa.nulls(length, pa.int64()), filled, sources)
    return pa.concat_arrays([decoded for _, decoded in groups]).take(positions)


def _quarantined(values: pa.Array, bad: Mapping[int, str]) -> list[pa.Array]:
    """Returns the reason and the value of each bad row; null for the others."""
    none = [pa.nulls(len(values), kind) for kind in (pa.string(), pa.binary())]
    if not bad:
        return none
    mask = _among(bad, len(values))
    reasons = pa.array([bad[row] for row in sorted(bad)], pa.string())
    return [pc.replace_with_mask(none[0], mask, reasons), pc.if_else(mask, values, pa.scalar(None, pa.binary()))]


def _among(rows: Iterable[int], length: int) -> pa.Array:
    """Returns a boolean for each of `length` rows: True if it is one of `rows`."""
    return pc.is_in(_numbers(length), pa.array(list(rows), pa.uint64()))


def _numbers(length: int) -> pa.Array:
    """Returns 0, 1, 2, … as uint64, without making a Python object for each."""
    return pc.indices_nonzero(pa.repeat(True, length))
