"""`make registry-clients`: prints a line `client NAME feature F ok|FAIL` for each, and what failed.

Each client registers, evolves, is refused, reads by id, uses references and writes a record to a topic for each format
that it serializes; then each reads the records of all others. The exit status is 1 if something failed, if a record was
read in no other language, or if a client that was not excluded did not run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from klamm.core.errors import ConfigError
from klammtest.broker import RunningBroker, running_broker
from klammtest.ports import free_port

from .orders import INCOMPATIBLE, descriptors, formats_of, record_of, topic_of
from .programs import CLIENTS, Client, Command

RUN_S: Final = 240


class Campaign:
    """`commands` are the programs of the clients that run."""

    def __init__(self, broker: RunningBroker, registry: str, folder: Path, commands: dict[str, Command]) -> None:
        self._given = {
            "registry": registry, "bootstrap": broker.bootstrap, "incompatible": INCOMPATIBLE,
            "descriptors": descriptors(),
        }  # fmt: skip
        self._folder, self._commands = folder, commands
        self._written: list[tuple[Client, str]] = []
        """Who wrote a record of which format."""
        self._read: dict[str, set[str]] = {}
        """By topic, the languages that read its record."""
        self.failed = 0

    def write(self, client: Client) -> None:
        formats = {name: texts for name, texts in formats_of(client.name).items() if name in client.formats}
        for line in self._run(client, mode="write", formats=formats, record=record_of(client.name)):
            self._report(client.name, line["feature"], line["problem"])
            name, _, what = line["feature"].partition(" ")
            if what == "write" and line["problem"] is None:
                self._written.append((client, name))

    def read(self, client: Client) -> None:
        others = [(writer, name) for writer, name in self._written if writer is not client and name in client.formats]
        topics = {topic_of(writer.name, name): (writer, name) for writer, name in others}
        lines = self._run(
            client, mode="read", topics=[{"name": topic, "format": name} for topic, (_, name) in topics.items()]
        )
        for line in lines:
            writer, name = topics.pop(line["topic"])
            wanted = record_of(writer.name)
            problem = line["problem"] or (None if line["record"] == wanted else f"{line['record']}, not {wanted}")
            self._report(client.name, f"read {writer.name} {name}", problem)
            if problem is None:
                self._read.setdefault(line["topic"], set()).add(client.language)
        for writer, name in topics.values():
            self._report(client.name, f"read {writer.name} {name}", "no answer")

    def matrix(self) -> None:
        """Each record must have been read in another language than its writer's."""
        for writer, name in self._written:
            others = sorted(self._read.get(topic_of(writer.name, name), set()) - {writer.language})
            problem = None if others else "no other language has read it"
            self._report(writer.name, f"{name} read by {', '.join(others) or 'others'}", problem)

    def _report(self, client: str, feature: str, problem: str | None) -> None:
        print(f"client {client} feature {feature} {'FAIL' if problem else 'ok'}", flush=True)
        if problem:
            self.failed += 1
            print(f"  {problem}", file=sys.stderr, flush=True)

    def _run(self, client: Client, **given: Any) -> Iterator[dict[str, Any]]:
        path = self._folder / f"{client.name}.json"
        path.write_text(json.dumps({"client": client.name, **self._given, **given}))
        try:
            done = subprocess.run([*self._commands[client.name], str(path)], capture_output=True, text=True,
                                  timeout=RUN_S, check=False)  # fmt: skip
        except subprocess.TimeoutExpired:
            self._report(client.name, given["mode"], f"the program was not done within {RUN_S} s")
            return
        for line in done.stdout.splitlines():
            yield json.loads(line)
        if done.returncode:
            self._report(client.name, given["mode"], f"exit status {done.returncode}: {done.stderr.strip()[-2000:]}")


def built(names: Sequence[str]) -> dict[str, Command]:
    """Builds the programs; names those that cannot be run."""
    commands = {}
    for name in names:
        try:
            commands[name] = CLIENTS[name].command()
        except (ConfigError, OSError, subprocess.TimeoutExpired) as error:
            print(f"client {name} not run: {error}", flush=True)
    return commands


def main() -> int:
    def names(text: str) -> list[str]:
        found = text.split(",")
        if wrong := [name for name in found if name not in CLIENTS]:
            raise argparse.ArgumentTypeError(f"{', '.join(wrong)} is none of {', '.join(CLIENTS)}")
        return found

    parser = argparse.ArgumentParser(prog="make registry-clients")
    parser.add_argument("--only", type=names, default=list(CLIENTS), help="clients, separated by commas")
    parser.add_argument("--without", type=names, default=[], help="clients that are excluded")
    given = parser.parse_args()
    began = time.monotonic()
    wanted = [name for name in given.only if name not in given.without]
    commands = built(wanted)
    port = free_port()
    service = {"plugin": "registry", "listeners": f"http://127.0.0.1:{port}"}
    topics = {topic_of(name, kind): {"partitions": 1} for name in commands for kind in CLIENTS[name].formats}
    with (
        tempfile.TemporaryDirectory(prefix="klamm-registry-") as folder,
        running_broker(Path(folder, "broker"), topics=topics, broker={"services": [service]}) as broker,
    ):
        campaign = Campaign(broker, f"http://127.0.0.1:{port}", Path(folder), commands)
        for step in (campaign.write, campaign.read):
            for name in commands:
                step(CLIENTS[name])
        if len({CLIENTS[name].language for name in commands}) > 1:
            campaign.matrix()
    missing = len(wanted) - len(commands)
    failed = campaign.failed + missing
    print(
        f"registry clients: {len(commands)} run, {missing} not run, {campaign.failed} FAIL,"
        f" {time.monotonic() - began:.0f} s"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
