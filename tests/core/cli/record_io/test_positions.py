"""Positions as a command line names them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from klamm.core.cli.record_io.positions import Position, PositionKind, moment_ms, parse_position, resolve
from klamm.core.errors import ConfigError
from klamm.core.records.partition import TopicPartition

NOW = 1_795_860_000_000
HOUR = 3_600_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", Position(PositionKind.EARLIEST)),
        ("latest", Position(PositionKind.LATEST)),
        ("0", Position(PositionKind.OFFSET, 0)),
        ("1200", Position(PositionKind.OFFSET, 1200)),
        ("-10", Position(PositionKind.BEFORE_END, 10)),
        ("-1h", Position(PositionKind.TIME, NOW - HOUR)),
        ("-90s", Position(PositionKind.TIME, NOW - 90_000)),
        ("-2d", Position(PositionKind.TIME, NOW - 48 * HOUR)),
        ("@1000", Position(PositionKind.TIME, 1000)),
        ("2026-11-28", Position(PositionKind.TIME, 1_795_824_000_000)),
        ("2026-11-28T10:00", Position(PositionKind.TIME, 1_795_824_000_000 + 10 * HOUR)),
        ("2026-11-28T10:00:00.500Z", Position(PositionKind.TIME, 1_795_824_000_500 + 10 * HOUR)),
        ("2026-11-28T10:00+02:00", Position(PositionKind.TIME, 1_795_824_000_000 + 8 * HOUR)),
    ],
)
def test_a_position_is_parsed(text: str, expected: Position) -> None:
    assert parse_position("--from", text, lambda: NOW) == expected


@pytest.mark.parametrize("text", ["", "first", "1.5", "-0", "-1y", "2026-13-01", "28.11.2026", "9" * 30, "--", "@x"])
def test_another_text_is_an_error_with_the_forms(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--until: expected earliest, latest, -10 .*; got "):
        parse_position("--until", text, lambda: NOW)


def test_positions_are_resolved_in_each_partition() -> None:
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    firsts, ends = {a: 5, b: 0}, {a: 100, b: 3}

    class Lister:
        def list_offsets(self, timestamps: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, tuple[int, int]]:
            assert timestamps == {a: 77, b: 77}
            return {a: (42, 80), b: (-1, -1)}

    def at(kind: PositionKind, number: int = 0) -> dict[TopicPartition, int]:
        return resolve(Position(kind, number), Lister(), firsts, ends)

    assert at(PositionKind.EARLIEST) == {a: 5, b: 0}
    assert at(PositionKind.LATEST) == {a: 100, b: 3}
    assert at(PositionKind.BEFORE_END, 10) == {a: 90, b: 0}
    assert at(PositionKind.BEFORE_END, 99) == {a: 5, b: 0}
    assert at(PositionKind.OFFSET, 7) == {a: 7, b: 7}
    assert at(PositionKind.TIME, 77) == {a: 42, b: 3}


def test_a_moment_is_exact_to_the_millisecond() -> None:
    assert moment_ms("2038-04-04T02:04:16.232Z") == 2_153_959_456_232  # 1 less, if it is computed with floats
    assert moment_ms("1969-12-31T23:59:59.999Z") == -1
    assert parse_position("--from", "1960-01-01", lambda: 0) == Position(PositionKind.TIME, 0)
