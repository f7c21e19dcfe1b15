"""Positions in a topic as a command line names them: `earliest`, `latest`, `-10`, an offset, a time, `-1h`."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from ...config.section import LONG_MAX
from ...config.units import parse_time
from ...errors import ConfigError
from ...records.partition import TopicPartition

FORMS: Final = "earliest, latest, -10 (the last ten of each partition), an offset, a time (2026-11-28T10:00Z), or -1h"
_ENDS: Final = ("earliest", "latest")
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class PositionKind(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    BEFORE_END = "before the end"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a partition. `number`: an offset, how many offsets before the end, or milliseconds since 1970."""

    kind: PositionKind
    number: int = 0


class OffsetLister(Protocol):
    """The part of `ClusterClient` that finds offsets by time."""

    def list_offsets(self, timestamps: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, tuple[int, int]]: ...


def parse_position(option: str, text: str, now_ms: Callable[[], int]) -> Position:
    """Returns the position that `text` names; raises `ConfigError`, which names the option and the accepted forms.

    A number is an offset; `@` and a number is a time in milliseconds since 1970; a time without a zone is UTC.
    """
    given = text.strip()
    if given in _ENDS:
        return Position(PositionKind(given))
    if match := re.fullmatch(r"(-?)(\d{1,19})", given):
        number = int(match[2])
        if number <= LONG_MAX and (number or not match[1]):
            return Position(PositionKind.BEFORE_END if match[1] else PositionKind.OFFSET, number)
    elif match := re.fullmatch(r"-(\d{1,9}[a-z]+)", given):
        with suppress(ValueError):
            return Position(PositionKind.TIME, max(now_ms() - parse_time(match[1]), 0))
    elif match := re.fullmatch(r"@(\d{1,15})", given):
        return Position(PositionKind.TIME, int(match[1]))
    elif re.match(r"\d{4}-", given):
        moment = moment_ms(given)
        if moment is not None:
            return Position(PositionKind.TIME, max(moment, 0))
    raise ConfigError(f"{option}: expected {FORMS}; got {text!r}")


def moment_ms(text: str) -> int | None:
    """Returns the milliseconds since 1970 (negative before) of an ISO 8601 text, UTC if it has no zone; None if it
    is no such text."""
    try:
        parsed = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    zoned = parsed if parsed.tzinfo else parsed.replace(tzinfo=dt.UTC)
    return (zoned - _EPOCH) // dt.timedelta(milliseconds=1)


def resolve(
    position: Position,
    client: OffsetLister,
    firsts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Returns the position's offset in each partition, given the first offsets and the ends. For a time it is the
    offset of the first record at or after it, or the end if there is none. A given offset is returned unchanged."""
    match position.kind:
        case PositionKind.EARLIEST:
            return dict(firsts)
        case PositionKind.LATEST:
            return dict(ends)
        case PositionKind.BEFORE_END:
            return {tp: max(end - position.number, firsts[tp]) for tp, end in ends.items()}
        case PositionKind.OFFSET:
            return dict.fromkeys(ends, position.number)
        case PositionKind.TIME:
            found = client.list_offsets(dict.fromkeys(ends, position.number))
            return {tp: end if found[tp][0] < 0 else found[tp][0] for tp, end in ends.items()}
