"""The YAML keys of the serdes `avro`, `json-schema` and `protobuf`: in a topic's own section, or under `serdes.NAME`
for all topics. Names are those of Confluent's serializers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from klamm.core.config.section import ConfigPath, ConfigType, Int, Names, Section, key, wrong_key
from klamm.core.errors import ConfigError

from .compatibility import Compatibility
from .names import SCHEMA_TOPIC
from .store.schema import Reference

USER_INFO: Final = "basic.auth.user.info"
PREFIX: Final = "schema.registry."


def _urls(given: tuple[str, ...]) -> tuple[str, ...]:
    for url in given:
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good:
            raise ValueError(f"expected http://HOST:PORT, or https, got {url!r:.200}")
        if "@" in parts.netloc:
            raise ValueError("has a user; name it in schema.registry.basic.auth.user.info")
    return tuple(url.rstrip("/") for url in given)


def _user_info(given: str | None) -> str | None:
    if given is not None and ":" not in given:
        raise ValueError("expected USER:PASSWORD")
    return given


def _strategy(given: Any) -> Any:
    return given.rpartition(".")[2] if isinstance(given, str) else given


def _reference(given: Any) -> Any:
    if not isinstance(given, Mapping):
        raise ValueError("expected {name: …, subject: …, version: …}")
    if set(given) != {"name", "subject", "version"}:
        raise ValueError("expected the keys name, subject and version")
    return Reference.from_json(given)


Urls = Annotated[Names, AfterValidator(_urls), ConfigType.LIST]
Password = Annotated[str, ConfigType.PASSWORD]
Strategy = Annotated[
    Literal["TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy"], BeforeValidator(_strategy)
]
"""Java's class, with or without its package."""
References = tuple[Annotated[Reference, BeforeValidator(_reference)], ...]


class RegistryAccess(Section):
    """How a registry is reached."""

    schema_registry_url: Urls = key(
        (),
        "The addresses of a schema registry (Klamm's, Confluent's, Karapace's), http://HOST:PORT, separated by commas: "
        "if one does not answer, the next is asked. When not set, the topic of schemas itself is used, which needs "
        "Klamm brokers.",
    )
    schema_registry_basic_auth_user_info: Annotated[Password | None, AfterValidator(_user_info)] = key(
        None, "The user at the registry, USER:PASSWORD; also as basic.auth.user.info."
    )
    schema_registry_bearer_auth_token: Password | None = key(None, "The bearer token for the registry.")
    schema_registry_ssl_ca_location: ConfigPath | None = key(
        None, "The certificates of the authorities of the registry, PEM; those of the system when not set."
    )
    schema_registry_ssl_certificate_location: ConfigPath | None = key(None, "The client's certificate, PEM.")
    schema_registry_ssl_key_location: ConfigPath | None = key(None, "The key of the client's certificate, PEM.")
    schema_registry_ssl_key_password: Password | None = key(None, "The password of the key.")
    schema_registry_request_timeout_ms: Int = key(10_000, "Time that one address may take to respond.", ge=1)
    schemas_topic: str = key(
        SCHEMA_TOPIC, "The topic in which schemas live, without schema.registry.url; one per cluster."
    )

    @model_validator(mode="before")
    @classmethod
    def _short_name(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and USER_INFO in given:
            return {PREFIX + USER_INFO: given[USER_INFO], **{k: v for k, v in given.items() if k != USER_INFO}}
        return given

    @model_validator(mode="after")
    def _one_user(self) -> RegistryAccess:
        if self.schema_registry_basic_auth_user_info and self.schema_registry_bearer_auth_token:
            raise wrong_key(PREFIX + "bearer.auth.token", f"excludes {PREFIX}{USER_INFO}")
        if self.schema_registry_ssl_key_location and not self.schema_registry_ssl_certificate_location:
            raise wrong_key(PREFIX + "ssl.key.location", f"needs {PREFIX}ssl.certificate.location")
        return self


class RegistryOptions(RegistryAccess):
    """A topic's values by a registered schema."""

    compatibility: Compatibility | None = key(
        None,
        "What a new version of the schema must keep. It is stored with the subject's first version, and what is stored "
        "counts; when not set, the registry's level, BACKWARD unless it has another.",
    )
    record_class: str | None = key(
        None,
        "Values are read as this class, module:Class: a dataclass, of Protobuf also a generated message; as dicts when "
        "not set.",
    )
    subject: str | None = key(None, "The name under which versions are counted; by the strategy when not set.")
    value_subject_name_strategy: Strategy = key(
        "TopicNameStrategy", "The subject: TOPIC-value, the record's name, or TOPIC-NAME."
    )
    auto_register_schemas: bool = key(
        True, "The topic's schema is registered by the first write; else it must be registered already."
    )
    use_latest_version: bool = key(
        False, "Values are written with the subject's newest version; it needs auto.register.schemas: false."
    )
    latest_compatibility_strict: bool = key(
        True, "With use.latest.version: the newest version must be able to read what the topic's schema writes."
    )
    normalize_schemas: bool = key(False, "Schemas that mean the same are one: the registry stores the normalized text.")
    schema_references: References = Field(
        default=(), description="The versions that the schema refers to: a list of {name, subject, version}."
    )

    @field_validator("record_class")
    @classmethod
    def _module_and_class(cls, value: str | None) -> str | None:
        if value is not None and not all(value.partition(":")):
            raise ValueError(f"should be module:Class, got {value!r}")
        return value

    @model_validator(mode="after")
    def _one_schema(self) -> RegistryOptions:
        if self.use_latest_version and self.auto_register_schemas:
            raise wrong_key("use.latest.version", "needs auto.register.schemas: false")
        return self

    def subject_of(self, topic: str, record_name: str = "") -> str:
        """Returns the subject; `record_name` is the full name of the topic's record, message or title. Raises
        `ConfigError` if the strategy needs a name, and there is none."""
        if self.subject is not None:
            return self.subject
        if self.value_subject_name_strategy == "TopicNameStrategy":
            return f"{topic}-value"
        if not record_name:
            raise ConfigError(
                f"topics.{topic}.value.subject.name.strategy: {self.value_subject_name_strategy} needs a schema with a "
                f"name; name it in topics.{topic}.schema, or set topics.{topic}.subject"
            )
        return (
            f"{topic}-{record_name}" if self.value_subject_name_strategy == "TopicRecordNameStrategy" else record_name
        )

    def load_any_class(self, topic: str) -> type | None:
        """Returns the class; raises `ConfigError` if `record.class` does not name one."""
        if self.record_class is None:
            return None
        module, _, name = self.record_class.partition(":")
        try:
            found = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"topics.{topic}.record.class: {self.record_class} cannot be loaded: {error}") from error
        if not isinstance(found, type):
            raise ConfigError(f"topics.{topic}.record.class: {self.record_class} is not a class")
        return found

    def load_class(self, topic: str) -> type | None:
        """Returns the class; raises `ConfigError` if `record.class` does not name a dataclass."""
        found = self.load_any_class(topic)
        if found is not None and not dataclasses.is_dataclass(found):
            raise ConfigError(f"topics.{topic}.record.class: {self.record_class} is not a dataclass")
        return found


class AvroOptions(RegistryOptions):
    """A topic's values as Avro."""


class JsonSchemaOptions(RegistryOptions):
    """A topic's values as JSON, checked by a JSON Schema."""

    json_fail_invalid_schema: bool = key(
        True, "Values are checked by the schema when they are written and read, as Confluent's serializers can."
    )


class ProtobufOptions(RegistryOptions):
    """A topic's values as Protobuf messages."""

    message: str | None = key(
        None, "The full name of the message that values are; the first one of the file when not set."
    )
