"""The contract of every sink, run over the built-in one and the one of the example package."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from klamm.core.errors import KlammError
from klamm.core.interfaces.sink import BadRecords, QuarantineSink, Sink, TopicIdSink
from klamm.core.plugins import plugin_host
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import ConsumerRecord

EXTRAS = Path(__file__).resolve().parents[2] / "examples" / "plugins" / "klamm-extras"
Row = tuple[str, int, int, Any]


@dataclass
class Case:
    """One sink; `read` gives (topic, partition, offset, value) of all that is in the place."""

    name: str
    place: Path
    read: Callable[[Path], list[Row]]

    def make(self) -> Sink:
        return plugin_host(("klamm_extras",)).sinks.create(self.name, {"path": str(self.place)})

    def open(self, topic_id: int | None = None) -> Sink:
        sink = self.make()
        sink.open()
        if topic_id is not None:
            assert isinstance(sink, TopicIdSink)
            sink.topic_ids({"t": UUID(int=topic_id)})
        return sink

    def rows(self) -> list[Row]:
        return self.read(self.place)


def read_files(folder: Path) -> list[Row]:
    rows = []
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or path.name == ".topic_id":
            continue
        assert path.suffix == ".jsonl", f"left behind: {path}"
        for line in path.read_text().splitlines():
            said = json.loads(line)
            rows.append((path.parent.parent.name, int(path.parent.name), said["offset"], said["value"]))
    return rows


def read_table(path: Path) -> list[Row]:
    database = sqlite3.connect(path)
    rows = database.execute('SELECT topic, partition, "offset", value FROM records ORDER BY 1, 2, 3').fetchall()
    database.close()
    return [(t, p, o, v.decode() if isinstance(v, bytes) else v) for t, p, o, v in rows]


@pytest.fixture(params=["files", "sqlite"])
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.syspath_prepend(str(EXTRAS))
    if request.param == "files":
        return Case("files", tmp_path / "out", read_files)
    return Case("sqlite", tmp_path / "out.db", read_table)


def record(offset: int, partition: int = 0, value: Any = None, topic: str = "t") -> ConsumerRecord:
    said = f"{topic}{partition}@{offset}".encode() if value is None else value
    return ConsumerRecord(topic, partition, offset, 1_700_000_000_000 + offset, b"k", said, (("h", b"x"),))


def row(offset: int, partition: int = 0, topic: str = "t") -> Row:
    return (topic, partition, offset, f"{topic}{partition}@{offset}")


def test_what_was_flushed_is_there_in_order(case: Case) -> None:
    """Hook `klamm_sinks`."""
    sink = case.open()
    sink.write([record(0), record(1), record(0, 1)])
    sink.write([record(2), record(5, topic="u")])
    sink.flush()
    assert sorted(case.rows()) == [row(0), row(1), row(2), row(0, 1), row(5, topic="u")]
    sink.close()


def test_several_flushes(case: Case) -> None:
    sink = case.open()
    for offset in range(5):
        sink.write([record(offset), record(offset, 1)])
        sink.flush()
    sink.close()
    assert sorted(case.rows()) == sorted(row(offset, p) for p in (0, 1) for offset in range(5))


def test_what_is_delivered_again_after_a_flush_is_there_once(case: Case) -> None:
    """The process died between flush and commit."""
    sink = case.open()
    sink.write([record(0), record(1)])
    sink.flush()
    sink.close()
    again = case.open()
    again.write([record(0), record(1), record(2)])
    again.flush()
    again.write([record(1), record(2), record(3)])
    again.flush()
    again.close()
    assert case.rows() == [row(0), row(1), row(2), row(3)]


def test_what_was_not_flushed_is_delivered_again_and_there_once(case: Case) -> None:
    sink = case.open()
    sink.write([record(0), record(1)])
    sink.close()
    again = case.open()
    again.write([record(0), record(1)])
    again.flush()
    again.close()
    assert case.rows() == [row(0), row(1)]


def test_a_topic_that_was_created_again_begins_at_its_first_offset(case: Case) -> None:
    for topic_id, offsets in ((1, (0, 1)), (2, (0, 1, 2)), (2, (1, 2, 3)), (1, (1, 2))):
        sink = case.open(topic_id)
        sink.write([record(offset, value=f"{topic_id}@{offset}") for offset in offsets])
        sink.flush()
        sink.close()
    assert sorted(value for *_, value in case.rows()) == ["1@0", "1@1", "1@2", "2@0", "2@1", "2@2", "2@3"]


def test_files_without_an_id_are_those_of_the_first_one_told(tmp_path: Path) -> None:
    """As earlier versions wrote them: delivered again, their records are there once."""
    case = Case("files", tmp_path / "out", read_files)
    for topic_id in (None, 1, 2):
        sink = case.open(topic_id)
        sink.write([record(0)])
        sink.flush()
    assert case.rows() == [row(0), row(0)]


def test_what_cannot_be_read_is_set_aside_once(tmp_path: Path) -> None:
    case = Case("files", tmp_path / "out", read_files)
    for _ in range(2):
        sink = case.open(1)
        assert isinstance(sink, QuarantineSink)
        sink.quarantine(BadRecords(TopicPartition("t", 0), 3, 5, "no gzip", value=b"\xff\x00", is_batch=True))
        sink.flush()
        sink.close()
    (aside,) = (tmp_path / "out" / "t" / "_bad" / "0").iterdir()
    assert json.loads(aside.read_text()) == {
        "from": 3, "to": 5, "reason": "no gzip", "batch": True, "key": None, "value": "\u00ff\u0000"
    }  # fmt: skip


def test_holes_between_offsets(case: Case) -> None:
    sink = case.open()
    sink.write([record(3), record(9)])
    sink.flush()
    sink.write([record(20)])
    sink.flush()
    sink.close()
    assert case.rows() == [row(3), row(9), row(20)]


def test_two_tasks_with_a_partition_each(case: Case) -> None:
    first, second = case.open(), case.open()
    first.write([record(0)])
    first.flush()
    second.write([record(0, 1)])
    second.flush()
    first.close()
    second.close()
    assert case.rows() == [row(0), row(0, 1)]


def test_any_value(case: Case) -> None:
    """None, text, numbers, nested dicts, bytes that are no text."""
    sink = case.open()
    for offset, value in enumerate(["text", 7, {"a": [1, {"b": None}]}, b"\xff\xfe"]):
        sink.write([record(offset, value=value)])
    sink.write([ConsumerRecord("t", 0, 4, -1, None, None)])
    sink.flush()
    sink.close()
    if case.name == "files":
        assert [value for *_, value in case.rows()] == ["text", 7, {"a": [1, {"b": None}]}, "\u00ff\u00fe", None]


def test_a_flush_of_nothing_and_closing_twice(case: Case) -> None:
    sink = case.open()
    sink.flush()
    sink.close()
    sink.close()
    assert case.rows() == []


def test_a_place_that_cannot_be_written_is_one_line(case: Case, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sink = Case(case.name, tmp_path / "file" / "below", case.read).make()
    with pytest.raises(KlammError) as caught:
        sink.open()
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_its_keys_are_checked(case: Case) -> None:
    with pytest.raises(ValidationError, match="paht"):
        plugin_host(("klamm_extras",)).sinks.create(case.name, {"paht": "x"})
