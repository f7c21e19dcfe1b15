"""`klamm mirror promote` and `fail-over`: both ways to end a mirror, with what each may lose (docs/mirror.md)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ...client.edges import LATEST
from ...errors import ConfigError, KlammError, describe_failure
from ...records.partition import TopicPartition, counted
from ..options import DEFAULT_CONFIG, TIMEOUT_S, ConfigFile, interval_s, settings_and_client
from ..output import Json, say, say_rows
from .adopt import promotion_starts
from .links import (
    POLL_S,
    WAIT_S,
    DryRun,
    Link,
    Topics,
    change_topics,
    link_of,
    mirror_coordination,
    name_of,
    partitions_of,
    reaches_end,
    source_client,
    topics_of,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...client.cluster_client import ClusterClient
    from ...interfaces.coordination import Coordination

_LARGEST_TIMESTAMP: Final = -3
"""ListOffsets: the first record with the largest timestamp (KIP-734)."""


def promote(
    link: Link,
    topic: Topics = None,
    drain: Annotated[
        bool,
        typer.Option("--drain", help="Wait first until every partition has all that the source has committed."),
    ] = False,
    quiet: Annotated[
        str,
        typer.Option("--quiet", metavar="TIME", help="With --drain: for how long nothing may have arrived."),
    ] = "30s",
    dry_run: DryRun = False,
    config: ConfigFile = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """End the mirror of topics, of all without --topic, so that clients write them here. This cannot be undone: the
    topics go on as ordinary ones.

    Stop the writers at the source first. Refused while records are missing: --drain waits for them, and `fail-over`
    goes on without them.
    """
    quiet_s = interval_s("--quiet", quiet)
    with _ends_of(link, topic, config, asks=not dry_run) as ends:
        if drain and not dry_run:
            ends.drain(quiet_s)
        ends.describe(as_json=as_json and dry_run, silent=as_json)
        if dry_run:
            return
        if not ends.complete:
            raise KlammError(
                f"mirror {link} lacks records of its source, or the source does not answer ({ends.behind}): --drain "
                "waits for what is being copied, `klamm mirror fail-over` goes on without it"
            )
        ends.end(as_json=as_json)


def fail_over(
    link: Link,
    topic: Topics = None,
    dry_run: DryRun = False,
    config: ConfigFile = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """End the mirror of topics, of all without --topic, without waiting for the source, which is lost. This cannot be
    undone.

    Prints for each partition what the source had beyond the mirror when it last answered: these records are missing
    here. What the source has committed since then is not known.
    """
    with _ends_of(link, topic, config, asks=False) as ends:
        ends.describe(as_json=as_json and dry_run, silent=as_json)
        if not dry_run:
            ends.end(as_json=as_json)


class _Ends:
    """The ends of the mirrors of some topics of a link."""

    def __init__(
        self,
        coordination: Coordination,
        client: ClusterClient,
        source: ClusterClient | None,
        link: str,
        topics: Mapping[str, str],
    ) -> None:
        """`source`: a client of the source; None if it is not asked. `topics`: their names at the source, by those
        here."""
        self._coordination = coordination
        self._client = client
        self._source = source
        self._link = link
        self._topics = topics
        self._names = sorted(topics)
        self.rows: list[dict[str, Any]] = []
        self.complete = False
        self.behind = ""
        """Why it is not complete."""

    def _read(self) -> dict[str, Any]:
        return partitions_of(self._coordination, self._link, self._names)

    def drain(self, quiet_s: float) -> None:
        """Waits until nothing is missing, and nothing arrives for `quiet_s`."""
        while True:
            self._catch_up()
            before, until = self._positions(), time.monotonic() + quiet_s
            while before is not None and time.monotonic() < until and self._positions() == before:
                time.sleep(POLL_S)
            if before is not None and self._positions() == before and self._has_all(self._read()):
                return

    def _catch_up(self) -> None:
        """Waits until nothing is missing. Raises `KlammError` once nothing has been copied for `WAIT_S`."""
        ends, until = list[tuple[str, int, int]](), 0.0
        while not self._has_all(found := self._read()):
            before, ends = ends, _ends(found)
            if ends != before:
                until = time.monotonic() + WAIT_S
            elif time.monotonic() > until:
                raise KlammError(
                    f"mirror {self._link} has not caught up, and nothing was copied for {WAIT_S:g} s ({self.behind}); "
                    f"see `klamm mirror status {self._link}`"
                )
            time.sleep(POLL_S)

    def _has_all(self, found: dict[str, Any]) -> bool:
        """Returns True if every partition is at the end that the source has now; sets `behind`. The source is asked,
        since its last answer to a broker here may be old: the one that gave it may hang, while another one leads."""
        self.behind = "; ".join(
            f"{name_of(row)} is {row['status']}" for row in found["partitions"] if row["status"] != "FOLLOWING"
        )
        if self._source is None or not reaches_end(found):
            return reaches_end(found)
        rows = {TopicPartition(self._topics[row["topic"]], row["partition"]): row for row in found["partitions"]}
        try:
            self._source.metadata({tp.topic for tp in rows}, timeout_s=TIMEOUT_S)
            ends = self._source.list_offsets(dict.fromkeys(rows, LATEST), timeout_s=TIMEOUT_S)
        except KlammError as error:
            self.behind = f"the source was asked for its ends: {describe_failure(error)}"
            return False
        self.behind = "; ".join(
            f"{name_of(row)} has the source's records up to {row['source_end']} of {ends[tp][0]}"
            for tp, row in rows.items()
            if row["source_end"] < ends[tp][0]
        )
        return not self.behind

    def _positions(self) -> list[tuple[str, int, int]] | None:
        """Returns where the partitions end; None if one is behind its source."""
        found = self._read()
        return _ends(found) if reaches_end(found) else None

    def describe(self, *, as_json: bool, silent: bool) -> None:
        """Reads what the source had beyond the mirror, and prints it unless `silent`."""
        found = self._read()
        self.complete = self._has_all(found)
        times = self._last_times([name_of(row) for row in found["partitions"]])
        self.rows = [
            {
                "topic": row["topic"],
                "partition": row["partition"],
                "status": row["status"],
                "end": row["end"] if row["end"] >= 0 else None,
                "source_end": row["source_end"] if row["source_end"] >= 0 else None,
                "missing": _missing(row),
                "last_copied_ms": times.get(name_of(row)),
            }
            for row in found["partitions"]
        ]
        if as_json:
            say_rows((), self.rows, as_json=True)
        for row in () if silent else self.rows:
            say(f"{name_of(row)}: {_described(row)}")

    def _last_times(self, names: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Returns the largest timestamps of the partitions that are led, in milliseconds."""
        asked = dict.fromkeys(names, _LARGEST_TIMESTAMP)
        if not asked:
            return {}
        self._client.metadata({tp.topic for tp in asked})
        found, _ = self._client.try_list_offsets(asked, timeout_s=TIMEOUT_S)
        return {tp: listed.timestamp for tp, listed in found.items() if listed.timestamp >= 0}

    def end(self, *, as_json: bool) -> None:
        """Ends the mirrors, and prints where clients continue."""
        from ...cluster.image_reader import read_image

        change_topics(self._coordination, self._link, self._names, {"promote": True})

        def done() -> bool:
            topics = read_image(self._coordination).topics
            return not any(
                each.state.mirror for name in self._names if name in topics for each in topics[name].partitions.values()
            )

        wait_until(
            done,
            "is a broker of this cluster up? Its controller has not promoted them, and does so as soon as it can; not "
            "done",
        )
        self._continue()
        if as_json:
            say_rows((), self.rows, as_json=True)
            return
        for row in self.rows:
            if row["begins"] is None:
                say(f"{name_of(row)}: promoted, but no broker leads it yet")
            else:
                lost = "" if not row["missing"] else f"; {counted(row['missing'], 'record')} of the source missing"
                say(f"{name_of(row)}: clients write from offset {row['begins']} on{lost}")
        say(f"mirror {self._link}: {counted(len(self._names), 'topic')} promoted")

    def _continue(self) -> None:
        """Adds to the rows where the promotion begins in the logs, and what is missing there. The last answer of the
        source may have been stored since the rows were read."""
        from ...cluster.image_reader import read_image

        image = read_image(self._coordination)
        begins: dict[TopicPartition, int] = {}
        found = {name_of(row): image.partition(name_of(row)) for row in self.rows}
        epochs = {tp: each.state for tp, each in found.items() if each is not None}  # one may have been deleted
        until = time.monotonic() + TIMEOUT_S
        while (left := {tp: state for tp, state in epochs.items() if tp not in begins}) and time.monotonic() < until:
            begins |= promotion_starts(
                self._client, {tp: state.promoted_epoch for tp, state in left.items()}, is_new=True
            )
            if len(begins) < len(epochs):
                time.sleep(POLL_S)
        for row in self.rows:
            row["begins"] = begins.get(name_of(row))
            row["leader_epoch"] = epochs[name_of(row)].promoted_epoch if name_of(row) in epochs else None
            if row["begins"] is not None:
                row["missing"] = missing_after(row, row["begins"])


@contextmanager
def _ends_of(link: str, topics: list[str] | None, config: Path, *, asks: bool) -> Iterator[_Ends]:
    """`asks`: the source is asked for its ends."""
    with settings_and_client(config, None) as (_, client), mirror_coordination(config) as coordination:
        link_of(coordination, link)
        nodes = topics_of(coordination, link, topics)
        rows = partitions_of(coordination, link, list(nodes))["partitions"] if nodes else []
        if not rows:
            named = f": {', '.join(topics)} is none any more" if topics else ""
            raise ConfigError(f"mirror {link} has no mirror topic that could be promoted{named}")
        sources = {row["topic"]: nodes[row["topic"]].source for row in rows}
        with source_client(coordination, link) if asks else nullcontext() as source:
            yield _Ends(coordination, client, source, link, sources)


def _ends(found: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    return [(row["topic"], row["partition"], row["end"]) for row in found["partitions"]]


def _missing(row: Mapping[str, Any]) -> int | None:
    """Returns the offsets that the source had beyond the mirror; None if that is not known."""
    end, source_end, lag = int(row["end"]), int(row["source_end"]), int(row["lag"])
    if source_end < 0 or end < 0:
        return None
    return lag if lag >= 0 else max(source_end - end, 0)


def missing_after(row: Mapping[str, Any], begins: int) -> int | None:
    """Returns how many records of the source are missing in a mirror that has ended at `begins`; None if that is not
    known. `row` is its state before the end: without an `end` if no broker led the partition, or its leader had not
    reported it."""
    if row["source_end"] is None:
        return None
    if row["end"] is None:
        return max(int(row["source_end"]) - begins, 0)
    return max(int(row["missing"]) - (begins - int(row["end"])), 0)


def _described(row: Mapping[str, Any]) -> str:
    if row["end"] is None:
        return "no broker leads it"
    copied = "" if row["last_copied_ms"] is None else f" (newest record of {_time(row['last_copied_ms'])})"
    if row["source_end"] is None:
        return f"ends at {row['end']}{copied}, the source has never answered: what is missing is not known"
    there = f"the source at {row['source_end']} when it last answered: {row['missing']} missing"
    if row["status"] == "PAUSED":
        there += ", and what has come since the mirror was paused"
    return f"ends at {row['end']}{copied}, {there}"


def _time(ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):  # a producer may set any
        return f"{ms} ms after 1970"
