"""All that a plugin imports: hooks, providers, interfaces, records, configuration keys, errors.

    from klamm.plugin import Codec, Int, Provider, Section, hookimpl, key

A name that is here keeps its meaning within a minor version; anything that a plugin imports from
elsewhere under `klamm` is internal.
"""

from __future__ import annotations

from klamm.core.config.section import ConfigPath, Int, Long, Names, Section, TimeZone, key, wrong_key
from klamm.core.errors import (
    ConfigError,
    CoordinationError,
    CorruptRecordError,
    ErrorCode,
    KlammError,
    SchemaError,
    StorageError,
)
from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.audit import (
    NO_WINDOW,
    Audit,
    AuditIdentity,
    Counted,
    ProducerAudit,
    Publish,
    RangeAudit,
    RangeCount,
    WindowCount,
)
from klamm.core.interfaces.authenticator import AuthenticationContext, Authenticator
from klamm.core.interfaces.authorizer import (
    CLUSTER_NAME,
    AclOperation,
    AuthorizableRequestContext,
    Authorizer,
    ResourceType,
)
from klamm.core.interfaces.codec import Buffer, Codec, DecompressionBombError
from klamm.core.interfaces.command import Command
from klamm.core.interfaces.coordination import (
    ANY_VERSION,
    BadVersionError,
    Check,
    Coordination,
    CoordinationUnavailableError,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    SessionEvent,
    SessionExpiredError,
    Set,
    Stat,
    Watch,
)
from klamm.core.interfaces.envelope import Envelope, RegisteredSchema, SchemaKey
from klamm.core.interfaces.interceptor import ConsumerInterceptor, ProducerInterceptor
from klamm.core.interfaces.load import Load
from klamm.core.interfaces.no_config import NoConfig
from klamm.core.interfaces.offsets import (
    CommittedOffset,
    GroupStore,
    OffsetStore,
    PartitionedStore,
    StoredGroup,
    StoredMember,
)
from klamm.core.interfaces.provider import Provider
from klamm.core.interfaces.serde import (
    ArrowDeserializer,
    ArrowSerde,
    ArrowSerializer,
    CheckedSerde,
    Deserializer,
    Serde,
    SerdeContext,
    Serializer,
    TopicFormat,
)
from klamm.core.interfaces.service import BrokerContext, Service, ServiceMetric, ServiceRead
from klamm.core.interfaces.sink import (
    BadRecords,
    BatchSink,
    HistorySink,
    LogCut,
    QuarantineSink,
    RecordBatch,
    Sink,
    TopicIdSink,
)
from klamm.core.interfaces.validator import TopicValidator
from klamm.core.plugins import PluginHost, plugin_host
from klamm.core.records.codecs import CodecTable
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import ConsumerRecord, Headers, ProducerRecord, Record, RecordMetadata

__all__ = [
    "ANY_VERSION",
    "CLUSTER_NAME",
    "NO_WINDOW",
    "AclOperation",
    "ArrowDeserializer",
    "ArrowSerde",
    "ArrowSerializer",
    "Audit",
    "AuditIdentity",
    "AuthenticationContext",
    "Authenticator",
    "AuthorizableRequestContext",
    "Authorizer",
    "BadRecords",
    "BadVersionError",
    "BatchSink",
    "BrokerContext",
    "Buffer",
    "Check",
    "CheckedSerde",
    "Codec",
    "CodecTable",
    "Command",
    "CommittedOffset",
    "ConfigError",
    "ConfigPath",
    "ConsumerInterceptor",
    "ConsumerRecord",
    "Coordination",
    "CoordinationError",
    "CoordinationUnavailableError",
    "CorruptRecordError",
    "Counted",
    "Create",
    "DecompressionBombError",
    "Delete",
    "Deserializer",
    "Envelope",
    "ErrorCode",
    "GroupStore",
    "Headers",
    "HistorySink",
    "Int",
    "KlammError",
    "Load",
    "LogCut",
    "Long",
    "Names",
    "NoConfig",
    "NoNodeError",
    "NodeExistsError",
    "NotEmptyError",
    "OffsetStore",
    "Operation",
    "PartitionedStore",
    "PluginHost",
    "ProducerAudit",
    "ProducerInterceptor",
    "ProducerRecord",
    "Provider",
    "Publish",
    "QuarantineSink",
    "RangeAudit",
    "RangeCount",
    "Record",
    "RecordBatch",
    "RecordMetadata",
    "RegisteredSchema",
    "ResourceType",
    "SchemaError",
    "SchemaKey",
    "Section",
    "Serde",
    "SerdeContext",
    "Serializer",
    "Service",
    "ServiceMetric",
    "ServiceRead",
    "SessionEvent",
    "SessionExpiredError",
    "Set",
    "Sink",
    "Stat",
    "StorageError",
    "StoredGroup",
    "StoredMember",
    "TimeZone",
    "TopicFormat",
    "TopicIdSink",
    "TopicPartition",
    "TopicValidator",
    "Watch",
    "WindowCount",
    "hookimpl",
    "key",
    "plugin_host",
    "wrong_key",
]
