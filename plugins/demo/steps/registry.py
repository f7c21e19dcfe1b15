"""A schema registry beside the brokers, used as another language's programs use it: by REST, with confluent-kafka.

The flights' schema is registered, evolved, and an incompatible version is refused, while producers send.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from klamm.core.extras import install_command
from klamm.plugin import ConfigError

from ..processes import KLAMM, DemoError, Processes, wait_for
from ..workspace import Workspace

START_S = 60.0
SUBJECT = "flights-by-rest-value"
"""A subject of its own: `flights-value` is what the demo's producers write by."""
ADDED = {"name": "gate", "type": ["null", "string"], "default": None}
INCOMPATIBLE = {"name": "gate", "type": "string"}
"""Without a default: who reads with it cannot read the flights that lack it."""


class RegisteredVersions(NamedTuple):
    """The numbers of versions that were registered and refused."""

    schemas: int = 0
    refused: int = 0


class Registry:
    """Starts at once. Raises `ConfigError` without the package."""

    def __init__(self, workspace: Workspace, processes: Processes) -> None:
        try:
            import confluent_kafka.schema_registry  # noqa: F401 - it is used by `use`
        except ImportError as error:
            raise ConfigError(
                f"the demo needs {error.name}, which is not installed: {install_command('klamm[demo]')}"
            ) from error
        self._schema = json.loads((workspace.root / "flights.avsc").read_text())
        self.url = f"http://127.0.0.1:{workspace.registry_port}"
        command = [*KLAMM, "registry", "--config", str(workspace.config), "--listener", self.url]
        self._child = processes.start("registry", command)

    def use(self) -> RegisteredVersions:
        """Registers two versions and has a third one refused. Raises `DemoError` if that is not what happens."""
        from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError

        wait_for(lambda: "registry ready on" in self._child.output(), "the start of the registry", START_S, self._child)
        client = SchemaRegistryClient({"url": self.url})

        def register(*fields: object) -> int:
            changed = {**self._schema, "fields": [*self._schema["fields"], *fields]}
            return int(client.register_schema(SUBJECT, Schema(json.dumps(changed), "AVRO")))

        try:
            ids = {register(), register(ADDED)}
        except SchemaRegistryError as error:
            raise DemoError(f"the registry refuses the flights' schema: {error}") from error
        refused = 0
        try:
            register(INCOMPATIBLE)
        except SchemaRegistryError as error:
            if error.error_code != 40901:
                raise DemoError(f"the registry refuses an incompatible schema otherwise: {error}") from error
            refused = 1
        versions = client.get_versions(SUBJECT)
        if len(ids) != len(versions):
            raise DemoError(f"the registry has versions {versions} of {SUBJECT}, with the ids {sorted(ids)}")
        return RegisteredVersions(len(versions), refused)
