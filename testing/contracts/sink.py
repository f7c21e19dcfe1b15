"""The contract of `klamm.plugin.Sink`, and of sinks that hold each record once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from klamm.core.errors import KlammError
from klamm.core.interfaces.sink import Sink, TopicIdSink
from klamm.core.records.record import ConsumerRecord

__all__ = ["ExactlyOnceSinkContract", "SinkContract", "SinkRow", "sink_record", "sink_row"]

SinkRow = tuple[str, int, int, Any]
"""Topic, partition, offset and value of a record that a sink has stored."""


def sink_record(offset: int, partition: int = 0, value: Any = None, topic: str = "t") -> ConsumerRecord:
    """Returns a record; without a `value`, with the one that `sink_row` expects."""
    value = f"{topic}{partition}@{offset}".encode() if value is None else value
    return ConsumerRecord(topic, partition, offset, 1_700_000_000_000 + offset, b"k", value, (("h", b"x"),))


def sink_row(offset: int, partition: int = 0, topic: str = "t") -> SinkRow:
    return (topic, partition, offset, f"{topic}{partition}@{offset}")


class SinkContract:
    """The suite of a sink that writes each record at least once. Define `make_sink` and `rows`."""

    def make_sink(self, place: Path) -> Sink:
        """Returns a sink, not opened, that stores at `place`: a path that does not exist, usable for a file or a
        folder, or as a name."""
        raise NotImplementedError(f"{type(self).__name__} needs a method `make_sink(place)` that returns a sink")

    def rows(self, place: Path) -> Iterable[SinkRow]:
        """Returns (topic, partition, offset, value) of all that is stored at `place`; values of bytes as text."""
        raise NotImplementedError(f"{type(self).__name__} needs a method `rows(place)` that reads what is stored")

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        return tmp_path / "out"

    def open(self, place: Path) -> Sink:
        sink = self.make_sink(place)
        sink.open()
        return sink

    def write(self, place: Path, *batches: Iterable[ConsumerRecord]) -> None:
        """Opens a sink, writes and flushes each batch, and closes it."""
        sink = self.open(place)
        for batch in batches:
            sink.write(list(batch))
            sink.flush()
        sink.close()

    def test_what_was_flushed_is_there_in_order(self, place: Path) -> None:
        sink = self.open(place)
        sink.write([sink_record(0), sink_record(1), sink_record(0, 1)])
        sink.write([sink_record(2), sink_record(5, topic="u")])
        sink.flush()
        stored = list(self.rows(place))
        assert sorted(stored) == [sink_row(0), sink_row(1), sink_row(2), sink_row(0, 1), sink_row(5, topic="u")]
        assert [row for row in stored if row[:2] == ("t", 0)] == [sink_row(0), sink_row(1), sink_row(2)]
        sink.close()

    def test_several_flushes(self, place: Path) -> None:
        self.write(place, *([sink_record(offset), sink_record(offset, 1)] for offset in range(5)))
        assert sorted(self.rows(place)) == sorted(sink_row(offset, p) for p in (0, 1) for offset in range(5))

    def test_what_is_stored_stays_when_it_is_opened_again(self, place: Path) -> None:
        self.write(place, [sink_record(0), sink_record(1)])
        self.write(place, [sink_record(2)])
        assert sorted(self.rows(place)) == [sink_row(0), sink_row(1), sink_row(2)]

    def test_what_was_not_flushed_may_be_written_again(self, place: Path) -> None:
        """The process died before the flush: the records are delivered again, and each is there at least once."""
        sink = self.open(place)
        sink.write([sink_record(0), sink_record(1)])
        sink.close()
        self.write(place, [sink_record(0), sink_record(1)])
        assert set(self.rows(place)) == {sink_row(0), sink_row(1)}

    def test_holes_between_offsets(self, place: Path) -> None:
        self.write(place, [sink_record(3), sink_record(9)], [sink_record(20)])
        assert list(self.rows(place)) == [sink_row(3), sink_row(9), sink_row(20)]

    def test_two_tasks_with_a_partition_each(self, place: Path) -> None:
        first, second = self.open(place), self.open(place)
        first.write([sink_record(0)])
        first.flush()
        second.write([sink_record(0, 1)])
        second.flush()
        first.close()
        second.close()
        assert sorted(self.rows(place)) == [sink_row(0), sink_row(0, 1)]

    def test_a_tombstone(self, place: Path) -> None:
        """A record without a key and a value, at a time before the epoch."""
        self.write(place, [ConsumerRecord("t", 0, 4, -1, None, None)])
        assert [row[:3] for row in self.rows(place)] == [("t", 0, 4)]

    def test_a_flush_of_nothing_and_closing_twice(self, place: Path) -> None:
        sink = self.open(place)
        sink.flush()
        sink.close()
        sink.close()
        assert list(self.rows(place)) == []

    def test_a_place_that_cannot_be_written_is_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises((KlammError, OSError)) as caught:
            self.open(tmp_path / "file" / "below")
        assert str(tmp_path) in str(caught.value)
        assert "\n" not in str(caught.value)


class ExactlyOnceSinkContract(SinkContract):
    """The suite of a sink that stores its own positions, so that each redelivered record is stored once. It is a
    `TopicIdSink`."""

    def open(self, place: Path, topic_id: int | None = None) -> Sink:
        sink = super().open(place)
        if topic_id is not None:
            assert isinstance(sink, TopicIdSink)
            sink.topic_ids({"t": UUID(int=topic_id)})
        return sink

    def test_what_is_delivered_again_after_a_flush_is_there_once(self, place: Path) -> None:
        """The process died between flush and commit."""
        self.write(place, [sink_record(0), sink_record(1)])
        again = [[sink_record(0), sink_record(1), sink_record(2)], [sink_record(1), sink_record(2), sink_record(3)]]
        self.write(place, *again)
        assert list(self.rows(place)) == [sink_row(0), sink_row(1), sink_row(2), sink_row(3)]

    def test_what_was_not_flushed_is_delivered_again_and_there_once(self, place: Path) -> None:
        sink = self.open(place)
        sink.write([sink_record(0), sink_record(1)])
        sink.close()
        self.write(place, [sink_record(0), sink_record(1)])
        assert list(self.rows(place)) == [sink_row(0), sink_row(1)]

    def test_a_topic_that_was_created_again_begins_at_its_first_offset(self, place: Path) -> None:
        for topic_id, offsets in ((1, (0, 1)), (2, (0, 1, 2)), (2, (1, 2, 3)), (1, (1, 2))):
            sink = self.open(place, topic_id)
            sink.write([sink_record(offset, value=f"{topic_id}@{offset}") for offset in offsets])
            sink.flush()
            sink.close()
        assert sorted(value for *_, value in self.rows(place)) == ["1@0", "1@1", "1@2", "2@0", "2@1", "2@2", "2@3"]
