"""The plan of `klamm groups reset`, its file, and the compare-and-set that carries it out.

The command joins the group as its only member before it writes. While it is the only member, the coordinator refuses
all other commits: of consumers outside the group (UNKNOWN_MEMBER_ID) and of registry members
(INCONSISTENT_GROUP_PROTOCOL); a consumer that joins must wait for the next generation, which fences the command's
own commit (ILLEGAL_GENERATION). So nothing can be committed between the command's last read of the offsets and its
write.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...config.limits import INT_MAX, LONG_MAX
from ...errors import BrokerError, ConfigError, ErrorCode, KlammError
from ...groups.membership.classic_calls import ClassicCalls, ClassicSettings, Joined
from ...interfaces.offsets import CommittedOffset
from ...records.partition import TopicPartition

if TYPE_CHECKING:
    from ...client.cluster_client import ClusterClient

__all__ = ["MEMBERS_LIVE", "PartitionReset", "compare_and_set", "read_file", "write_file"]

MEMBERS_LIVE: Final = "stop them first; one that was killed counts until its session times out"
_SESSION_S: Final = 10.0
_STRATEGIES: Final = ("range", "roundrobin", "sticky", "cooperative-sticky", "stream")
"""Includes those of other clients: a consumer that joins in these seconds must find a strategy that it supports, or
it ends."""
_FENCED: Final = frozenset({ErrorCode.illegal_generation, ErrorCode.rebalance_in_progress, ErrorCode.unknown_member_id})


@dataclass(frozen=True, slots=True)
class PartitionReset:
    """The reset of one partition. `committed`: the group's offset now, None without one. `start` and `end` are the
    log's; `wanted` may be outside of them."""

    partition: TopicPartition
    committed: int | None
    start: int
    end: int
    wanted: int

    @property
    def target(self) -> int:
        """The offset that is written: `wanted`, moved into the log if it is outside."""
        return min(max(self.wanted, self.start), self.end)

    @property
    def skipped(self) -> int | None:
        """Offsets in the log that the group has not read and will not read; None without a committed offset."""
        return None if self.committed is None else max(self.target - max(self.committed, self.start), 0)

    @property
    def repeated(self) -> int | None:
        """Offsets in the log that the group has read and will read again; None without a committed offset."""
        return None if self.committed is None else max(min(self.committed, self.end) - self.target, 0)

    @property
    def deleted(self) -> int:
        """The number of offsets, from the committed or the wanted one on, that are no longer in the log."""
        return max(self.start - min(self.wanted, self.start if self.committed is None else self.committed), 0)

    def row(self) -> dict[str, Any]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "committed": self.committed,
            "target": self.target,
            "skipped": self.skipped,
            "repeated": self.repeated,
            "deleted": self.deleted,
            "wanted": self.wanted,
            "start": self.start,
            "end": self.end,
        }


def compare_and_set(client: ClusterClient, group: str, plan: Iterable[PartitionReset]) -> None:
    """Commits the targets that differ, if all committed offsets are still those of the plan and the group has no
    other member. Otherwise raises `KlammError`, and nothing is changed."""
    planned = list(plan)
    ids = client.topic_ids({each.partition.topic for each in planned})
    targets = {
        each.partition: CommittedOffset(each.target, topic_id=ids.get(each.partition.topic))
        for each in planned
        if each.target != each.committed
    }
    try:
        with _only_member(client, group) as member:
            committed = client.fetch_offsets(group)
            for each in planned:
                now = committed.get(each.partition)
                if (None if now is None else now.offset) != each.committed:
                    raise KlammError(
                        f"group {group!r}: {each.partition} has the committed offset {_or_none(now)} now, and had "
                        f"{_none(each.committed)} when the plan was made; nothing was changed: plan again"
                    )
            client.commit_offsets(group, targets, member_id=member.member_id, generation=member.generation)
    except BrokerError as error:
        if error.code in _FENCED or error.code is ErrorCode.inconsistent_group_protocol:
            raise _joined_meanwhile(group) from error
        raise


@contextmanager
def _only_member(client: ClusterClient, group: str) -> Iterator[Joined]:
    """Joins the group, and leaves it at the end. Raises `KlammError` if it has another member."""
    settings = ClassicSettings(
        group, {}, _STRATEGIES, session_timeout_s=_SESSION_S, max_poll_interval_s=_SESSION_S,
        request_timeout_s=client.request_timeout_s,
    )  # fmt: skip
    calls = ClassicCalls(client, settings)
    names: list[str] = []
    try:
        joined = calls.join("", names.append)
        names.append(joined.member_id)
        if not joined.leads or set(joined.subscriptions) != {joined.member_id}:
            raise _joined_meanwhile(group)
        calls.sync(joined, {joined.member_id: b""})
        yield joined
    finally:
        if names:
            with suppress(KlammError):  # its session ends by itself
                calls.leave(names[-1])


def _joined_meanwhile(group: str) -> KlammError:
    return KlammError(f"group {group!r} has live members, which joined meanwhile; nothing was changed: {MEMBERS_LIVE}")


def _or_none(committed: CommittedOffset | None) -> str:
    return _none(None if committed is None else committed.offset)


def _none(offset: int | None) -> str:
    return "none" if offset is None else str(offset)


def write_file(file: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Writes lines `topic,partition,offset`, as `kafka-consumer-groups.sh --export` does, to a new file."""
    try:
        with file.open("x", newline="", encoding="utf-8") as out:
            rows = csv.writer(out, lineterminator="\n")
            rows.writerows((tp.topic, tp.partition, offset) for tp, offset in sorted(offsets.items()))
    except FileExistsError:
        raise ConfigError(f"{file}: already exists; it was not changed") from None


def read_file(file: Path) -> dict[TopicPartition, int]:
    """Returns the offsets of a file that `write_file` or Kafka's tool has written. Raises `ConfigError` with the line
    that is wrong."""
    offsets: dict[TopicPartition, int] = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; `klamm groups offsets GROUP --save FILE` writes one") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: is not text in UTF-8") from None
    for number, row in enumerate(csv.reader(lines), 1):
        if not row:
            continue
        try:
            topic, partition, offset = (cell.strip() for cell in row)
            tp, at = TopicPartition(topic, _number(partition, INT_MAX)), _number(offset, LONG_MAX)
        except ValueError:
            raise ConfigError(f"{file}:{number}: expected topic,partition,offset, got {lines[number - 1]!r}") from None
        if tp in offsets:
            raise ConfigError(f"{file}:{number}: {tp} is there twice")
        offsets[tp] = at
    if not offsets:
        raise ConfigError(f"{file}: has no lines; expected topic,partition,offset in each")
    return offsets


def _number(text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text[:20]) > most:
        raise ValueError(text)
    return int(text)
