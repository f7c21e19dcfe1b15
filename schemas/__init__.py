"""Schemas: the registry, compatibility, the serdes of Avro, JSON Schema and Protobuf."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from klamm.core.extras import importing
from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.command import Command
from klamm.core.interfaces.provider import Provider

if TYPE_CHECKING:
    from klamm.plugin import BrokerContext, Serde, SerdeContext, Service, TopicValidator

    from .options import AvroOptions, JsonSchemaOptions, ProtobufOptions
    from .service.config import RegistryConfig
    from .validation.config import SchemaValidatorConfig

_EXTRA: Final = "klamm[registry]"


def _avro(options: AvroOptions, context: SerdeContext) -> Serde:
    from .serdes.avro import AvroSerde

    return AvroSerde(options, context)


def _json_schema(options: JsonSchemaOptions, context: SerdeContext) -> Serde:
    with importing("the serde json-schema", _EXTRA):
        from .serdes.json_schema import JsonSchemaSerde

    return JsonSchemaSerde(options, context)


def _protobuf(options: ProtobufOptions, context: SerdeContext) -> Serde:
    with importing("the serde protobuf", _EXTRA):
        from .serdes.protobuf import ProtobufSerde

    return ProtobufSerde(options, context)


@hookimpl
def klamm_serdes() -> Iterable[Provider[[SerdeContext], Serde]]:
    """Registers the serdes `avro`, `json-schema` and `protobuf`."""
    options = "klamm.schemas.options"
    return [
        Provider("avro", _avro, f"{options}:AvroOptions", "Avro by a registered schema: dicts or dataclasses"),
        Provider("json-schema", _json_schema, f"{options}:JsonSchemaOptions", "JSON that a registered schema checks"),
        Provider(
            "protobuf",
            _protobuf,
            f"{options}:ProtobufOptions",
            "Protobuf by a registered schema: dicts or messages",
        ),
    ]


def _registry(config: RegistryConfig, context: BrokerContext) -> Service:
    from .service.service import RegistryService
    from .service.topic import shared_topic

    return RegistryService(config, shared_topic(context, config.kafkastore_topic))


@hookimpl
def klamm_services() -> Iterable[Provider[[BrokerContext], Service]]:
    """Registers the schema registry, which runs beside a broker."""
    config = "klamm.schemas.service.config:RegistryConfig"
    return [Provider("registry", _registry, config, "the schema registry: Confluent's REST API")]


def _validator(config: SchemaValidatorConfig) -> TopicValidator:
    from .validation.validator import SchemaValidator

    return SchemaValidator(config)


@hookimpl
def klamm_topic_validators() -> Iterable[Provider[[], TopicValidator]]:
    """Registers the validator of schemas, which a topic's configuration turns on."""
    config = "klamm.schemas.validation.config:SchemaValidatorConfig"
    return [Provider("schemas", _validator, config, "records with a registered schema")]


@hookimpl
def klamm_commands() -> Iterable[Command]:
    """Registers `klamm schemas` and `klamm registry`."""
    return [
        Command(
            "schemas",
            "klamm.schemas.service.commands:app",
            "List, show, register, compare, delete, export and import schemas.",
        ),
        Command(
            "registry",
            "klamm.schemas.service.cli:registry",
            "Run a schema registry beside a cluster, for any Avro, JSON Schema and Protobuf client.",
            "klamm[registry]",
        ),
    ]
