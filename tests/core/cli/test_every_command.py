"""What holds for every command of `klamm`, the plugins' too: help, the errors of wrong usage, and JSON of listings."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from klamm.core.cli.main import app
from klamm.core.client.cluster_client import ClusterClient
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.records.codecs import CodecTable
from klamm.core.records.partition import TopicPartition
from klammtest.broker import KLAMM, RunningBroker, running_broker
from klammtest.ports import free_port

Klamm = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[3]


def commands() -> dict[str, set[str]]:
    """Returns the options of each command, by the words that name it, such as `topics list`."""

    def walk(command: Any, name: str, parent: Any) -> Iterator[tuple[str, set[str]]]:
        context = command.make_context(name, [], parent=parent, resilient_parsing=True)
        loaded = context.command
        below = getattr(loaded, "list_commands", lambda _: [])(context)
        for inner in below:
            yield from walk(loaded.get_command(context, inner), f"{name} {inner}", context)
        if not below or loaded.invoke_without_command:
            options = {option for parameter in loaded.params for option in parameter.opts}
            yield name.removeprefix("klamm "), options

    return dict(walk(get_command(app), "klamm", None))


COMMANDS = commands()
LISTINGS = {
    "broker status": "",
    "topics list": "",
    "topics describe": "t",
    "topics apply": "--dry-run",
    "topics delete-records": "t --before 0",
    "groups list": "",
    "groups describe": "g",
    "groups offsets": "g",
    "groups reset": "g --to 5",
    "cluster status": "",
    "cluster balance": "--dry-run",
    "cluster reassign": "--list",
    "config show": "",
    "docs": "",
    "plugins": "",
}
"""Commands that list something of a cluster or of this process, and the arguments with which they are run here."""
TESTED_ELSEWHERE = {
    "consume": "tests/core/cli/record_io/test_produce_consume.py",
    "produce": "tests/core/cli/record_io/test_produce_consume.py",
    "cluster drain": "tests/core/cli/admin/test_cluster.py",
    "audit": "tests/plugins/audit",
    "lake ls": "tests/hadoop/lake/test_command.py",
    "lake show": "tests/hadoop/lake/test_command.py",
    "lake verify": "tests/hadoop/lake/test_command.py",
    "lake compact": "tests/hadoop/lake/generations",
    "lake gc": "tests/hadoop/lake/generations",
    "load": "tests/hadoop/load",
    "mirror adopt": "tests/core/broker/mirror",
    "mirror create": "tests/core/broker/mirror",
    "mirror drop": "tests/core/broker/mirror",
    "mirror fail-over": "tests/core/broker/mirror",
    "mirror list": "tests/core/broker/mirror",
    "mirror pause": "tests/core/broker/mirror",
    "mirror promote": "tests/core/broker/mirror",
    "mirror promotions": "tests/core/broker/mirror",
    "mirror resolve": "tests/core/broker/mirror",
    "mirror resume": "tests/core/broker/mirror",
    "mirror status": "tests/core/broker/mirror",
    "schemas list": "tests/schemas/service/test_commands.py",
    "schemas show": "tests/schemas/service/test_commands.py",
    "schemas register": "tests/schemas/service/test_commands.py",
}
"""Listings that need more brokers, a lake or an audit topic, and commands whose `--json` is about records."""
NO_LISTINGS = {
    "audit retire",
    "audit serve",
    "audit settle",
    "broker",
    "broker stop",
    "cluster unregister",
    "completion",
    "config check",
    "config reload",
    "demo",
    "etcd",
    "groups delete",
    "hdfs",
    "init",
    "registry",
    "schemas check",
    "schemas config",
    "schemas delete",
    "schemas diff",
    "schemas export",
    "schemas import",
    "schemas mode",
    "sink",
    "topics alter",
    "topics create",
    "topics delete",
    "zookeeper",
}
"""Commands that run something, or change what they name and print a line for each."""


def test_every_command_is_a_listing_or_known_not_to_be() -> None:
    assert COMMANDS.keys() == LISTINGS.keys() | TESTED_ELSEWHERE.keys() | NO_LISTINGS
    assert {name for name, options in COMMANDS.items() if "--json" in options} == LISTINGS.keys() | TESTED_ELSEWHERE


@pytest.mark.parametrize("name", COMMANDS)
def test_help(klamm: Klamm, name: str) -> None:
    done = klamm(*name.split(), "--help")
    assert (done.status, done.err) == (0, "")
    assert f"klamm {name} " in done.out


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_named(klamm: Klamm, name: str) -> None:
    done = klamm(*name.split(), "--nonsense")
    assert (done.status, done.out) == (2, "")
    assert "No such option: --nonsense" in done.err


@pytest.mark.parametrize("name", [name for name, options in COMMANDS.items() if "--config" in options])
def test_a_missing_file_is_one_line(klamm: Klamm, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ARGUMENTS.get(name, LISTINGS.get(name, ""))
    done = klamm(*name.split(), *arguments.split(), "--config", "missing.yaml")
    assert (done.status, done.out) == (2, ""), done.err
    assert done.err.startswith("klamm: missing.yaml: no"), done.err
    assert done.err.count("\n") == 1


ARGUMENTS = {
    "consume": "t",
    "produce": "t",
    "cluster drain": "0 --dry-run",
    "schemas show": "s",
    "schemas register": "s schema.avsc",
    "schemas check": "s schema.avsc",
    "schemas diff": "s 1",
    "schemas delete": "s",
    "schemas export": "dump.jsonl",
    "schemas import": "dump.jsonl",
    "audit retire": "consumer/g --who me --why because",
    "audit settle": "t --who me --why because",
    "cluster unregister": "7",
    "groups delete": "g",
    "lake compact": "t --lake s",
    "lake gc": "t --lake s",
    "lake ls": "s",
    "lake show": "t --lake s",
    "lake verify": "t --lake s",
    "mirror adopt": "berlin --promotions promotions.jsonl",
    "mirror create": "berlin",
    "mirror drop": "berlin",
    "mirror fail-over": "berlin",
    "mirror pause": "berlin",
    "mirror promote": "berlin",
    "mirror resolve": "berlin --topic t --continue",
    "mirror resume": "berlin",
    "mirror status": "berlin",
    "sink": "s",
    "topics alter": "t --set retention.ms=1",
    "topics create": "t",
    "topics delete": "t",
}
"""Arguments of the other commands."""
OF_A_CLUSTER = [name for name, options in COMMANDS.items() if "--bootstrap" in options]


@pytest.mark.parametrize("name", ["topics list", "groups reset", "cluster status"])
def test_no_broker_is_one_line(klamm: Klamm, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.core.cli.options.TIMEOUT_S", 0.5)
    port = free_port()
    done = klamm(*name.split(), *LISTINGS[name].split(), "--bootstrap", f"127.0.0.1:{port}")
    assert (done.status, done.out, done.err.count("\n")) == (1, "", 1), done.err
    assert f"127.0.0.1:{port}" in done.err


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("every"), topics={"t": {"partitions": 2}}) as running:
        with ClusterClient(running.bootstrap, codecs=CodecTable()) as client:
            client.commit_offsets("g", {TopicPartition("t", 0): CommittedOffset(0)})
            client.commit_offsets("ü\n\x1b[2J", {TopicPartition("t", 0): CommittedOffset(0)})
        yield running


@pytest.mark.parametrize("name", OF_A_CLUSTER)
def test_a_wrong_address_is_named_by_its_option(klamm: Klamm, name: str) -> None:
    done = klamm(*name.split(), "--bootstrap", "here")
    expected = "klamm: --bootstrap: expected host:port with a port up to 65535, got 'here'\n"
    assert (done.status, done.out, done.err) == (2, "", expected)


@pytest.mark.parametrize("name", LISTINGS)
def test_json_of_a_listing(klamm: Klamm, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(broker.folder)
    where = ("-b", broker.bootstrap) if name in OF_A_CLUSTER else ()
    done = klamm(*name.split(), *LISTINGS[name].split(), *where, "--json")
    assert done.out.isascii()
    found = [json.loads(line) for line in done.out.splitlines()]
    assert all(isinstance(each, dict) for each in found)
    empty = name in ("cluster balance", "cluster reassign", "topics apply")
    assert (done.status, bool(found)) == (0, not empty), done.err
    if name == "groups list":
        assert [each["group"] for each in found] == ["g", "ü\n\x1b[2J"]


def test_topics_list_imports_no_pydantic(broker: RunningBroker) -> None:
    program = "import sys\nfrom klamm.core.cli.main import main\n"
    program += "try: main()\nfinally: print(*(name for name in sys.modules if name.startswith('pydantic')))"
    command = [sys.executable, "-c", program, "topics", "list", "-b", broker.bootstrap]
    done = subprocess.run(command, cwd=broker.folder, capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, ""), done.stderr


COMPLETED = {
    "klamm gr": ["groups"],
    "klamm groups ": ["list", "describe", "offsets", "reset", "delete"],
    "klamm topics apply --dry": ["--dry-run"],
}


def test_bash_completes(tmp_path: Path) -> None:
    """As bash does on the tab key: it sets the words of the line, and calls the function of the script."""
    program = "source <(klamm completion bash)\n"
    for line in COMPLETED:
        words = line.split(" ")
        program += f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _klamm_completion klamm\n"
        program += 'echo "${COMPREPLY[@]}"\n'
    environment = {**os.environ, "PATH": f"{Path(KLAMM).parent}:{os.environ['PATH']}"}
    command = ["bash", "--norc", "-c", program]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ([line.split() for line in done.stdout.splitlines()], done.stderr) == (list(COMPLETED.values()), "")


def test_the_example_of_topics_is_the_pages(klamm: Klamm) -> None:
    example = ROOT / "examples" / "topics.yaml"
    assert klamm("config", "check", "--config", str(example)).status == 0
    page = (ROOT / "docs" / "cli.md").read_text()
    assert yaml.safe_load(page.split("```yaml\n")[1].split("```")[0]) == yaml.safe_load(example.read_text())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(klamm: Klamm, shell: str) -> None:
    done = klamm("completion", shell)
    assert done.status == 0
    assert f"_KLAMM_COMPLETE=complete_{shell}" in done.out
