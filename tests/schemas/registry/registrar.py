"""A process of `test_processes.py`: registers schemas of its own and schemas that others register at the same moment.

Arguments: the YAML file, the broker, this process's number, how many shared and own
schemas. Prints `ready`, waits for a line on
stdin, registers, prints {subject: [id, MD5]} as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.client.typed import SharedCoordination
from klamm.core.config.settings import load_settings
from klamm.schemas.registry.log import TopicSchemaLog
from klamm.schemas.registry.registry import LogRegistry


def schema(name: str) -> str:
    return json.dumps({"type": "record", "name": name, "fields": [{"name": name, "type": "int"}]})


def main(config: Path, bootstrap: str, number: int, count: int) -> None:
    settings = load_settings(config)
    coordination = SharedCoordination(settings)
    client = ClusterClient(bootstrap, codecs=settings.codec_table())
    registry = LogRegistry(TopicSchemaLog(client), coordination)
    coordination()
    print("ready", flush=True)
    sys.stdin.readline()
    found = {}
    for i in range(count):
        for name in (f"shared{i}", f"own{number}x{i}"):
            registered = registry.register(f"{name}-value", schema(name))
            found[name] = [registered.schema_id, registered.md5.hex()]
    print(json.dumps(found), flush=True)
    registry.close()
    coordination.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
