"""What brokers report about their logs and about each other, in ephemeral paths.

`/brokers/recovered/<id>`: where logs of partitions without a leader end (docs/replication.md, R7).
`/brokers/offline/<id>`: partitions whose log is offline. A report that is too long for one path has its other parts in
`<id>-1`, `<id>-2`, …, and is replaced path by path: each row counts by itself. `/admin/suspects/<incarnation>`: a
registration whose broker refuses connections.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from ...errors import CoordinationError
from ...interfaces.coordination import (
    BadVersionError,
    Check,
    CoordinationUnavailableError,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Operation,
    SessionExpiredError,
    Set,
)
from ...records.partition import TopicPartition
from ...replication.elections import RecoveredEnd
from ..changes import incarnation_path
from ..tree import paths
from ..tree.steps import Session, Steps, children, find, get_many, transact

_ATTEMPTS = 10
_PART_BYTES: Final = 500_000
"""About the size of one part of a report; a path takes 1 MB."""
Ends = Mapping[TopicPartition, Mapping[int, RecoveredEnd]]
"""By partition and broker."""


@dataclass(frozen=True, slots=True)
class Reports:
    """What brokers have reported about their logs."""

    recovered: Ends = field(default_factory=dict)
    offline: Mapping[int, Collection[TopicPartition]] = field(default_factory=dict)


def report_recovered(
    session: Session, broker_id: int, incarnation: str, ends: Mapping[TopicPartition, RecoveredEnd]
) -> Steps[None]:
    """Replaces the report of the registration `incarnation`. Raises `SessionExpiredError` if that has ended."""
    rows = [
        [tp.topic, tp.partition, end.leader_epoch, end.data_id, end.last_epoch, end.end_offset, end.high_watermark]
        for tp, end in sorted(ends.items())
    ]
    return _report(session, paths.RECOVERED, broker_id, incarnation, rows)


def report_offline(
    session: Session, broker_id: int, incarnation: str, partitions: Collection[TopicPartition]
) -> Steps[None]:
    """As `report_recovered`."""
    rows: list[list[object]] = [[tp.topic, tp.partition] for tp in sorted(partitions)]
    return _report(session, paths.OFFLINE, broker_id, incarnation, rows)


def report_suspect(broker_id: int, incarnation: str) -> Steps[None]:
    """Reports that a broker refuses connections. `broker_id`: the reporting broker."""
    data = json.dumps({"by": broker_id}).encode()
    with suppress(NodeExistsError):  # another broker suspects it too
        yield from transact(Create(paths.suspect(incarnation), data, ephemeral=True))


def _report(
    session: Session, parent: str, broker_id: int, incarnation: str, rows: Sequence[list[object]]
) -> Steps[None]:
    """Replaces the broker's report, whose parts are below `parent`; an empty report has no path."""
    guard = yield from _begun(incarnation)
    wanted = {f"{broker_id}-{n}" if n else str(broker_id): part for n, part in enumerate(_parts(rows))}
    for name, data in wanted.items():
        yield from _replace(session, guard, f"{parent}/{name}", data)
    for name in (yield from children(parent)):
        if name.partition("-")[0] == str(broker_id) and name not in wanted:
            yield from _replace(session, guard, f"{parent}/{name}", None)


def _begun(incarnation: str) -> Steps[Operation]:
    """Begins a report; returns what its writes check. From then on no write of an earlier report can come late.

    Each report raises the version of the registration's incarnation. The versions of its own paths start at 0 each time
    these are created: a write of a dead process, carried out late, replaced the report of the next one by one that
    ended with the dead process's session (seed 9000419).
    """
    path = incarnation_path(incarnation)
    found = yield from find(path)
    if found is None:
        raise SessionExpiredError("this registration has ended")
    version = found[1].version
    yield from transact(Set(path, b"", version))
    return Check(path, version + 1)


def _parts(rows: Sequence[list[object]]) -> Iterator[bytes]:
    """Yields the data of each path."""
    begin = size = 0
    for end, row in enumerate(rows):
        length = len(json.dumps(row, separators=(",", ":")))
        if size + length > _PART_BYTES and end > begin:
            yield _encode(rows[begin:end])
            begin, size = end, 0
        size += length + 1
    if begin < len(rows):
        yield _encode(rows[begin:])


def _encode(rows: Sequence[list[object]]) -> bytes:
    return json.dumps({"version": 1, "partitions": rows}, separators=(",", ":")).encode()


def _replace(session: Session, guard: Operation, path: str, data: bytes | None) -> Steps[None]:
    """Deletes the path and, unless `data` is None, creates it again, so that watches of its parent fire.

    A path of an earlier session is replaced, since it would be deleted with that session (R7).
    """
    for _ in range(_ATTEMPTS):
        operations = [guard]
        found = yield from find(path)
        if found is not None:
            if found[0] == data and found[1].ephemeral_owner == session.session_id:
                return
            operations.append(Delete(path))
        if data is not None:
            operations.append(Create(path, data, ephemeral=True))
        if operations == [guard]:
            return
        try:
            yield from transact(*operations)
        except (NoNodeError, NodeExistsError, BadVersionError):
            continue  # the earlier session has ended in the meantime
        return
    raise CoordinationUnavailableError(f"{path} kept changing for {_ATTEMPTS} attempts")


def read_reports() -> Steps[Reports]:
    """Reads all reports. Call it after reading the states and registrations to which they are applied."""
    recovered: dict[TopicPartition, dict[int, RecoveredEnd]] = {}
    for broker_id, rows in (yield from _read(paths.RECOVERED)):
        for topic, partition, *end in rows:
            leader_epoch, data_id, *offsets = end
            found = RecoveredEnd(int(leader_epoch), str(data_id), *map(int, offsets))
            recovered.setdefault(TopicPartition(topic, partition), {})[broker_id] = found
    offline: dict[int, set[TopicPartition]] = {}
    for broker_id, rows in (yield from _read(paths.OFFLINE)):
        offline.setdefault(broker_id, set()).update(TopicPartition(topic, partition) for topic, partition in rows)
    return Reports(recovered, offline)


def read_suspects() -> Steps[list[str]]:
    """Returns the incarnations that are suspected."""
    return children(paths.SUSPECTS)


def _read(parent: str) -> Steps[list[tuple[int, list[list[Any]]]]]:
    """Returns the broker and the rows of each part; no rows for one that was deleted after the listing."""
    found = []
    names = yield from children(parent)
    for path, (data, _) in (yield from get_many([f"{parent}/{name}" for name in names])).items():
        broker_id = int(path.rpartition("/")[2].partition("-")[0])
        try:
            found.append((broker_id, list(json.loads(data)["partitions"])))
        except (ValueError, KeyError, TypeError) as error:
            raise CoordinationError(f"{path} holds no report: {error!r}") from error
    return found
