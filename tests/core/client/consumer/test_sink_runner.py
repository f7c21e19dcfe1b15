"""`klamm sink` end to end: each record once, whatever happens between flush and commit; work shared and handed over."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from klamm import Producer
from klamm.core.cli.main import app
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.client.consumer.sink_runner import SinkRunner
from klamm.core.client.errors import SinkError
from klamm.core.config.settings import Settings, load_settings
from klamm.core.errors import ConfigError, CorruptRecordError, ErrorCode, KlammError, StorageError
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import ConsumerRecord
from klamm.plugins.sinks.files import FilesSink
from klammtest.broker import KLAMM, RunningBroker, running_broker
from klammtest.faulty import fault_hook
from klammtest.guarantees import guarantee
from klammtest.native.batches import unopenable
from klammtest.waiting import eventually

RECORDS = 500


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    topics = {name: {"partitions": 3} for name in ("once", "crash", "share", "stop", "again", "live", "fails")}
    with running_broker(tmp_path_factory.mktemp("sinks"), topics=topics) as running:
        text = running.config_path.read_text()
        for name in topics:
            text += (
                f"{'sinks:' if name == 'once' else ''}\n  {name}: {{plugin: files, topics: [{name}], path: ./{name}}}"
            )
        for section in ("producer", "consumer"):
            text += f"\n{section}: {{bootstrap.servers: '{running.bootstrap}'}}"
        running.config_path.write_text(text)
        yield running


def produce(broker: RunningBroker, topic: str, count: int = RECORDS) -> None:
    with Producer(broker.config_path) as producer:
        for i in range(count):
            producer.send(topic, f"v{i}".encode(), key=f"k{i}".encode())


def written(folder: Path) -> Counter[str]:
    """The values in all files, each with how often it is there."""
    lines = [line for path in folder.rglob("*.jsonl") for line in path.read_text().splitlines()]
    return Counter(json.loads(line)["value"] for line in lines)


def expected(count: int = RECORDS) -> Counter[str]:
    return Counter(f"v{i}" for i in range(count))


def run_once(settings: Settings, name: str) -> int:
    return SinkRunner(settings, name).run(threading.Event(), once=True).records


def test_all_of_a_topic_and_then_only_what_is_new(broker: RunningBroker) -> None:
    produce(broker, "once")
    settings = load_settings(broker.config_path)
    assert run_once(settings, "once") == RECORDS
    assert run_once(settings, "once") == 0
    assert written(broker.folder / "once") == expected()


def test_a_sink_that_fails_commits_nothing_and_a_rerun_doubles_nothing(broker: RunningBroker) -> None:
    produce(broker, "crash")
    settings = load_settings(broker.config_path)
    runner = SinkRunner(settings, "crash")
    with fault_hook(die_when_flushed), pytest.raises(StorageError):
        runner.run(threading.Event(), once=True)
    assert sum(written(broker.folder / "crash").values()) > 0
    assert run_once(settings, "crash") == RECORDS
    assert written(broker.folder / "crash") == expected()


class Failing:
    """A sink whose `flush` raises."""

    def __init__(self, error: Exception | SystemExit) -> None:
        self._error = error

    def open(self) -> None:
        return

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        return

    def flush(self) -> None:
        raise self._error

    def close(self) -> None:
        return


FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FULL, r"flush failed: OSError: \[Errno 28\] No space left on device$"),
        (ZeroDivisionError("a bug"), r"flush failed: ZeroDivisionError: a bug at .*test_sink_runner.py:\d+$"),
        (SystemExit(3), r"flush failed: SystemExit: 3 at .*test_sink_runner.py:\d+$"),
        (StorageError("the folder is read-only"), "the folder is read-only$"),
    ],
)
def test_whatever_a_sink_raises_is_one_line_that_names_it(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, error: Exception | SystemExit, words: str
) -> None:
    produce(broker, "fails", 1)
    monkeypatch.setattr(Settings, "make_sink", lambda *_: Failing(error))
    with pytest.raises(SinkError, match=f"^sink fails: {words}") as caught:
        run_once(load_settings(broker.config_path), "fails")
    assert caught.value.code is (error.code if isinstance(error, KlammError) else ErrorCode.unknown_server_error)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("verbose", [(), ("-v",)])
def test_the_command_shows_a_traceback_only_if_asked(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, verbose: tuple[str, ...]
) -> None:
    produce(broker, "fails", 1)
    monkeypatch.setattr(Settings, "make_sink", lambda *_: Failing(ZeroDivisionError("a bug")))
    done = CliRunner().invoke(app, ["sink", "fails", "--once", "--config", str(broker.config_path), *verbose])
    assert isinstance(done.exception, SinkError)
    assert ("in flush" in done.stderr) is bool(verbose)
    assert ("Traceback" in done.stderr) is bool(verbose)


def test_two_tasks_share_the_work_and_hand_it_over(broker: RunningBroker) -> None:
    settings = load_settings(broker.config_path)
    stop, first_stop = threading.Event(), threading.Event()
    runners = [SinkRunner(settings, "share"), SinkRunner(settings, "share")]
    errors: list[BaseException] = []

    def run(runner: SinkRunner, until: threading.Event) -> None:
        try:
            runner.run(until)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=arguments) for arguments in zip(runners, (first_stop, stop), strict=True)
    ]
    produce(broker, "share", 200)
    threads[0].start()
    _until(lambda: runners[0].progress.records == 200)
    threads[1].start()
    produce(broker, "share", 200)
    _until(lambda: sum(r.progress.records for r in runners) >= 400)
    first_stop.set()
    threads[0].join(60)
    produce(broker, "share", 200)
    _until(lambda: sum(r.progress.records for r in runners) >= 600)
    stop.set()
    threads[1].join(60)
    assert errors == []
    assert written(broker.folder / "share") == Counter({f"v{i}": 3 for i in range(200)})


def _until(condition: Callable[[], object]) -> None:
    eventually(condition, "records in the sink")


def test_the_command_ends_cleanly_when_told(broker: RunningBroker) -> None:
    produce(broker, "stop")
    done = subprocess.run(
        [KLAMM, "sink", "stop", "--once"], cwd=broker.folder, capture_output=True, text=True, timeout=180
    )
    assert (done.returncode, done.stdout) == (0, f"sink stop: {RECORDS} records, 1 flushes\n"), done.stderr
    process = subprocess.Popen([KLAMM, "sink", "stop"], cwd=broker.folder, stdout=subprocess.PIPE, text=True)
    produce(broker, "stop", 1)
    _until(lambda: (broker.folder / "stop").exists())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGTERM)


def test_an_unknown_sink_is_one_line(broker: RunningBroker) -> None:
    with pytest.raises(
        ConfigError,
        match=r"klamm.yaml: sinks.nope: there is no such sink \(there are: again, crash, fails, live, once, ",
    ):
        SinkRunner(load_settings(broker.config_path), "nope")


def forget_topic_ids(patch: pytest.MonkeyPatch) -> None:
    """As before: a sink's positions are by name."""
    patch.setattr(FilesSink, "topic_ids", lambda *_: None)


def create_again(broker: RunningBroker, topic: str) -> None:
    with ClusterClient(broker.bootstrap, codecs=CodecTable()) as client:
        client.delete_topics([topic])
        client.create_topics({topic: NewTopic(partitions=3)})


@guarantee("A4", "a sink writes the first records of a topic that was created again", plant=forget_topic_ids)
def test_a_topic_that_was_created_again_is_written_from_its_first_record(broker: RunningBroker, tmp_path: Path) -> None:
    settings = with_folder(broker, "again", tmp_path)
    produce(broker, "again")
    run_once(settings, "again")
    create_again(broker, "again")
    produce(broker, "again")
    assert run_once(settings, "again") == RECORDS
    assert written(tmp_path) == expected() + expected()
    create_again(broker, "again")


def trust_topics(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SinkRunner, "_check_topics", lambda *_: None)


@guarantee("A4", "a running sink drops nothing of a topic that is created again meanwhile", plant=trust_topics)
def test_a_topic_may_be_created_again_under_a_running_sink(broker: RunningBroker, tmp_path: Path) -> None:
    settings = with_folder(broker, "live", tmp_path)
    produce(broker, "live")
    runner, stop = SinkRunner(settings, "live"), threading.Event()
    thread = threading.Thread(target=runner.run, args=(stop,))
    thread.start()
    try:
        _until(lambda: written(tmp_path) == expected())
        create_again(broker, "live")
        produce(broker, "live", RECORDS * 2)
        _until(lambda: committed(broker, tmp_path.name) == RECORDS * 2)
    finally:
        stop.set()
        thread.join(60)
    create_again(broker, "live")
    assert written(tmp_path) == expected() + expected(RECORDS * 2)


def forget_cuts(patch: pytest.MonkeyPatch) -> None:
    """As before: sinks are told of topic ids alone."""
    patch.setattr(FilesSink, "log_cut", lambda *_: None)


@guarantee("A4", "a sink writes what took the place of the lost end of a restored log", plant=forget_cuts)
@pytest.mark.parametrize("killed", [False, True], ids=["", "and is killed before it commits"])
def test_a_log_from_an_older_backup_is_written_from_the_cut(tmp_path: Path, *, killed: bool) -> None:
    """50 records are in the backup, 120 were written; 100 others take the place of the 70 lost, and so once more."""
    with running_broker(tmp_path, topics={"t": {"partitions": 1}}) as running:
        text = running.config_path.read_text() + "\nsinks:\n  s: {plugin: files, topics: [t], path: ./out}\n"
        for section in ("producer", "consumer"):
            text += f"{section}: {{bootstrap.servers: '{running.bootstrap}'}}\n"
        running.config_path.write_text(text)
        settings, out, data = load_settings(running.config_path), running.folder / "out", running.folder / "data"

        def send(word: str, count: int) -> list[str]:
            with Producer(running.config_path) as producer:
                for n in range(count):
                    producer.send("t", f"{word}{n}".encode())
            return [f"{word}{n}" for n in range(count)]

        all_of_them = send("old", 50)
        running.stop()
        shutil.copytree(data, tmp_path / "backup")
        running.start()
        all_of_them += send("lost", 70)
        run_once(settings, "s")
        for word, count in (("new", 100), ("newer", 110)):  # further than before: `once` looks at stored offsets
            running.stop()
            shutil.rmtree(data)
            shutil.copytree(tmp_path / "backup", data)
            running.start()
            all_of_them += send(word, count)
            if killed:
                with fault_hook(die_when_flushed), pytest.raises(StorageError):
                    run_once(settings, "s")
            run_once(settings, "s")
            assert written(out) == Counter(all_of_them)
        names = sorted(path.name for path in out.rglob("*.jsonl"))
        assert [name for name in names if ".cut" not in name][-1].split("-")[1] == f"{119:020}.jsonl"
        assert names.count(f"{50:020}-{149:020}.cut1.jsonl") == names.count(f"{50:020}-{159:020}.cut2.jsonl") == 1


def die_when_flushed(point: str) -> None:
    if point == "sink.flushed":
        raise StorageError("the process dies between flush and commit")


def spoil(broker: RunningBroker, topic: str) -> bytes:
    """Ten records, a batch of four that cannot be opened, and ten more; the batch."""
    bad = unopenable([(1000, None, b"lost", ())] * 4)
    rows = [[(1000, None, f"v{n}".encode(), ()) for n in part] for part in (range(10), range(10, 20))]
    with ClusterClient(broker.bootstrap, codecs=CodecTable()) as client:
        client.delete_topics([topic], missing_ok=True)
        client.create_topics({topic: NewTopic(1, configs={"verify.payload": "none"})})
        for data in (encode_batch(rows[0]), bad, encode_batch(rows[1])):
            client.produce({TopicPartition(topic, 0): data})
    return bad


def bad_ends_the_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SinkRunner, "_poll", lambda _, consumer: (consumer.poll(0.2), None))


@guarantee("D13", "a sink passes a batch that cannot be opened over, or sets it aside", plant=bad_ends_the_run)
@pytest.mark.parametrize("what", ["skip", "quarantine"])
def test_a_batch_that_cannot_be_opened_is_passed_over(broker: RunningBroker, tmp_path: Path, what: str) -> None:
    bad = spoil(broker, "spoiled")
    runner = SinkRunner(with_folder(broker, "spoiled", tmp_path, {"on.bad.record": what}), "spoiled")
    runner.run(threading.Event(), once=True)
    assert (runner.progress.records, runner.progress.bad) == (20, 1)
    assert written(tmp_path) == expected(20)
    assert committed(broker, tmp_path.name) == 24
    aside = sorted((tmp_path / "spoiled" / "_bad" / "0").glob("*"))
    assert len(aside) == (what == "quarantine")
    for path in aside:
        said = json.loads(path.read_text())
        assert (said["from"], said["to"], said["batch"]) == (10, 14, True)
        assert said["value"].encode("latin-1")[16:] == bad[16:]
        assert "gzip" in said["reason"]


def test_a_batch_that_cannot_be_opened_ends_the_run_by_default(broker: RunningBroker, tmp_path: Path) -> None:
    spoil(broker, "spoiled")
    with pytest.raises(CorruptRecordError, match="spoiled-0 offset 10"):
        run_once(with_folder(broker, "spoiled", tmp_path), "spoiled")


def test_a_value_that_cannot_be_read_is_set_aside(broker: RunningBroker, tmp_path: Path) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    (broker.folder / "r.avsc").write_text(json.dumps(schema))
    settings = with_folder(
        broker, "typed", tmp_path, {"on.bad.record": "quarantine"}, topics={"typed": {"schema": "r.avsc"}}
    )
    with ClusterClient(broker.bootstrap, codecs=CodecTable()) as client:
        client.create_topics({"typed": NewTopic(1)})
        client.produce({TopicPartition("typed", 0): encode_batch([(1000, b"k", b"\xff", ())])})
    with Producer(settings) as producer:
        producer.send("typed", {"n": 7}).result(30)
    assert run_once(settings, "typed") == 1
    (aside,) = (tmp_path / "typed" / "_bad" / "0").glob("*.json")
    said = json.loads(aside.read_text())
    assert (said["from"], said["to"], said["batch"], said["key"]) == (0, 1, False, "k")
    assert said["value"] == "\u00ff"


def committed(broker: RunningBroker, group: str) -> int:
    with ClusterClient(broker.bootstrap, codecs=CodecTable()) as client:
        return sum(stored.offset for stored in client.fetch_offsets(group).values())


def with_folder(
    broker: RunningBroker, name: str, folder: Path, options: Mapping[str, Any] = {}, **sections: Any
) -> Settings:
    """A group and a folder of its own, and flushes without delay."""
    config = yaml.safe_load(broker.config_path.read_text())
    sink = {"plugin": "files", "topics": [name], "path": str(folder), "group.id": folder.name, "flush.interval.ms": 100}
    path = broker.folder / f"{folder.name}.yaml"
    path.write_text(yaml.safe_dump({**config, **sections, "sinks": {name: {**sink, **options}}}))
    return load_settings(path)
