"""The contract of a sink, on the built-in one; `tests/testing` runs it on the one of the example package too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from klamm.core.interfaces.sink import BadRecords, QuarantineSink, Sink
from klamm.core.plugins import plugin_host
from klamm.core.records.partition import TopicPartition
from klamm.testing.contracts import ExactlyOnceSinkContract
from klamm.testing.contracts.sink import SinkRow, sink_record, sink_row


class TestFiles(ExactlyOnceSinkContract):
    """Hook `klamm_sinks`."""

    def make_sink(self, place: Path) -> Sink:
        return plugin_host().sinks.create("files", {"path": str(place)})

    def rows(self, place: Path) -> list[SinkRow]:
        rows = []
        for path in sorted(place.rglob("*")):
            if path.is_dir() or path.name == ".topic_id":
                continue
            assert path.suffix == ".jsonl", f"left behind: {path}"
            for line in path.read_text().splitlines():
                stored = json.loads(line)
                rows.append((path.parent.parent.name, int(path.parent.name), stored["offset"], stored["value"]))
        return rows

    def test_files_without_an_id_are_those_of_the_first_one_told(self, place: Path) -> None:
        """As of a broker that names no ids: delivered again, their records are there once."""
        for topic_id in (None, 1, 2):
            sink = self.open(place, topic_id)
            sink.write([sink_record(0)])
            sink.flush()
        assert self.rows(place) == [sink_row(0), sink_row(0)]

    def test_what_cannot_be_read_is_set_aside_once(self, place: Path) -> None:
        for _ in range(2):
            sink = self.open(place, 1)
            assert isinstance(sink, QuarantineSink)
            sink.quarantine(BadRecords(TopicPartition("t", 0), 3, 5, "no gzip", value=b"\xff\x00", is_batch=True))
            sink.flush()
            sink.close()
        (aside,) = (place / "t" / "_bad" / "0").iterdir()
        assert json.loads(aside.read_text()) == {
            "from": 3, "to": 5, "reason": "no gzip", "batch": True, "key": None, "value": "\u00ff\u0000"
        }  # fmt: skip

    def test_any_value(self, place: Path) -> None:
        """Text, numbers, nested dicts, bytes that are no text, None."""
        values = ["text", 7, {"a": [1, {"b": None}]}, b"\xff\xfe"]
        self.write(place, [sink_record(offset, value=value) for offset, value in enumerate(values)])
        assert [value for *_, value in self.rows(place)] == ["text", 7, {"a": [1, {"b": None}]}, "\u00ff\u00fe"]

    def test_its_keys_are_checked(self) -> None:
        with pytest.raises(ValidationError, match="paht"):
            plugin_host().sinks.create("files", {"paht": "x"})
