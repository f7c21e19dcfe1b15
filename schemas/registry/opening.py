"""Opens the registry that a configuration names."""

from __future__ import annotations

from collections.abc import Callable

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.interfaces.coordination import Coordination

from ..names import AVRO
from ..options import RegistryAccess
from .log import TopicSchemaLog
from .registry import LogRegistry, SchemaRegistry


def open_registry(
    access: RegistryAccess,
    client: Callable[[], ClusterClient],
    coordination: Callable[[], Coordination],
    *,
    schema_type: str = AVRO,
    timeout_s: float = 30.0,
) -> SchemaRegistry:
    """Returns the registry at `schema.registry.url`, which may take `timeout_s` to answer; without that key the topic
    of schemas, through a client that the registry then owns."""
    if access.schema_registry_url:
        from .rest import RestRegistry  # imports urllib3
        from .rest_client import RestClient

        return RestRegistry(RestClient(access, timeout_s), schema_type)
    return LogRegistry(TopicSchemaLog(client(), access.schemas_topic), coordination, schema_type=schema_type)
