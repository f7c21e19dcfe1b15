"""The YAML keys of the validator: an entry `{plugin: schemas, …}` of `broker.topic.validators`."""

from __future__ import annotations

from klamm.core.config.section import Section, key

from ..names import SCHEMA_TOPIC


class SchemaValidatorConfig(Section):
    """Records need a registered schema, on topics whose configuration asks for that."""

    kafkastore_topic: str = key(SCHEMA_TOPIC, "The topic of schemas, the same as the registry's.")
