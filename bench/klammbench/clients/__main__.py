"""Runs one client program: `python -m klammbench.clients CLIENT produce|consume JOB`, JOB in JSON."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict

from klammbench.clients.job import Job, Program

MODULES = {
    "confluent-kafka": "confluent",
    "kafka-python": "kafka_python",
    "aiokafka": "aio",
    "klamm": "klamm_records",
    "klamm-arrow": "klamm_arrow",
}
"""Modules by client, imported on use so that no client pays for the imports of others."""


def main() -> None:
    client, what, job = sys.argv[1:4]
    module = importlib.import_module(f"klammbench.clients.{MODULES[client]}")
    program: Program = getattr(module, what)
    print(json.dumps(asdict(program(Job(**json.loads(job))))), flush=True)


if __name__ == "__main__":
    main()
