"""Converts record bytes to deserialized values, and passes these through the interceptors."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ...errors import KlammError, RegistryUnavailableError, SchemaError
from ...interfaces.interceptor import ConsumerInterceptor
from ...interfaces.serde import Deserializer, HeaderDeserializer
from ...records.decode import Columns
from ...records.partition import TopicPartition
from ...records.record import ConsumerRecord
from ..errors import UnreadableRecordError
from ..typed import TypedValues
from .delivery import Converted

_log = logging.getLogger(__name__)


class RecordConverter:
    """Makes `ConsumerRecord`s."""

    def __init__(self, values: TypedValues) -> None:
        self._values = values
        self._deserializers: dict[str, Deserializer | None] = {}

    def deserializer(self, topic: str) -> Deserializer | None:
        if topic not in self._deserializers:
            self._deserializers[topic] = self._values.deserializer(topic)
        return self._deserializers[topic]

    def convert(
        self,
        partition: TopicPartition,
        columns: Columns,
        log_append_time: bool = False,  # noqa: ARG002 - records do not say
    ) -> Converted[list[ConsumerRecord]]:
        """Converts the records before the first one that cannot be deserialized."""
        error: KlammError | None = None
        values: Sequence[object] = columns.values
        deserialize = self.deserializer(partition.topic)
        if deserialize is not None:
            values, error = _deserialized(partition, columns, deserialize)
        topic, number = partition
        records = [
            ConsumerRecord(topic, number, offset, timestamp_ms, key, value, headers, size)
            for offset, timestamp_ms, key, value, headers, size in zip(
                columns.offsets,
                columns.timestamps_ms,
                columns.keys,
                values,
                columns.headers,
                columns.sizes,
                strict=False,  # the values end before an unreadable one
            )
        ]
        return Converted(records, len(records), error)


def _deserialized(
    partition: TopicPartition, columns: Columns, deserialize: Deserializer
) -> tuple[list[object], KlammError | None]:
    values: list[object] = []
    try:
        if isinstance(deserialize, HeaderDeserializer):
            for raw, headers in zip(columns.values, columns.headers, strict=True):
                values.append(deserialize.with_headers(raw, headers))
        else:
            for raw in columns.values:
                values.append(deserialize(raw))
    except SchemaError as error:
        return values, unreadable(partition, columns.offsets[len(values)], error)
    except RegistryUnavailableError as error:  # a later attempt may succeed
        where = f"topic {partition.topic!r} partition {partition.partition} offset {columns.offsets[len(values)]}"
        return values, RegistryUnavailableError(f"{where}: {error}")
    except KlammError as error:  # the schema could not be looked up now; a later attempt may succeed
        return values, error
    except Exception as error:  # a serde is a plugin and may raise anything
        return values, unreadable(partition, columns.offsets[len(values)], error)
    return values, None


def unreadable(partition: TopicPartition, offset: int, cause: Exception) -> UnreadableRecordError:
    """Returns the error of one record, which the application may skip."""
    error = UnreadableRecordError(
        f"topic {partition.topic!r} partition {partition.partition} offset {offset}: {cause}", partition, offset
    )
    error.__cause__ = cause
    return error


class Interception:
    """Calls interceptors in order; one that raises is counted and skipped."""

    def __init__(self, interceptors: Sequence[ConsumerInterceptor]) -> None:
        self.errors = 0
        self._interceptors = interceptors

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        for interceptor in self._interceptors:
            try:
                records = list(interceptor.on_consume(records))
            except Exception as error:  # a plugin may raise anything
                self.errors += 1
                _log.warning("an interceptor failed and was skipped: %r", error)
        return records
