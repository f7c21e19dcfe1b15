"""`klamm consume`: prints the records of topics."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Final

import typer

from ...client.cluster_client import EARLIEST, LATEST
from ...client.consumer.consumer import Consumer
from ...client.errors import UnreadableBatchError
from ...client.factory import open_client
from ...config.settings import Settings
from ...errors import ConfigError, KlammError
from ...groups.membership.member import LostOwnershipError
from ...interfaces.sink import RecordBatch
from ...process_log import of_command
from ...records.partition import TopicPartition, counted
from ..options import DEFAULT_CONFIG, TIMEOUT_S, Bootstrap, ConfigFile
from ..output import discard_output, say
from .clients import CliValues, client_settings
from .interrupts import Interrupts
from .positions import FORMS, Position, PositionKind, parse_position, resolve
from .printing import Output, Printer, UnprintableError, format_of

_POLL_S: Final = 0.25
_BATCHES: Final = 64
"""The most batches that one poll returns, which bounds what is in memory."""
_RUN_BYTES: Final = 1 << 20
"""Bytes of batches that are printed together."""
_COMMIT_S: Final = 1.0
_JOIN_S: Final = 30.0
"""Seconds without a partition after which a group member ends, since other members have all partitions."""


def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC…")],
    from_: Annotated[str, typer.Option("--from", metavar="POSITION", help=f"Where to begin: {FORMS}.")] = "earliest",
    until: Annotated[
        str | None, typer.Option("--until", metavar="POSITION", help="Where to end, without the record at it.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Do not end: print what arrives.")] = False,
    partitions: Annotated[
        str | None, typer.Option("--partitions", "-p", metavar="0,2,…", help="Only these; all if not given.")
    ] = None,
    count: Annotated[int | None, typer.Option("-n", "--count", min=1, help="End after this many records.")] = None,
    group: Annotated[
        str | None,
        typer.Option("-g", "--group", help="Join this group: begin at its committed offsets, commit what is printed."),
    ] = None,
    form: Annotated[
        str | None, typer.Option("-f", "--format", metavar="FORMAT", help=r"Such as '%k %v\n', with rpk's letters.")
    ] = None,
    json_records: Annotated[bool, typer.Option("--json", help="Print each whole record as JSON, one a line.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Print values as they are stored, whatever the schema.")] = False,
    grep: Annotated[
        str | None, typer.Option("--grep", metavar="REGEX", help="Print only records whose text matches.")
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print no count.")] = False,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Print the values of a topic's records, one a line, up to the topic's present end.

    A value is JSON if the topic has a schema in the file, else its bytes, which are escaped on a terminal. A record
    that cannot be decoded is a line on stderr; the others are printed, and the exit status is 1.
    """
    now_ms = time.time_ns() // 1_000_000
    start = parse_position("--from", from_, lambda: now_ms)
    end = Position(PositionKind.LATEST) if until is None else parse_position("--until", until, lambda: now_ms)
    if follow and until is not None:
        raise ConfigError("consume: --follow and --until exclude each other")
    if form is not None and json_records:
        raise ConfigError("consume: -f and --json exclude each other")
    if raw and json_records:
        raise ConfigError("consume: --raw and --json exclude each other")
    if group is not None and start.kind not in (PositionKind.EARLIEST, PositionKind.LATEST):
        raise ConfigError(
            f"--from {from_}: group {group!r} begins at its committed offsets; earliest or latest say where it begins "
            "without one"
        )
    if group is not None and partitions is not None:
        raise ConfigError("consume: --partitions and -g exclude each other: the group assigns partitions")
    chosen = _numbers(partitions)
    pattern = _pattern(grep)
    terminal = sys.stdout.isatty()
    printed_by = format_of(form, json_records, terminal)
    settings = client_settings(config, bootstrap)
    of_command(settings.log)
    with Interrupts() as interrupts, CliValues.of(settings) as values:
        plan = _plan(settings, topics, chosen, start, end, follow)
        printer = Printer(
            codecs=settings.codec_table(),
            max_size=settings.consumer.decompressed_max_bytes,
            deserializers=(lambda _: None) if raw else values.json_deserializer,
            columnar=values.documents_deserializer,
            form=printed_by,
            whole=json_records,
            grep=pattern,
            terminal=terminal,
        )
        reading = _Reading(settings, topics, plan, printer, interrupts, group=group, start=start, count=count)
        try:
            reading.run()
        except BrokenPipeError:  # `| head`: the reader has what it wants
            discard_output()
            return
    if interrupts.received is not None:
        say(f"klamm: interrupted; {counted(printer.printed, 'record')} printed", err=True)
    elif not quiet or reading.bad:
        bad = f", {reading.bad} could not be decoded" if reading.bad else ""
        say(f"klamm: {counted(printer.printed, 'record')} printed{bad}", err=True)
    if interrupts.received is not None:
        raise typer.Exit(interrupts.status)
    if reading.bad:
        raise typer.Exit(1)


class _Plan:
    """The offsets at which reading starts in each partition and, unless it follows, those at which it ends."""

    def __init__(self, starts: Mapping[TopicPartition, int], stops: Mapping[TopicPartition, int] | None) -> None:
        self.starts = starts
        self.stops = stops


def _plan(
    settings: Settings,
    topics: Iterable[str],
    chosen: Collection[int] | None,
    start: Position,
    end: Position,
    follow: bool,
) -> _Plan:
    options = settings.consumer
    with open_client(
        settings,
        "consume",
        bootstrap_servers=options.bootstrap_servers,
        client_id=options.client_id,
        request_timeout_s=TIMEOUT_S,
    ) as client:
        wanted = [tp for topic in dict.fromkeys(topics) for tp in _chosen(client.partitions(topic), chosen)]
        firsts = {tp: offset for tp, (offset, _) in client.list_offsets(dict.fromkeys(wanted, EARLIEST)).items()}
        latest = dict.fromkeys(wanted, LATEST)
        ends = {tp: offset for tp, (offset, _) in client.list_offsets(latest, isolation=options.isolation).items()}
        starts = resolve(start, client, firsts, ends)
        stops = resolve(end, client, firsts, ends)
    if start.kind is PositionKind.OFFSET and all(starts[tp] > ends[tp] for tp in wanted):
        raise ConfigError(
            f"--from {start.number}: beyond the end of every partition (the largest is {max(ends.values())})"
        )
    for tp in wanted:
        if starts[tp] < firsts[tp]:
            say(f"klamm: {tp}: offset {starts[tp]} was deleted; beginning at {firsts[tp]}", err=True)
            starts[tp] = firsts[tp]
        starts[tp] = min(starts[tp], ends[tp])
        stops[tp] = min(stops[tp], ends[tp])
    return _Plan(starts, None if follow else stops)


def _chosen(there: list[TopicPartition], chosen: Collection[int] | None) -> list[TopicPartition]:
    if chosen is None:
        return there
    unknown = sorted(set(chosen) - {tp.partition for tp in there})
    if unknown:
        raise ConfigError(
            f"--partitions {unknown[0]}: topic {there[0].topic!r} has the partitions 0 to {len(there) - 1}"
        )
    return [tp for tp in there if tp.partition in chosen]


class _Rebalances:
    """A rebalance listener that commits before partitions are revoked."""

    def __init__(self, commit: Callable[[], None], forget: Callable[[Collection[TopicPartition]], None]) -> None:
        self._commit = commit
        self._forget = forget

    def on_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Does nothing: reading begins at the committed offsets."""

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._commit()
        self._forget(partitions)

    def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        """The records will be printed again by another member, whose commits count."""
        self._forget(partitions)


class _Reading:
    """Reads and prints until the plan's end, `count`, or a signal."""

    def __init__(
        self,
        settings: Settings,
        topics: Iterable[str],
        plan: _Plan,
        printer: Printer,
        interrupts: Interrupts,
        *,
        group: str | None,
        start: Position,
        count: int | None,
    ) -> None:
        self.bad = 0
        self._topics = list(dict.fromkeys(topics))
        self._plan = plan
        self._printer = printer
        self._interrupts = interrupts
        self._count = count
        self._group = group
        self._output = Output()
        self._next: dict[TopicPartition, int] = {}
        """The offset after the last printed record, by partition; of partitions that have returned a record."""
        self._committed: dict[TopicPartition, int] = {}
        self._committed_at = time.monotonic()
        self._without_since: float | None = None
        """When the group was first seen to have no partition here, if it has none."""
        reset = "latest" if start.kind is PositionKind.LATEST else "earliest"
        options = {"group_id": None, "enable_auto_commit": False, "auto_offset_reset": reset, "interceptors": ()}
        audited = settings if group is not None else settings.with_(audit=None)
        self._settings = audited.with_(topics={}, consumer=settings.consumer.model_copy(update=options))

    def run(self) -> None:
        assigned = self._assignable()
        if self._group is None and not assigned:
            return
        with Consumer(self._settings, group=self._group, listener=_Rebalances(self._commit, self._forget)) as consumer:
            self._consumer = consumer
            if self._group is None:
                consumer.assign(assigned)
                for tp, offset in assigned.items():
                    consumer.seek(tp, offset)
            else:
                consumer.subscribe(self._topics)
            while self._interrupts.received is None and not self._finished():
                self._step()
            self._output.flush()
            self._commit_all()

    def _assignable(self) -> dict[TopicPartition, int]:
        """Returns the partitions with something to read, and the offset at which it starts."""
        stops = self._plan.stops
        return {tp: at for tp, at in self._plan.starts.items() if stops is None or at < stops[tp]}

    def _finished(self) -> bool:
        if self._count is not None and self._printer.printed >= self._count:
            return True
        stops = self._plan.stops
        if stops is None:
            return False
        if self._group is None:
            return all(self._reached(tp) >= stops[tp] for tp in self._assignable())
        owned = self._consumer.assignment()
        if owned:
            self._without_since = None
            return all(self._reached(tp) >= stops.get(tp, 0) for tp in owned)
        now = time.monotonic()  # during a rebalance, too, there is none
        self._without_since = self._without_since or now
        if now - self._without_since > _JOIN_S:
            say(f"klamm: group {self._group!r} gave no partition in {_JOIN_S:.0f} s: others have them all", err=True)
            return True
        return False

    def _reached(self, tp: TopicPartition) -> int:
        """Returns the position, which moves beyond offsets at the log's end that have no record."""
        try:
            return self._consumer.position(tp, 0)
        except KlammError:  # it is not known yet
            return -1

    def _step(self) -> None:
        try:
            batches = self._consumer.poll_batches(_POLL_S, _BATCHES)
        except UnreadableBatchError as error:
            if error.next_offset is None:
                raise
            self._say_bad(str(error))
            self._consumer.seek(error.partition, error.next_offset)
            self._next[error.partition] = error.next_offset
            return
        more = True
        for run in _runs(batches):
            if more:
                more = self._print(run)
            else:
                self._next.setdefault(run[0].partition, run[0].from_offset)
        self._output.flush()
        if time.monotonic() - self._committed_at >= _COMMIT_S:
            self._commit_all()

    def _print(self, run: Sequence[RecordBatch]) -> bool:
        """Prints batches of one partition; returns False after the last record of `count`."""
        tp, stops = run[0].partition, self._plan.stops
        stop = None if stops is None else stops.get(tp)
        if stop is not None and run[0].from_offset >= stop:
            self._next.setdefault(tp, run[0].from_offset)
            return True
        most = None if self._count is None else self._count - self._printer.printed
        for text in self._printer.texts(run, stop, most):
            if isinstance(text, UnprintableError):
                self._output.flush()
                self._say_bad(str(text))
            else:
                self._output.write(text)
        if self._printer.last is not None:
            self._next[tp] = self._printer.last + 1
            return False
        end = run[-1].to_offset
        self._next[tp] = end if stop is None else min(end, stop)
        return True

    def _say_bad(self, reason: str) -> None:
        self.bad += 1
        say(f"klamm: {reason}", err=True)

    def _commit_all(self) -> None:
        """Commits what is printed and, as Kafka's consumers do, the positions at which reading began where nothing was
        returned yet: with `--from latest` the next member continues there. For the thread that prints, between polls.
        """
        if self._group is not None:
            for tp in self._consumer.assignment() - self._next.keys():
                if (at := self._reached(tp)) >= 0:
                    self._next[tp] = at
        self._commit()

    def _commit(self) -> None:
        """Commits what is printed, if there is a group and something new."""
        self._committed_at = time.monotonic()
        if self._group is None:
            return
        owned = self._consumer.assignment()
        new = {tp: at for tp, at in list(self._next.items()) if tp in owned and self._committed.get(tp) != at}
        if not new:
            return
        try:
            self._consumer.commit(new)
        except LostOwnershipError as error:
            say(f"klamm: what was printed may be printed again by another member: {error}", err=True)
        self._committed.update(new)

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        """Another member may commit later offsets of these partitions before they are assigned here again."""
        for tp in partitions:
            self._next.pop(tp, None)
            self._committed.pop(tp, None)


def _runs(batches: Iterable[RecordBatch]) -> Iterator[list[RecordBatch]]:
    """Yields consecutive batches of one partition together, up to `_RUN_BYTES`."""
    run, size = list[RecordBatch](), 0
    for batch in batches:
        if run and (batch.partition != run[0].partition or size >= _RUN_BYTES):
            yield run
            run, size = [], 0
        run.append(batch)
        size += len(batch.data)
    if run:
        yield run


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text):
        raise ConfigError(f"--partitions: expected numbers separated by commas, as in 0,2; got {text!r}")
    return sorted({int(number) for number in text.split(",")})


def _pattern(text: str | None) -> re.Pattern[bytes] | None:
    if text is None:
        return None
    try:
        return re.compile(os.fsencode(text))
    except re.error as error:
        raise ConfigError(f"--grep: {text!r} is no regular expression: {error}") from error
