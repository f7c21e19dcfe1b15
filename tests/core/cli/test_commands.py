"""Commands that need no cluster, and what the user is told when something is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from klamm.core.config.settings import load_settings
from klammtest.broker import KLAMM
from klammtest.brokers.inprocess import broker_thread
from klammtest.ports import free_port

Klamm = Callable[..., Any]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_help_lists_the_cores_and_the_plugins_commands(klamm: Klamm) -> None:
    done = klamm("--help")
    assert done.status == 0
    for name in (
        "init",
        "broker",
        "topics",
        "produce",
        "consume",
        "groups",
        "sink",
        "config",
        "plugins",
        "docs",
        "load",
        "audit",
        "zookeeper",
        "etcd",
        "demo",
    ):
        assert f" {name} " in done.out


@pytest.mark.parametrize("command", ["--help", "plugins", "docs cli.md", "init"])
def test_a_broken_pipe_is_no_error_and_ends_no_work(here: Path, command: str) -> None:
    """Help is printed by click, tables by rich, lines and documents by Klamm: each meets `| head` in its own way."""
    unread, pipe = os.pipe()
    os.close(unread)
    done = subprocess.run([KLAMM, *command.split()], stdout=pipe, stderr=subprocess.PIPE, timeout=180)
    os.close(pipe)
    assert (done.returncode, done.stderr) == (0, b"")
    assert Path("klamm.yaml").exists() == (command == "init")


def test_help_imports_no_command(here: Path) -> None:
    """A command's module is imported when it is run, so `klamm --help` is quick and needs no extras."""
    program = "import sys; sys.argv = ['klamm', '--help']; from klamm.core.cli.main import main\ntry: main()\nfinally: "
    program += (
        "print({'pyspark', 'klamm.core.broker.server', 'klamm.core.client.consumer.consumer'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert done.stdout.splitlines()[-1] == "set()"


def test_version(klamm: Klamm) -> None:
    done = klamm("--version")
    assert done.status == 0
    assert done.out in ("klamm 0.1.0, native record batches\n", "klamm 0.1.0, fallback record batches\n")


@pytest.mark.parametrize("arguments", [("nope",), ("topics", "nope"), ("broker", "--nope"), ("topics", "describe")])
def test_wrong_usage_is_status_2(klamm: Klamm, arguments: tuple[str, ...]) -> None:
    done = klamm(*arguments)
    assert done.status == 2
    assert "Error" in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "create", "x", "-p", "99999999999"),
        ("topics", "create", "x", "-r", "99999"),
        ("topics", "alter", "x", "-p", "99999999999"),
        ("topics", "delete-records", "x", "--before", "99999999999999999999"),
        ("cluster", "drain", "99999999999"),
        ("cluster", "unregister", "99999999999"),
        ("cluster", "reassign", "x", "-r", "99999"),
        ("cluster", "reassign", "x:0=1", "--throttle", "99999999999999999999"),
    ],
)
def test_a_number_that_no_request_can_carry_is_refused(klamm: Klamm, arguments: tuple[str, ...]) -> None:
    done = klamm(*arguments)
    assert done.status == 2
    assert "should be less than or equal to" in done.err


def test_ctrl_c_while_the_command_is_imported_is_status_130(here: Path) -> None:
    program = (
        "import sys, types\n"
        "class Interrupted(types.ModuleType):\n"
        "    def __getattr__(self, name): raise KeyboardInterrupt\n"
        "sys.modules['typer'] = Interrupted('typer')\n"
        "from klamm.__main__ import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (130, "")


def test_a_mistyped_command_or_option_is_named_with_the_nearest(klamm: Klamm) -> None:
    assert "Did you mean 'groups'?" in klamm("group", "list").err
    assert "Did you mean 'zookeeper'?" in klamm("zookeper").err
    assert "Did you mean 'describe'?" in klamm("topics", "descibe").err


def test_a_lake_that_is_neither_a_sink_nor_a_path(klamm: Klamm, here: Path) -> None:
    Path("klamm.yaml").write_text("sinks: {s: {plugin: hadoop, topics: [t], path: ./lake}}\n")
    done = klamm("lake", "ls", "lake")
    words = "klamm: klamm.yaml: there is no sink 'lake' (there are: s); a path has a slash, as in ./lake\n"
    assert (done.status, done.err) == (2, words)


def test_init_writes_a_file_that_loads_and_leaves_one_that_is_there(klamm: Klamm, here: Path) -> None:
    assert klamm("init").status == 0
    settings = load_settings("klamm.yaml")
    assert (settings.coordination.plugin, settings.consumer.group_protocol) == ("embedded", "registry")
    Path("klamm.yaml").write_text("mine")
    done = klamm("init")
    assert (done.status, done.err) == (2, "klamm: klamm.yaml: already exists; it was not changed\n")
    assert Path("klamm.yaml").read_text() == "mine"
    assert klamm("init", "other.yaml").status == 0
    assert klamm("init", "no/such/folder.yaml").status == 2


def test_what_init_comments_out_is_right_too(klamm: Klamm, here: Path) -> None:
    """With every `# key: value` line taken in, the file still loads (but for the user's own class and validators). For
    the coordination, the commented lines replace those above them."""
    klamm("init")
    lines = []
    embedded = {"plugin: embedded", "path: ./klamm-coordination.db", "session.timeout.ms: 6000"}
    for line in Path("klamm.yaml").read_text().splitlines():
        if line.split("#")[0].strip() in embedded:
            continue
        bare = line.lstrip()
        if (
            bare.startswith("# ")
            and ":" in bare
            and "`" not in bare.split("#")[1]
            and bare[2:3] in " abcdefghijklmnopqrstuvwxyz"
        ):
            indent = line[: len(line) - len(bare)]
            line = indent + bare[2:]
        lines.append(line)
    Path("klamm.yaml").write_text("\n".join(lines))
    Path("trip.avsc").write_text('{"type": "record", "name": "Trip", "fields": []}')
    settings = load_settings("klamm.yaml")
    assert (settings.coordination.plugin, settings.consumer.group_protocol) == ("zookeeper", "registry")
    assert set(settings.topics) == {"trips"}
    assert set(settings.sinks) == {"archive", "lake"}
    assert settings.audit is not None


def test_a_broker_starts_with_the_file_of_init(klamm: Klamm, here: Path) -> None:
    klamm("init")
    port = free_port()
    Path("klamm.yaml").write_text(Path("klamm.yaml").read_text().replace("9092", str(port)))
    process = subprocess.Popen([KLAMM, "broker"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("klamm broker ready")
        second = subprocess.run([KLAMM, "broker"], capture_output=True, text=True, timeout=180)
        assert second.returncode == 2
        (line,) = [line for line in second.stderr.splitlines() if line.startswith("klamm: ")]
        assert str(port) in line
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.communicate()


def test_zookeeper_down_at_start_is_one_line(here: Path) -> None:
    port = free_port()
    said = {
        "broker": {"listeners": f"PLAINTEXT://127.0.0.1:{free_port()}"},
        "coordination": {
            "plugin": "zookeeper",
            "zookeeper.connect": f"127.0.0.1:{port}",
            "zookeeper.session.timeout.ms": 1000,
        },
    }
    Path("klamm.yaml").write_text(yaml.safe_dump(said))
    done = subprocess.run([KLAMM, "broker"], capture_output=True, text=True, timeout=180)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"127.0.0.1:{port}" in done.stderr.splitlines()[-1]


def test_config_check(klamm: Klamm, here: Path) -> None:
    done = klamm("config", "check")
    assert (done.status, done.err) == (2, "klamm: klamm.yaml: no such file; `klamm init` writes one\n")
    Path("klamm.yaml").write_text("broker: {log.retention.hour: 3}\nproducer: {acks: 5}\n")
    done = klamm("config", "check")
    assert done.status == 2
    assert done.err.splitlines() == [
        "klamm.yaml:1: broker.log.retention.hour: unknown key; did you mean log.retention.hours?",
        "klamm.yaml:2: producer.acks: should be all, 1 or 0, got 5",
    ]
    Path("klamm.yaml").write_text("broker: {log.retention.hours: 3}\n")
    assert klamm("config", "check").out == "klamm.yaml: ok\n"


def test_config_check_reads_the_schemas(klamm: Klamm, here: Path) -> None:
    Path("klamm.yaml").write_text("topics: {t: {schema: t.avsc, record.class: 'the.users.own:Class'}}\n")
    Path("t.avsc").write_text('{"type": "recrod"}')
    done = klamm("config", "check")
    assert done.status == 2
    assert done.err.startswith(f"klamm: klamm.yaml: topics.t.schema: {here / 't.avsc'}: not an Avro schema: ")
    assert done.err.count("\n") == 1
    Path("t.avsc").write_text('"string"')
    assert klamm("config", "check").status == 0


@pytest.mark.parametrize(
    ("sink", "words"),
    [
        ("on.bad.record: skip", "sinks.s.on.bad.record: a load accepts fail or quarantine, got skip"),
        ("webhdfs.url: namenode:9870", "sinks.s.webhdfs.url: expected http://HOST:PORT, got 'namenode:9870'"),
        ("webhdfs.url: http://a;http://b:x", "sinks.s.webhdfs.url: expected http://HOST:PORT, got 'http://b:x'"),
        ("path: s3a://bucket/lake", "sinks.s.path: a lake on s3a: (s3a://bucket/lake) is refused until s3a: passes"),
        ("path: file://lake", "sinks.s.path: expected file:///…/lake or ./lake, got 'file://lake', where 'lake' is a"),
        ("path: file://h/a/lake", "sinks.s.path: expected file:///…/h/a/lake or ./h/a/lake, got 'file://h/a/lake'"),
        ("path: file://./lake", "sinks.s.path: expected file:///…/lake or ./lake, got 'file://./lake'"),
        ("path: 'file:///'", "sinks.s.path: expected file:///…/lake, got 'file:///', which names no directory"),
        ("path: 'hdfs://'", "sinks.s.path: expected hdfs://HOST:PORT/path, or hdfs:///path of the default file system"),
        ("path: hdfs://lake", "default file system, got 'hdfs://lake'"),
        ("path: hdfs:lake", "default file system, got 'hdfs:lake'"),
        ("path: hdfs://namenode:http/lake", "default file system, got 'hdfs://namenode:http/lake'"),
        ("path: 'hdfs://namenode/lake?user=me'", "sinks.s.path: expected a URI without a query ('?') and a fragment"),
        ("path: 'file:///lake#1'", "a fragment ('#'), got 'file:///lake#1'"),
        ("path: ~nobody-of-this-name/lake", "sinks.s.path: there is no home directory for the '~' in '~nobody-of"),
        ("path: ./a.txt", "sinks.s.path: ./a.txt is a file; a lake is a directory"),
        ("path: ./a.txt/lakes/s/", "path: ./a.txt is a file, so that there can be no lake at ./a.txt/lakes/s/"),
        ("path: file:./a.txt/lake", "path: file:./a.txt is a file, so that there can be no lake at file:./a.txt/lake"),
        ("path: file:///dev/null/lake", "path: file:///dev/null is a file, so that there can be no lake at file:///"),
        (
            "spark.config: {dfs.replication: 2}",
            "sinks.s.spark.config: 'dfs.replication' is Hadoop's: write spark.hadoop.dfs.replication",
        ),
        (
            "spark.config: {fs.defaultFS: 'hdfs://h', executor.memory: 2g}",
            "'fs.defaultFS' is Hadoop's: write spark.hadoop.fs.defaultFS; 'executor.memory' is not a key of Spark",
        ),
        ("topic: [t]", "sinks.s.topic: unknown key; did you mean topics?"),
    ],
)
def test_config_check_refuses_what_a_load_refuses(klamm: Klamm, here: Path, sink: str, words: str) -> None:
    Path("a.txt").touch()
    Path("klamm.yaml").write_text(
        f"sinks:\n  s:\n    plugin: hadoop\n    topics: [t]\n    {sink}\n"
        + ("" if sink.startswith("path") else "    path: ./lake\n")
    )
    done, loaded = klamm("config", "check"), klamm("load", "s")
    assert (done.status, words in done.err, done.err.count("\n")) == (2, True, 1), done.err
    assert (loaded.status, loaded.err) == (done.status, done.err)


def test_numbers_among_sparks_settings_are_text(klamm: Klamm, here: Path) -> None:
    given = "{spark.hadoop.dfs.replication: 2, spark.ui.enabled: false}"
    Path("klamm.yaml").write_text(f"sinks: {{s: {{plugin: hadoop, topics: t, path: lake, spark.config: {given}}}}}\n")
    assert klamm("config", "check").status == 0
    shown = yaml.safe_load(klamm("config", "show").out)["sinks"]["s"]["spark.config"]
    assert shown == {"spark.hadoop.dfs.replication": "2", "spark.ui.enabled": "false"}


def test_config_show_keeps_what_is_not_printable(klamm: Klamm, here: Path) -> None:
    text = 'producer: {bootstrap.servers: "a:1", client.id: "é\\xA0\\x1b\\u200b"}\n'
    Path("klamm.yaml").write_text(text)
    shown = klamm("config", "show").out
    assert shown.replace("\n", "").isprintable()
    assert yaml.safe_load(shown)["producer"]["client.id"] == "é\xa0\x1b\u200b"


def test_config_check_refuses_what_a_sink_refuses(klamm: Klamm, here: Path) -> None:
    text = "plugins: {modules: [klammtest.plugins.everything]}\nsinks: {s: {plugin: everything, topics: [t], ONBAD}}\n"
    Path("klamm.yaml").write_text(text.replace("ONBAD", "on.bad.record: quarantine"))
    done, ran = klamm("config", "check"), klamm("sink", "s")
    words = "klamm: klamm.yaml: sinks.s.on.bad.record: the plugin 'everything' has no quarantine; "
    assert (done.status, done.err) == (2, words + "expected fail or skip\n")
    assert (ran.status, ran.err) == (2, done.err)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ("sinks: {s: {plugin: nothing, topics: [t]}}", "SINK 'nothing' of plugin 'MODULE': `create` returned None, "),
        ("sinks: {s: {plugin: nothing, topics: [t]}}", "which is no Sink: it lacks open, write, flush, close"),
        ("sinks: {s: {plugin: raises, topics: [t]}}", "SINK 'raises' of plugin 'MODULE' cannot be made: ZeroDiv"),
        ("broker: {topic.validators: half}", "the topic validator 'half' of plugin 'MODULE': `create` returned "),
        ("producer: {interceptors: half}", "which is no ProducerInterceptor: it lacks on_send, on_acknowledgement"),
    ],
)
def test_config_check_finds_what_a_plugin_makes_wrong(klamm: Klamm, here: Path, sections: str, words: str) -> None:
    """It ended with an AttributeError when a sink was used, a broker when it started."""
    module = "klammtest.plugins.half"
    Path("klamm.yaml").write_text(f"plugins: {{modules: [{module}]}}\n{sections}\n")
    done = klamm("config", "check")
    assert done.status == 1
    assert words.replace("MODULE", module).replace("SINK", "the sink") in done.err
    assert done.err.count("\n") == 1


def test_config_check_finds_a_codec_id_that_is_taken(klamm: Klamm, here: Path) -> None:
    Path("klamm.yaml").write_text("plugins: {modules: [klammtest.plugins.third_party, klammtest.plugins.half]}\n")
    done = klamm("config", "check")
    assert (done.status, done.err) == (2, "klamm: the codecs 'backwards' and 'half' have the same id 5\n")


def test_config_show_prints_a_file_that_says_the_same(
    klamm: Klamm, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KLAMM_TEST_ID", "7")
    Path("t.avsc").write_text('"string"')
    Path("klamm.yaml").write_text(
        "broker: {broker.id: '${KLAMM_TEST_ID}'}\n"
        "topics: {t: {partitions: 2, schema: t.avsc, compatibility: FULL, config: {retention.ms: -1}}}\n"
        "sinks: {s: {plugin: files, topics: [t], path: out}}\naudit: {plugin: klamm}\n"
        "coordination: {plugin: embedded}\n"
    )
    done = klamm("config", "show")
    shown = yaml.safe_load(done.out)
    assert (shown["broker"]["broker.id"], shown["broker"]["log.dirs"]) == (7, str(here / "data"))
    assert shown["topics"]["t"]["compatibility"] == "FULL"
    assert shown["sinks"]["s"] == {
        "plugin": "files", "path": str(here / "out"), "compression": "none", "topics": ["t"], "group.id": "sink-s",
        "flush.records": 10_000, "flush.interval.ms": 10_000, "on.bad.record": "fail",
    }  # fmt: skip
    before = load_settings("klamm.yaml")
    Path("klamm.yaml").write_text(done.out)
    after = load_settings("klamm.yaml")
    assert (after.broker, after.producer, after.consumer) == (before.broker, before.producer, before.consumer)
    assert (after.topics, after.sinks, after.coordination) == (before.topics, before.sinks, before.coordination)


def test_plugins_with_and_without_a_file(klamm: Klamm, here: Path) -> None:
    done = klamm("plugins")
    assert done.status == 0
    assert "klamm.plugins.codecs" in done.out
    Path("klamm.yaml").write_text("plugins: {modules: [klammtest.plugins.everything]}\n")
    assert "klammtest.plugins.everything" in klamm("plugins").out
    Path("klamm.yaml").write_text("plugins: {modules: [no.such]}\n")
    done = klamm("plugins")
    assert (done.status, done.out) == (2, "")
    assert klamm("plugins", "--config", "nope.yaml").status == 2
    Path("klamm.yaml").write_text(
        "plugins: {modules: [klammtest.plugins.everything]}\nproducer: {delivery.timeout.ms: 10}\n"
    )
    assert "klammtest.plugins.everything" in klamm("plugins").out
    assert klamm("config", "check").status == 2
    assert "plugin 'no.such' (no.such) cannot be loaded" in done.err


def test_groups_without_a_file(klamm: Klamm, here: Path) -> None:
    """It ended with a traceback: no file, so no coordination."""
    coordination = {"plugin": "embedded", "path": str(here / "coordination.db")}
    with broker_thread(here, coordination) as broker:
        done = klamm("groups", "list", "--bootstrap", f"127.0.0.1:{broker.advertised[0].port}")
    words = (
        "klamm: registry groups are not shown: no coordination is configured: name a file that has one with --config"
    )
    assert (done.status, done.out.split(), done.err) == (0, ["group", "protocol", "state"], f"{words}\n")


def test_no_broker_is_one_line(klamm: Klamm, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.core.cli.options.TIMEOUT_S", 0.5)
    for command in ("topics", "groups"):
        done = klamm(command, "list", "--bootstrap", "127.0.0.1:1")
        assert done.status == 1
        assert done.err.startswith("klamm: no broker answers at 127.0.0.1:1 ")
        assert done.err.count("\n") == 1


def test_ctrl_c_is_status_130(klamm: Klamm, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("klamm.core.cli.main.app", interrupted)
    assert klamm("plugins").status == 130


@pytest.mark.parametrize(
    "command", [("plugins",), ("plugins", "--json"), ("completion", "bash"), ("--help",), ("topics", "list", "--help")]
)
def test_output_that_cannot_be_written_is_one_line(here: Path, command: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([KLAMM, *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (1, "klamm: standard output: No space left on device\n")
