"""`klamm produce`: sends lines of the standard input or of a file as records."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from ...client.producer.deliveries import log
from ...client.producer.producer import Producer
from ...config.section import INT_MAX
from ...errors import ConfigError, DeliveryError, KlammError
from ...escaping import escaped
from ...process_log import of_command
from ...records.partition import counted
from ...records.record import Headers
from ..options import DEFAULT_CONFIG, Bootstrap, ConfigFile
from ..output import say
from .clients import CliValues, client_settings, json_parser
from .interrupts import Interrupts
from .line_input import (
    BadInput,
    CsvColumns,
    InputRecord,
    LineBlock,
    ParsedBlock,
    csv_blocks,
    json_records,
    keyed,
    line_blocks,
    parsed_blocks,
    raw_blocks,
    typed_blocks,
    values_of_json,
)
from .sending import RecordSending

_ABORT_S: Final = 0.0


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="The input; the standard input if not given.")] = "-",
    raw: Annotated[bool, typer.Option("--raw", help="Each line is the value as it is, whatever the schema.")] = False,
    json_records_: Annotated[
        bool, typer.Option("--json", help="Each line is a whole record, as `klamm consume --json` prints it.")
    ] = False,
    csv_rows: Annotated[bool, typer.Option("--csv", help="CSV; the first row names the columns.")] = False,
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="A,B,…", help="CSV without a first row of names.")
    ] = None,
    delimiter: Annotated[
        str, typer.Option("--delimiter", metavar="CHAR", help=r"Separates the cells of CSV; \t is a tab.")
    ] = ",",
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="The key of every record.")] = None,
    key_field: Annotated[
        str | None, typer.Option("--key-field", metavar="NAME", help="The field or column that is the key as well.")
    ] = None,
    key_delimiter: Annotated[
        str | None,
        typer.Option("-k", "--key-delimiter", metavar="TEXT", help=r"Each line is KEY TEXT VALUE; \t is a tab."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("-H", "--header", metavar="NAME=VALUE", help="A header of every record; may be repeated."),
    ] = None,
    null: Annotated[bool, typer.Option("-Z", "--null", help="An empty value is null, a tombstone.")] = False,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, max=INT_MAX, help="The partition; by key if not given."),
    ] = None,
    on_bad: Annotated[
        str, typer.Option("--on-bad", metavar="fail|skip", help="What a line does that is no record.")
    ] = "fail",
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print no count.")] = False,
    config: ConfigFile = DEFAULT_CONFIG,
    bootstrap: Bootstrap = None,
) -> None:
    """Send each line of the input as a record.

    A topic with a schema takes the JSON of one value per line; another topic takes each line as it is. A line that
    is no record ends the input: the lines before it are sent, those after it are not (`--on-bad skip` skips it).
    """
    if on_bad not in ("fail", "skip"):
        raise ConfigError(f"--on-bad: expected fail or skip, got {on_bad!r}")
    delimiter = _with_tabs(delimiter)
    form = _Form(raw, json_records_, csv_rows or columns is not None, key_field, _delimiter(key_delimiter), null)
    form.check(key, columns, delimiter)
    headers = _headers(header)
    settings = client_settings(config, bootstrap)
    of_command(settings.log)
    with _input(file) as fd, Interrupts() as interrupts, CliValues.of(settings) as values, _failures_unlogged():
        producer = Producer(settings.with_(topics={}))
        try:
            producer.partitions(topic)
            sending = RecordSending(
                producer,
                topic,
                key=None if key is None else os.fsencode(key),
                headers=headers if raw else (*values.headers(topic), *headers),
                partition=partition,
                one_by_one=bool(settings.producer.interceptors),
            )
            lines = line_blocks(fd, interrupts, settings.producer.max_request_size)
            blocks = form.blocks(lines, topic, values, _columns(columns, key_field, delimiter, null), on_bad == "skip")
            if not quiet and os.isatty(fd) and sys.stderr.isatty():
                say(f"klamm: each line is {form.expected(values.typed(topic))}; Ctrl-D ends the input", err=True)
            run = _Run(topic, "" if file == "-" else f"{file}: ", on_bad == "skip", quiet)
            status = run.run(blocks, sending, interrupts)
        except BaseException:
            producer.close(_ABORT_S)
            raise
        producer.close()
    if status:
        raise typer.Exit(status)


class _Run:
    """One input. In messages `where` precedes the number of a line."""

    def __init__(self, topic: str, where: str, skip: bool, quiet: bool) -> None:
        self._topic = topic
        self._where = where
        self._skip = skip
        self._quiet = quiet
        self._skipped = 0

    def run(self, blocks: Iterator[ParsedBlock], sending: RecordSending, interrupts: Interrupts) -> int:
        """Sends everything, prints the outcome, and returns the exit status."""
        stopped: BadInput | None = None
        try:
            stopped = self._send(blocks, sending)
            sending.finish()
        except KeyboardInterrupt:  # the second Ctrl-C, while brokers do not answer
            sending.count_settled()
            say(f"klamm: {self._sent(sending)} when it was interrupted again; more may be", err=True)
            raise
        if sending.error is not None:
            say(f"klamm: {sending.error}", err=True)
        if stopped is not None:
            say(f"klamm: {self._sent(sending)}; nothing from line {stopped.line} on was sent", err=True)
        elif interrupts.received is not None:
            say(f"klamm: interrupted; {self._sent(sending)}", err=True)
        elif not self._quiet or sending.error is not None:
            say(f"klamm: {self._sent(sending)}", err=True)
        if interrupts.received is not None:
            return interrupts.status
        return 1 if stopped is not None or sending.error is not None else 0

    def _send(self, blocks: Iterator[ParsedBlock], sending: RecordSending) -> BadInput | None:
        """Returns the line at which it stopped; None if all was sent, or a record failed."""
        try:
            for block in blocks:
                for bad in (*sending.send(block, self._skip), *block.bad):
                    self._say(bad)
                    if not self._skip:
                        return bad
                    self._skipped += 1
                if sending.error is not None:
                    return None
        except BadInput as bad:  # nothing can be read after it
            self._say(bad)
            return bad
        return None

    def _say(self, bad: BadInput) -> None:
        say(f"klamm: {self._where}line {bad.line}: {bad.reason}", err=True)

    def _sent(self, sending: RecordSending) -> str:
        skipped = f", {counted(self._skipped, 'line')} skipped" if self._skipped else ""
        return f"{counted(sending.stored, 'record')} sent to {self._topic}{skipped}"


class _Form:
    """The meaning of a line of the input."""

    def __init__(
        self, raw: bool, json: bool, csv: bool, key_field: str | None, key_delimiter: bytes | None, null: bool
    ) -> None:
        self._raw = raw
        self._json = json
        self._csv = csv
        self._key_field = key_field
        self._key_delimiter = key_delimiter
        self._null = null

    def check(self, key: str | None, columns: str | None, delimiter: str) -> None:
        """Raises `ConfigError` for options that exclude each other."""
        forms = [name for name, given in (("--raw", self._raw), ("--json", self._json), ("--csv", self._csv)) if given]
        keys = [
            name
            for name, given in (("--key", key), ("--key-field", self._key_field), ("-k", self._key_delimiter))
            if given is not None
        ]
        if len(forms) > 1:
            raise ConfigError(f"produce: {forms[0]} and {forms[1]} exclude each other")
        if len(keys) > 1:
            raise ConfigError(f"produce: {keys[0]} and {keys[1]} exclude each other")
        if self._json and keys:
            raise ConfigError(f"produce: {keys[0]}: with --json the key is in the record")
        if self._key_delimiter is not None and self._csv:
            raise ConfigError("produce: -k: with --csv the key is a column: name it with --key-field")
        if self._key_field is not None and self._raw:
            raise ConfigError("produce: --key-field: --raw values have no fields; use -k or --key")
        if len(delimiter) != 1 or delimiter in '\n\r"':
            raise ConfigError(f"--delimiter: expected one character, got {delimiter!r}")
        if delimiter != "," and not self._csv:
            raise ConfigError("produce: --delimiter is for --csv; a key's is given with -k")
        if columns is not None and not all(name.strip() for name in columns.split(",")):
            raise ConfigError(f"--columns: expected names separated by commas, got {columns!r}")

    def expected(self, typed: bool) -> str:
        """Describes the expected form of a line, for people who type the input."""
        if self._csv:
            return "a row of CSV"
        if self._json:
            return "a record as JSON"
        value = "the JSON of a value" if typed and not self._raw else "a value"
        delimiter = (self._key_delimiter or b"").decode(errors="backslashreplace")
        return value if self._key_delimiter is None else f"a key, {delimiter!r} and {value}"

    def blocks(
        self,
        lines: Iterator[LineBlock],
        topic: str,
        values: CliValues,
        columns: Callable[[CliValues, str], CsvColumns],
        skip: bool,
    ) -> Iterator[ParsedBlock]:
        typed = values.typed(topic) and not self._raw
        if self._csv:
            return csv_blocks(lines, columns(values, topic), skip)
        if self._json:
            serializer, parser = values.json_serializer(topic) if typed else (None, json_parser(float))
            return parsed_blocks(lines, json_records(serializer, parser), skip)
        if typed and self._key_field is None and self._key_delimiter is None:
            columnar = values.documents_serializer(topic)
            return typed_blocks(lines, *values.json_serializer(topic), columnar, self._null, skip)
        if typed:
            parse = values_of_json(*values.json_serializer(topic), self._key_field, self._null)
        elif self._key_field is not None:
            raise ConfigError(
                f"produce: --key-field: topic {topic!r} has no schema, so its values have no fields; use -k"
            )
        elif self._key_delimiter is None:
            return raw_blocks(lines, self._null)
        else:
            parse = _null if self._null else InputRecord
        return parsed_blocks(lines, parse if self._key_delimiter is None else keyed(parse, self._key_delimiter), skip)


@contextmanager
def _failures_unlogged() -> Iterator[None]:
    """Keeps failed batches out of the log, since the command prints the first failure itself."""

    def is_other(record: logging.LogRecord) -> bool:
        return not (isinstance(record.args, tuple) and any(isinstance(one, DeliveryError) for one in record.args))

    log.addFilter(is_other)
    try:
        yield
    finally:
        log.removeFilter(is_other)


def _null(line: bytes) -> InputRecord:
    return InputRecord(line or None)


def _columns(
    names: str | None, key_field: str | None, delimiter: str, null: bool
) -> Callable[[CliValues, str], CsvColumns]:
    given = None if names is None else tuple(name.strip() for name in names.split(","))

    def made(values: CliValues, topic: str) -> CsvColumns:
        serializer = partial(values.row_serializer, topic) if values.typed(topic) else None
        return CsvColumns(given, key_field, serializer, delimiter, null)

    return made


def _with_tabs(text: str) -> str:
    """Returns the text with the tabs that a shell leaves as two characters."""
    return text.replace("\\t", "\t")


def _delimiter(text: str | None) -> bytes | None:
    if text is None:
        return None
    found = os.fsencode(_with_tabs(text))
    if not found:
        raise ConfigError("-k: expected the text between key and value, got nothing")
    return found


def _headers(given: list[str] | None) -> Headers:
    pairs = []
    for text in given or ():
        name, mark, value = text.partition("=")
        if not mark or not name or not name.isprintable():
            raise ConfigError(f"-H {escaped(text)}: expected NAME=VALUE, with a name of printable characters")
        pairs.append((name, os.fsencode(value)))
    return tuple(pairs)


@contextmanager
def _input(file: str) -> Iterator[int]:
    if file == "-":
        if sys.stdin is None:
            raise KlammError("the standard input is closed; name a file, or pipe the lines to this command")
        yield sys.stdin.fileno()
        return
    try:
        fd = os.open(file, os.O_RDONLY)
    except OSError as error:
        raise KlammError(f"{file}: {error.strerror}") from error
    try:
        if Path(file).is_dir():
            raise KlammError(f"{file}: is a directory")
        yield fd
    finally:
        with suppress(OSError):
            os.close(fd)
