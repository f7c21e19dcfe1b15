"""`klamm produce` and `klamm consume` against a broker: in this process, in pipes and on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from klamm import Consumer, Producer
from klamm.core.cli.record_io import clients
from klamm.core.client.cluster_client import EARLIEST, LATEST, ClusterClient, NewTopic
from klamm.core.config.settings import load_settings
from klamm.core.interfaces.sink import RecordBatch
from klamm.core.records.partition import TopicPartition
from klammtest.broker import KLAMM, running_broker
from klammtest.clients.producing import topic_name
from klammtest.waiting import eventually

Klamm = Callable[..., Any]
TRIP: dict[str, Any] = {
    "type": "record",
    "name": "Trip",
    "fields": [
        {"name": "rider", "type": "string"},
        {"name": "km", "type": "double"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
    ],
}
ANN = '{"rider":"ann","km":1.5,"at":"2026-11-28T10:30:00Z"}'
BOB = '{"rider":"bob","km":2.0,"at":null}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the configuration of a running broker."""
    here = tmp_path_factory.mktemp("produce")
    with running_broker(here) as broker:
        at = broker.bootstrap
        (here / "trip.avsc").write_text(json.dumps(TRIP))
        (here / "plain.avsc").write_text(json.dumps({**TRIP, "fields": TRIP["fields"][:2]}))
        document = {
            **yaml.safe_load(broker.config_path.read_text()),
            "producer": {"bootstrap.servers": at, "max.request.size": 200_000},
            "consumer": {"bootstrap.servers": at},
            "topics": {name: {"schema": "trip.avsc"} for name in ("trips", "rows", "broken", "copied")}
            | {name: {"schema": "plain.avsc"} for name in ("few", "many")},
        }
        broker.config_path.write_text(json.dumps(document))
        yield here


@pytest.fixture(autouse=True)
def _here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[ClusterClient]:
    settings = load_settings(folder / "klamm.yaml")
    with ClusterClient(settings.consumer.bootstrap_servers, codecs=settings.codec_table()) as opened:
        for name in ("trips", "rows", "broken", "copied"):
            opened.create_topics({name: NewTopic(1, 1)})
        yield opened


@pytest.fixture
def topic(client: ClusterClient, request: pytest.FixtureRequest) -> str:
    """A topic of one partition, for one test."""
    name = topic_name(request)
    client.create_topics({name: NewTopic(1, 1, {"retention.ms": "-1"})})
    return name


def lines(folder: Path, *given: str | bytes) -> str:
    """Returns the name of a file with these lines."""
    data = b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in given)
    (folder / "input").write_bytes(data)
    return "input"


def test_json_of_a_typed_topic(klamm: Klamm, folder: Path, client: ClusterClient) -> None:
    done = klamm("produce", "trips", lines(folder, ANN, '{"rider":"bob","km":2}', "null"), "--key-field", "rider")
    assert done.status == 1
    assert done.err.splitlines() == [
        "klamm: input: line 3: there is no field 'rider' for the key",
        "klamm: 2 records sent to trips; nothing from line 3 on was sent",
    ]
    assert klamm("produce", "trips", lines(folder, "null"), "--key", "bob").status == 0
    done = klamm("consume", "trips")
    assert (done.status, done.out) == (0, f"{ANN}\n{BOB}\nnull\n")
    assert done.err == "klamm: 3 records printed\n"
    assert klamm("consume", "trips", "-f", r"%k=%v\n", "--grep", "ann|bob=$").out == f"ann={ANN}\nbob=\n"
    raw = klamm("consume", "trips", "--raw", "-n", "1", "-f", "%v{hex}").out
    assert raw.startswith("00")
    whole = klamm("consume", "trips", "--json").out
    assert [json.loads(line)["value"] for line in whole.splitlines()] == [json.loads(ANN), json.loads(BOB), None]
    assert klamm("produce", "copied", lines(folder, *whole.splitlines()), "--json", "-q").err == ""
    copied = klamm("consume", "copied", "--json").out
    assert copied == whole.replace('"trips"', '"copied"')


def test_many_records_are_sent_and_printed_as_few(
    klamm: Klamm, folder: Path, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [f'{{"rider":{json.dumps(rider)},"km":{km}}}' for rider in ("", "ä\n", "\0") for km in (1, -0.0, 1e300)]
    given = lines(folder, *documents, "null", *documents * 3)
    ways = ([], ["--from", "-3", "-n", "2", "-p", "0"], ["--from", "4", "--until", "8", "--grep", "e.300"])

    def outcome(topic: str) -> list[tuple[int, str, str]]:
        client.create_topics({topic: NewTopic(2, 1)})
        for partition in "01":
            done = klamm("produce", topic, given, "--key", "k", "-H", "h=v", "-p", partition)
            assert (done.status, done.err) == (0, f"klamm: 37 records sent to {topic}\n")
        read = [klamm("consume", topic, *options) for options in ways]
        read += [klamm("consume", topic, "--raw", "-f", "%p %k %h{%k=%v} %v{hex}\n")]
        return [(one.status, "\n".join(sorted(one.out.splitlines())), one.err) for one in read]

    few = outcome("few")
    monkeypatch.setattr(clients, "_MANY", 0)
    monkeypatch.setattr(clients, "_FEW", 0)
    assert outcome("many") == few


def test_csv_of_a_typed_topic(klamm: Klamm, folder: Path, client: ClusterClient) -> None:
    rows = ("rider,km,at", "ann,1.5,2026-11-28T10:30:00Z", "bob,far,", "bob,2,")
    done = klamm("produce", "rows", lines(folder, *rows), "--csv", "--key-field", "rider", "--on-bad", "skip")
    why = "topic rows: the value does not fit its schema: field km: expected double, got 'far'"
    assert done.status == 0
    assert done.err == f"klamm: input: line 3: {why}\nklamm: 2 records sent to rows, 1 line skipped\n"
    for row, delimiter in (("cid;3", ";"), ("cid\t3", r"\t")):
        done = klamm("produce", "rows", lines(folder, row), "--columns", "rider,km", "--delimiter", delimiter)
        assert done.status == 0, done.err
    assert (
        klamm("consume", "rows", "-f", r"%k %v\n").out
        == f"ann {ANN}\nbob {BOB}\n" + ' {"rider":"cid","km":3.0,"at":null}\n' * 2
    )


def test_columns_that_are_not_the_schemas_are_one_line(klamm: Klamm, folder: Path, client: ClusterClient) -> None:
    sent = "klamm: 0 records sent to rows; nothing from line 1 on was sent\n"
    done = klamm("produce", "rows", lines(folder, "rider,kms", "ann,1", "bob,2"), "--csv", "--on-bad", "skip")
    why = "klamm: input: line 1: column 'kms' is no field of record Trip; fields: rider, km, at\n"
    assert (done.status, done.err) == (1, why + sent)
    done = klamm("produce", "rows", lines(folder, "ann", "bob"), "--columns", "rider", "--on-bad", "skip")
    why = "klamm: input: line 1: no column for the field 'km', which has no default; columns: rider\n"
    assert (done.status, done.err) == (1, why + sent)


def test_records_of_a_partition_stay_in_order_with_and_without_keys(
    klamm: Klamm, folder: Path, client: ClusterClient, request: pytest.FixtureRequest
) -> None:
    name = topic_name(request)
    client.create_topics({name: NewTopic(2, 1)})
    rows = [{"key": None if n % 3 else f"k{n % 4}", "value": f"{n:05d}"} for n in range(3000)]
    rows += [{"key": None, "value": f"{n:05d}", "headers": [{"key": "h", "value": "x"}]} for n in range(3000, 3010)]
    assert klamm("produce", name, lines(folder, *map(json.dumps, rows)), "--json", "-q").err == ""
    found = [line.split() for line in klamm("consume", name, "-f", r"%p %v\n").out.splitlines()]
    assert sorted(value for _, value in found) == [row["value"] for row in rows]
    for number in ("0", "1"):
        values = [value for partition, value in found if partition == number]
        assert values == sorted(values)


def test_lines_keys_headers_and_tombstones(klamm: Klamm, folder: Path, topic: str) -> None:
    done = klamm(
        "produce", topic, lines(folder, b"k\ta\xff", "l\t", "m\tb"), "-k", r"\t", "-Z", "-H", "h=1", "-H", "i="
    )
    assert (done.status, done.err) == (0, f"klamm: 3 records sent to {topic}\n")
    whole = [json.loads(line) for line in klamm("consume", topic, "--json", "-q").out.splitlines()]
    assert [(r["key"], r["value"]) for r in whole] == [("k", {"base64": "Yf8="}), ("l", None), ("m", "b")]
    assert whole[0]["headers"] == [{"key": "h", "value": "1"}, {"key": "i", "value": ""}]
    assert klamm("consume", topic, "-f", r"%o %h{%k:%v;} %V\n").out == "0 h:1;i:; 2\n1 h:1;i:; 0\n2 h:1;i:; 1\n"


def test_a_line_without_the_keys_delimiter_ends_the_input(klamm: Klamm, folder: Path, topic: str) -> None:
    given = lines(folder, "a:1", "b:2", "c", "d:4")
    done = klamm("produce", topic, given, "-k", ":")
    assert (done.status, done.err.splitlines()) == (
        1,
        [
            "klamm: input: line 3: expected a key, ':' and a value, got 'c'",
            f"klamm: 2 records sent to {topic}; nothing from line 3 on was sent",
        ],
    )
    assert klamm("consume", topic).out == "1\n2\n"
    done = klamm("produce", topic, given, "-k", ":", "--on-bad", "skip")
    assert (done.status, done.err.splitlines()[-1]) == (0, f"klamm: 3 records sent to {topic}, 1 line skipped")


def test_a_record_that_is_too_large_is_named_by_its_line(klamm: Klamm, folder: Path, topic: str) -> None:
    given = lines(folder, "a", "b" * 199_990, "c")
    done = klamm("produce", topic, given)
    assert done.status == 1
    assert done.err.startswith(f"klamm: input: line 2: topic '{topic}': a record of about 199991 bytes is larger")
    assert done.err.endswith(f"klamm: 1 record sent to {topic}; nothing from line 2 on was sent\n")
    assert klamm("produce", topic, given, "--on-bad", "skip").status == 0
    given = lines(folder, "d", "e" * 3_000_000, "f")
    done = klamm("produce", topic, given)
    assert done.err.startswith("klamm: input: line 2: a line of more than 200000 bytes")
    assert done.err.endswith(f"klamm: 1 record sent to {topic}; nothing from line 2 on was sent\n")
    done = klamm("produce", topic, given, "--on-bad", "skip")
    assert (done.status, done.err.splitlines()[-1]) == (0, f"klamm: 2 records sent to {topic}, 1 line skipped")
    assert klamm("consume", topic).out == "a\na\nc\nd\nd\nf\n"


def test_positions_and_counts(klamm: Klamm, folder: Path, topic: str, client: ClusterClient) -> None:
    records = [json.dumps({"value": str(n), "timestamp": 1_000_000 * n}) for n in range(20)]
    assert klamm("produce", topic, lines(folder, *records), "--json").status == 0

    def read(*options: str) -> list[int]:
        done = klamm("consume", topic, *options)
        assert done.status == 0, done.err
        return [int(line) for line in done.out.split()]

    assert read() == list(range(20))
    assert read("--from", "-3") == [17, 18, 19]
    assert read("--from", "7", "-n", "2") == [7, 8]
    assert read("--from", "18", "--until", "19") == [18]
    assert read("--until", "3") == [0, 1, 2]
    assert read("--from", "@1500000", "--until", "@3000000") == [2]
    assert read("--from", "1970-01-01T04:00", "--until", "-1h") == [15, 16, 17, 18, 19]
    assert read("--from", "latest") == []
    assert read("--from", "5", "--until", "5") == []
    assert read("--grep", "^1", "-n", "3") == [1, 10, 11]
    tp = TopicPartition(topic, 0)
    client.delete_records({tp: 5})
    done = klamm("consume", topic, "--from", "2", "-n", "1")
    assert (done.out, done.err.splitlines()[0]) == ("5\n", f"klamm: {tp}: offset 2 was deleted; beginning at 5")
    done = klamm("consume", topic, "--from", "99")
    assert (done.status, done.err) == (2, "klamm: --from 99: beyond the end of every partition (the largest is 20)\n")


def test_a_group_begins_where_it_stopped(klamm: Klamm, folder: Path, topic: str, client: ClusterClient) -> None:
    klamm("produce", topic, lines(folder, *map(str, range(10))), "-q")
    group = f"g-{topic}"
    assert klamm("consume", topic, "-g", group, "-n", "4").out == "0\n1\n2\n3\n"
    assert client.fetch_offsets(group)[TopicPartition(topic, 0)].offset == 4
    assert klamm("consume", topic, "-g", group).out == "4\n5\n6\n7\n8\n9\n"
    assert klamm("consume", topic, "-g", group).out == ""
    assert client.fetch_offsets(group)[TopicPartition(topic, 0)].offset == 10


def test_a_group_from_latest_goes_on_where_it_ended_without_a_record(
    klamm: Klamm, folder: Path, topic: str, client: ClusterClient
) -> None:
    klamm("produce", topic, lines(folder, "old"), "-q")
    group = f"g-{topic}"
    assert klamm("consume", topic, "-g", group, "--from", "latest").out == ""
    assert client.fetch_offsets(group)[TopicPartition(topic, 0)].offset == 1
    klamm("produce", topic, lines(folder, "new"), "-q")
    assert klamm("consume", topic, "-g", group, "--from", "latest").out == "new\n"


def test_a_group_ends_after_n_records_and_skips_none_of_the_other_partitions(
    klamm: Klamm, folder: Path, client: ClusterClient, request: pytest.FixtureRequest
) -> None:
    name = topic_name(request)
    client.create_topics({name: NewTopic(3, 1)})
    for partition in range(3):
        given = lines(folder, *(f"{partition}-{n}" for n in range(3)))
        klamm("produce", name, given, "-p", str(partition), "-q")
    printed = [klamm("consume", name, "-g", f"g-{name}", "-n", "2", "-q").out.split() for _ in range(5)]
    assert list(map(len, printed)) == [2, 2, 2, 2, 1]
    assert sorted(chain.from_iterable(printed)) == [f"{partition}-{n}" for partition in range(3) for n in range(3)]


class Rebalancing(Consumer):
    """Owns nothing for a moment after its first records, as while the group waits for its other members."""

    polls = 0

    def poll_batches(self, timeout_s: float = 1.0, max_batches: int | None = None) -> list[RecordBatch]:
        self.polls += 1
        return super().poll_batches(timeout_s, 1)

    def assignment(self) -> set[TopicPartition]:
        return set() if 2 <= self.polls <= 4 else super().assignment()


def test_a_rebalance_does_not_end_a_group_member(
    klamm: Klamm, folder: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(8):
        klamm("produce", topic, lines(folder, str(n)), "-q")
    monkeypatch.setattr("klamm.core.cli.record_io.consume.Consumer", Rebalancing)
    assert klamm("consume", topic, "-g", f"g-{topic}").out == "0\n1\n2\n3\n4\n5\n6\n7\n"


def test_what_cannot_be_decoded_is_named_and_the_rest_is_printed(
    klamm: Klamm, folder: Path, client: ClusterClient
) -> None:
    klamm("produce", "broken", lines(folder, ANN), "-q")
    klamm("produce", "broken", lines(folder, "plain text", "\0\0\0\0\1\x02"), "--raw", "-q")
    klamm("produce", "broken", lines(folder, BOB), "-q")
    done = klamm("consume", "broken")
    assert (done.status, done.out) == (1, f"{ANN}\n{BOB}\n")
    first, second, count = done.err.splitlines()
    assert first.startswith("klamm: broken-0 offset 1: topic broken: ")
    assert second.startswith("klamm: broken-0 offset 2: topic broken: ")
    assert count == "klamm: 2 records printed, 2 could not be decoded"
    done = klamm("consume", "broken", "--raw", "-f", r"%o\n")
    assert (done.status, done.out) == (0, "0\n1\n2\n3\n")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("produce", "t", "--raw", "--json"), "produce: --raw and --json exclude each other"),
        (("produce", "t", "-k", ":", "--key", "a"), "produce: --key and -k exclude each other"),
        (("produce", "t", "--json", "-k", ":"), "produce: -k: with --json the key is in the record"),
        (("produce", "t", "--csv", "-k", ":"), "produce: -k: with --csv the key is a column"),
        (("produce", "t", "--raw", "--key-field", "a"), "produce: --key-field: --raw values have no fields"),
        (("produce", "t", "-H", "a"), "-H a: expected NAME=VALUE"),
        (("produce", "t", "--on-bad", "stop"), "--on-bad: expected fail or skip, got 'stop'"),
        (("produce", "t", "--csv", "--delimiter", ",,"), "--delimiter: expected one character, got ',,'"),
        (("produce", "t", "--columns", "a,,b"), "--columns: expected names separated by commas"),
        (("consume", "t", "--from", "first"), "--from: expected earliest, latest"),
        (("consume", "t", "--follow", "--until", "5"), "consume: --follow and --until exclude each other"),
        (("consume", "t", "-f", "%s"), "-f, character 1: %s is kcat's; here it is %v"),
        (("consume", "t", "--partitions", "a"), "--partitions: expected numbers separated by commas"),
        (("consume", "t", "--grep", "("), "--grep: '(' is no regular expression"),
        (("consume", "t", "-g", "x", "--from", "-5"), "--from -5: group 'x' begins at its committed offsets"),
    ],
)
def test_wrong_options_are_one_line(klamm: Klamm, arguments: tuple[str, ...], why: str) -> None:
    done = klamm(*arguments)
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert done.err.startswith(f"klamm: {why}")


def test_topics_partitions_and_files_that_are_not_there(klamm: Klamm, folder: Path, topic: str) -> None:
    wrong = (
        (("produce", "nope", lines(folder, "a")), "there is no topic 'nope'"),
        (("produce", topic, "no-such-file"), "klamm: no-such-file: No such file or directory"),
        (("produce", topic, "input", "-p", "3"), f"topic '{topic}' has 1 partition; there is no 3"),
        (("produce", topic, "input", "--key-field", "a"), "has no schema, so its values have no fields"),
        (("consume", topic, "nope"), "there is no topic 'nope'"),
        (("consume", topic, "--partitions", "3"), f"--partitions 3: topic '{topic}' has the partitions 0 to 0"),
    )
    for arguments, why in wrong:
        done = klamm(*arguments)
        assert done.status in (1, 2)
        assert why in done.err
        assert done.err.count("\n") == 1, done.err


# -- pipes and terminals


def spawn(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([KLAMM, *arguments], **options)


def test_a_full_disk_is_one_line(topic: str, folder: Path) -> None:
    with Producer(folder / "klamm.yaml") as producer:
        producer.send_raw(topic, [b"1"]).result(60)
    with Path("/dev/full").open("w") as full:
        reading = spawn("consume", topic, stdout=full, stderr=subprocess.PIPE)
        _, shown = reading.communicate(timeout=60)
    assert (reading.returncode, shown) == (1, b"klamm: standard output: No space left on device\n")


def test_streams_that_are_closed(topic: str, folder: Path, client: ClusterClient) -> None:
    closed = subprocess.run(["/bin/sh", "-c", f'"{KLAMM}" produce {topic} <&-'], stderr=subprocess.PIPE, check=False)
    words = b"klamm: the standard input is closed; name a file, or pipe the lines to this command\n"
    assert (closed.returncode, closed.stderr) == (1, words)
    silent = subprocess.run(["/bin/sh", "-c", f'echo 1 | "{KLAMM}" produce {topic} >&- 2>&-'], check=False)
    read = subprocess.run(["/bin/sh", "-c", f'"{KLAMM}" consume {topic} >&-'], stderr=subprocess.PIPE, check=False)
    assert (silent.returncode, read.returncode, read.stderr) == (0, 0, b"klamm: 1 record printed\n")


def test_what_a_broker_refuses_is_one_line(topic: str, folder: Path, client: ClusterClient) -> None:
    client.create_topics({f"{topic}-small": NewTopic(1, 1, {"max.message.bytes": "100"})})
    sending = spawn("produce", f"{topic}-small", stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    _, shown = sending.communicate(b"x" * 1000 + b"\n", 60)
    error, count = shown.decode().splitlines()
    assert error.startswith(f"klamm: topic '{topic}-small' partition 0: 1 record was not delivered: ")
    assert (sending.returncode, count) == (1, f"klamm: 0 records sent to {topic}-small")


def test_a_pipe_that_is_closed_is_no_error(topic: str, folder: Path) -> None:
    with Producer(folder / "klamm.yaml") as producer:
        producer.send_raw(topic, [b"%060d" % n for n in range(20_000)]).result(60)
    reading = spawn("consume", topic, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert reading.stdout is not None
    assert reading.stderr is not None
    assert reading.stdout.readline() == b"%060d\n" % 0
    reading.stdout.close()
    assert (reading.wait(60), reading.stderr.read()) == (0, b"")
    reading.stderr.close()


def test_ctrl_c_sends_what_was_taken_and_says_how_much(topic: str, client: ClusterClient) -> None:
    sending = spawn("produce", topic, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert sending.stdin is not None
    assert sending.stderr is not None
    sending.stdin.write(b"a\nb\nincomplete")
    sending.stdin.flush()
    tp = TopicPartition(topic, 0)
    eventually(lambda: client.list_offsets({tp: LATEST})[tp][0] == 2, "two records are stored")
    sending.send_signal(signal.SIGINT)
    assert sending.wait(60) == 130
    assert sending.stderr.read() == f"klamm: interrupted; 2 records sent to {topic}\n".encode()
    for stream in (sending.stdin, sending.stderr):
        with contextlib.suppress(BrokenPipeError):
            stream.close()


def test_follow_prints_what_arrives_until_ctrl_c(topic: str, folder: Path) -> None:
    reading = spawn("consume", topic, "--follow", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert reading.stdout is not None
    assert reading.stderr is not None
    with Producer(folder / "klamm.yaml") as producer:
        for n in range(3):
            producer.send(topic, b"%d" % n).result(60)
            assert reading.stdout.readline() == b"%d\n" % n
    reading.send_signal(signal.SIGINT)
    assert (reading.wait(60), reading.stderr.read()) == (130, b"klamm: interrupted; 3 records printed\n")
    reading.stdout.close()
    reading.stderr.close()


def test_a_terminal_gets_no_control_characters(topic: str, folder: Path) -> None:
    with Producer(folder / "klamm.yaml") as producer:
        producer.send_raw(topic, [b"\x1b[31mred\xff", "é\nb".encode()]).result(60)
    controlling, terminal = pty.openpty()
    reading = spawn("consume", topic, "-q", stdout=terminal, stderr=subprocess.DEVNULL)
    os.close(terminal)
    shown = bytearray()
    with contextlib.suppress(OSError):  # EIO: the other end was closed
        while data := os.read(controlling, 4096):
            shown += data
    os.close(controlling)
    assert reading.wait(60) == 0
    assert bytes(shown) == "\\x1b[31mred\\xff\r\né\\nb\r\n".encode()


def test_typed_lines_on_a_terminal_end_with_ctrl_d(topic: str, folder: Path, client: ClusterClient) -> None:
    controlling, terminal = pty.openpty()
    sending = spawn("produce", topic, stdin=terminal, stderr=terminal)
    os.close(terminal)
    shown = bytearray()

    def drain() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(controlling, 4096):
                shown.extend(data)

    reader = threading.Thread(target=drain)
    reader.start()
    eventually(lambda: b"Ctrl-D" in shown, "the command waits for input")
    os.write(controlling, b"typed\n\x04")
    assert sending.wait(60) == 0
    reader.join()
    os.close(controlling)
    assert b"klamm: each line is a value; Ctrl-D ends the input" in shown
    assert f"klamm: 1 record sent to {topic}".encode() in shown


# -- the clients' parts


def test_raw_records_are_sent_as_lists(topic: str, folder: Path, client: ClusterClient) -> None:
    client.create_topics({f"{topic}-3": NewTopic(3, 1, {"retention.ms": "-1"})})
    with Producer(folder / "klamm.yaml") as producer:
        keys = [None if n % 5 == 0 else b"k%d" % (n % 7) for n in range(5000)]
        values = [None if n % 11 == 0 else b"v%d" % n for n in range(5000)]
        stamps = [1000 + n for n in range(5000)]
        sent = producer.send_raw(f"{topic}-3", values, keys=keys, timestamps_ms=stamps, headers=[("h", b"1")]).result(
            60
        )
        one_by_one = [producer.send(f"{topic}-3", b"", key=b"k%d" % n).result(60) for n in range(7)]
    assert sent.records == 5000
    partition_of = {b"k%d" % n: metadata.partition for n, metadata in enumerate(one_by_one)}
    with Consumer(folder / "klamm.yaml") as consumer:
        consumer.assign(client.partitions(f"{topic}-3"))
        for tp in client.partitions(f"{topic}-3"):
            consumer.seek(tp, 0)
        found = []
        for record in consumer:
            found.append(record)
            if len(found) == 5007:
                break
    rows = {r.timestamp_ms - 1000: r for r in found if r.timestamp_ms < 100_000}
    assert [(rows[n].key, rows[n].value) for n in range(5000)] == list(zip(keys, values, strict=True))
    assert all(r.headers == (("h", b"1"),) for r in rows.values())
    assert all(partition_of[r.key] == r.partition for r in rows.values() if r.key is not None)


def test_a_loop_over_a_consumer_commits_what_it_has_done(topic: str, folder: Path, client: ClusterClient) -> None:
    with Producer(folder / "klamm.yaml") as producer:
        producer.send_raw(topic, [b"%d" % n for n in range(10)]).result(60)
    settings = load_settings(folder / "klamm.yaml")
    reset = settings.consumer.model_copy(update={"auto_offset_reset": "earliest"})
    tp = TopicPartition(topic, 0)
    assert client.list_offsets({tp: EARLIEST})[tp][0] == 0
    with Consumer(settings.with_(consumer=reset), group=f"loop-{topic}", topics=[topic]) as consumer:
        for record in consumer:
            if record.offset == 3:
                break
        assert next(iter(consumer)).offset == 4
    assert client.fetch_offsets(f"loop-{topic}")[tp].offset == 5
    assert list(consumer_after_close(consumer)) == []


def consumer_after_close(consumer: Consumer) -> Iterator[Any]:
    """Returns what a loop over a closed consumer gets: an error, as `poll` raises it."""
    with pytest.raises(Exception, match="closed"):
        yield from consumer
