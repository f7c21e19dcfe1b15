"""Every error that Klamm's clients raise. All derive from `KlammError`; `code` is the Kafka error code."""

from __future__ import annotations

from klamm.core.client.errors import (
    ClientClosedError,
    ConnectionFailedError,
    LogTruncatedError,
    NoOffsetError,
    RequestTimeoutError,
    UnknownTopicError,
    UnreadableBatchError,
    UnreadableRecordError,
)
from klamm.core.client.producer.record_accumulator import BufferFullError, ProducerClosedError
from klamm.core.errors import (
    BrokerError,
    ConfigError,
    CoordinationError,
    CorruptRecordError,
    DeliveryError,
    ErrorCode,
    KlammError,
    PluginError,
    ProtocolError,
    RegistryUnavailableError,
    SchemaError,
    StorageError,
)
from klamm.core.groups.membership.member import LostOwnershipError
from klamm.core.interfaces.codec import DecompressionBombError
from klamm.core.interfaces.coordination import (
    BadVersionError,
    CoordinationUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from klamm.core.records.codecs import UnsupportedCodecError

__all__ = [
    "BadVersionError",
    "BrokerError",
    "BufferFullError",
    "ClientClosedError",
    "ConfigError",
    "ConnectionFailedError",
    "CoordinationError",
    "CoordinationUnavailableError",
    "CorruptRecordError",
    "DecompressionBombError",
    "DeliveryError",
    "ErrorCode",
    "KlammError",
    "LogTruncatedError",
    "LostOwnershipError",
    "NoNodeError",
    "NoOffsetError",
    "NodeExistsError",
    "NotEmptyError",
    "PluginError",
    "ProducerClosedError",
    "ProtocolError",
    "RegistryUnavailableError",
    "RequestTimeoutError",
    "SchemaError",
    "SessionExpiredError",
    "StorageError",
    "UnknownTopicError",
    "UnreadableBatchError",
    "UnreadableRecordError",
    "UnsupportedCodecError",
]
