"""Writes `core/config/kafka_table.py`: every configuration key that Apache Kafka's brokers and topics have.

`python bench/kafka_keys.py` asks the classes of the Kafka whose jars `bench/install.sh` fetches (`bench/KafkaKeys.java`
prints what their `ConfigDef`s hold), and replaces the table.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from klamm.core.java import find_java
from klammbench.paths import VAR

BENCH: Final = Path(__file__).resolve().parent
TABLE: Final = BENCH.parent / "core" / "config" / "kafka_table.py"
WIDTH: Final = 120
HEAD: Final = '''"""Configuration keys of Apache Kafka {version}'s brokers and topics, made by `bench/kafka_keys.py`.

A line: name, type, default (`null`: none), valid values, `cluster-wide` or `per-broker` if it changes while a broker
runs, `internal` if Kafka does not show it. A line that is too long goes on after a backslash.
"""

from __future__ import annotations

from typing import Final
'''


def rows(jars: Path) -> list[list[str]]:
    command = [find_java(), "-cp", f"{jars}/*", str(BENCH / "KafkaKeys.java")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [line.split("|") for line in printed.splitlines()]


def table(version: str, found: Iterable[list[str]]) -> str:
    scopes: dict[str, list[str]] = {"broker": [], "topic": []}
    for scope, *fields in found:
        scopes[scope].append(wrapped("|".join(fields)))
    texts = (f'\n{scope.upper()}: Final = """\\\n' + "\n".join(lines) + '\n"""\n' for scope, lines in scopes.items())
    return HEAD.format(version=version) + "".join(texts)


def wrapped(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}\\\n{line[WIDTH - 1 :]}"


def main() -> int:
    jars = VAR / "kafka"
    (server,) = jars.glob("kafka-server-[0-9]*.jar")
    version = re.sub(r"kafka-server-|\.jar", "", server.name)
    TABLE.write_text(table(version, rows(jars)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
