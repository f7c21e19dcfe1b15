"""The YAML keys of the schema registry: an entry `{plugin: registry, …}` of `broker.services`, which
`klamm registry` and `klamm schemas` read too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import field_validator

from klamm.core.config.section import Int, Section, key
from klamm.core.errors import ConfigError
from klamm.core.transport.address import Address

from ..compatibility import Compatibility
from ..names import SCHEMA_TOPIC
from ..store.config import Config

if TYPE_CHECKING:
    from klamm.core.config.settings import Settings


class RegistryConfig(Section):
    """The schema registry: Confluent's REST API."""

    listeners: str = key("http://127.0.0.1:8081", "The address that it listens on, one per broker.")
    schema_compatibility_level: Compatibility = key(
        Compatibility.BACKWARD, "What a new version must keep where the registry has no level."
    )
    kafkastore_topic: str = key(SCHEMA_TOPIC, "The topic of schemas: one partition, compacted.")
    mode_mutability: bool = key(True, "Whether modes may be changed.")
    schema_validate_fields: bool = key(False, "Whether fields that are reserved by metadata are refused.")
    schema_validate_new_schemas: bool = key(True, "Whether names and defaults of new schemas are checked.")
    schema_search_default_limit: Int = key(1000, "The most schemas in an answer of /schemas.", ge=1)
    max_request_body_size: Int = key(1024 * 1024, "The longest body of a request, in bytes.", ge=1024)

    @field_validator("schema_compatibility_level", mode="before")
    @classmethod
    def _level(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    def defaults(self) -> Config:
        """Returns what applies where no record sets anything."""
        return Config(
            compatibility_level=self.schema_compatibility_level,
            validate_fields=self.schema_validate_fields or None,
            validate_new_schemas=None if self.schema_validate_new_schemas else False,
        )

    def address(self) -> Address:
        """Raises `ConfigError` for a listener that is no http address."""
        scheme, mark, rest = self.listeners.partition("://")
        if not mark or scheme != "http":
            raise ConfigError(f"services.registry.listeners: expected http://HOST:PORT, got {self.listeners!r}")
        try:
            return Address.parse(rest.rstrip("/"))
        except ValueError as error:
            raise ConfigError(f"services.registry.listeners: {error}") from error


def registry_config(settings: Settings) -> RegistryConfig:
    """Returns the configuration of the broker's registry; the defaults if the file has none."""
    chosen = next((one.config for one in settings.broker.services if one.plugin == "registry"), None)
    return chosen if isinstance(chosen, RegistryConfig) else RegistryConfig()
