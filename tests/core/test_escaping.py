"""Names from the wire in lines, tables, logs, errors and metrics."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from klamm.core.broker.metrics_collector import of_services
from klamm.core.cli.output import say, say_document, say_rows
from klamm.core.config.sections.process_log import ProcessLogConfig
from klamm.core.errors import BrokerError, ConfigError, ErrorCode, KlammError
from klamm.core.escaping import LineFormatter, escaped
from klamm.core.interfaces.service import ServiceMetric
from klamm.core.process_log import ProcessLog

FORGED = "a\nb\r\x1b[2K\x1b]0;t\x07\x00\x9b\u202e\u2066\u200b\u2028\x85\ud800[red]"
SHOWN = r"a\nb\r\x1b[2K\x1b]0;t\x07\x00\x9b\u202e\u2066\u200b\u2028\x85\ud800[red]"


def is_one_plain_line(text: str) -> bool:
    return text.endswith("\n") and text[:-1].isprintable()


def test_what_is_not_printable_is_escaped() -> None:
    assert escaped(FORGED) == SHOWN
    assert escaped("Grüße, 世界 🙂 \\n") == "Grüße, 世界 🙂 \\n"
    assert all(escaped(chr(code)).isprintable() for code in range(0x110000))


@pytest.mark.parametrize("err", [False, True])
def test_a_line_of_a_command(capsys: pytest.CaptureFixture[str], err: bool) -> None:
    say(f"group {FORGED}: deleted", err=err)
    assert capsys.readouterr()[err] == f"group {SHOWN}: deleted\n"


def test_a_document_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    say_document('{\n "a": "\x1b"\n}\n')
    assert capsys.readouterr().out == '{\n "a": "\\x1b"\n}\n'


def test_a_table_has_a_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    say_rows(("group", FORGED), [{"group": FORGED, FORGED: None}])
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["group", *SHOWN.replace("_", " ").split()],
        [*SHOWN.split(), "-"],
    ]


def logged(config: dict[str, Any], log: Callable[[logging.Logger], None]) -> list[str]:
    out = io.StringIO()
    process_log = ProcessLog(ProcessLogConfig.model_validate(config), out)
    try:
        log(logging.getLogger("forged"))
    finally:
        logging.getLogger().removeHandler(process_log._handler)
    return out.getvalue().split("\n")


@pytest.mark.parametrize("config", [{"format": "text"}, {"format": "json"}])
def test_a_line_of_a_log(config: dict[str, Any]) -> None:
    name = FORGED.replace("\ud800", "")  # which pytest's own record of the log could not hold
    [line, end] = logged(config, lambda log: log.warning("client %s left %r", name, name))
    assert end == ""
    assert line.isprintable()
    assert r"client a\nb\r" in line


def test_a_traceback_has_no_line_that_is_one_of_the_log() -> None:
    def log(logger: logging.Logger) -> None:
        try:
            raise ValueError("x\n2026-01-01 00:00:00,000 ERROR klamm: forged\x1b[2K")
        except ValueError:
            logger.exception("it failed")

    first, *rest, end = logged({"format": "text"}, log)
    assert first.endswith("ERROR forged: it failed")
    assert end == ""
    assert len(rest) > 3
    assert all(line.startswith("  ") and line.isprintable() for line in rest)


def test_a_warning_of_a_command_without_a_log() -> None:
    record = logging.LogRecord("a", logging.WARNING, "", 0, "%s", (FORGED,), None)
    assert LineFormatter().format(record) == SHOWN


def test_an_error_is_one_line_but_for_a_line_for_each_problem_of_a_file() -> None:
    assert str(KlammError(f"group {FORGED}")) == f"group {SHOWN}"
    assert str(BrokerError(ErrorCode.invalid_group_id, FORGED)) == f"INVALID_GROUP_ID: {SHOWN}"
    assert str(ConfigError("a: x\x1b\nb: y")) == "a: x\\x1b\nb: y"


def test_a_label_of_a_metric_is_readable_whatever_the_name() -> None:
    class Found(Collector):
        def collect(self) -> Any:
            return of_services([ServiceMetric("lag", "Lag.", 1.0, {"group": FORGED})])

    registry = CollectorRegistry()
    registry.register(Found())
    [line] = [line for line in generate_latest(registry).decode().splitlines() if line.startswith("klamm_lag{")]
    assert line.isprintable()
    assert line == 'klamm_lag{group="' + SHOWN.replace("\\", "\\\\") + '"} 1.0'


PRINTS = re.compile(
    r"typer\.(echo|secho)\(|(?<![\w.])print\(|\bTable\(|logging\.Formatter\(|sys\.std(out|err)\.write"
    r"|soft_wrap=|highlight=|markup="
)
"""What would print a line or make a table or a log line past the helpers."""
HELPERS = {
    "core/cli/output.py",
    "core/escaping.py",
    "plugins/demo/show.py",  # prints tables of the demo's own cluster
}


def test_lines_tables_and_logs_are_made_by_the_helpers_only() -> None:
    root = Path(__file__).parents[2]
    files = [path for folder in ("core", "plugins", "schemas", "hadoop") for path in (root / folder).rglob("*.py")]
    found = {
        f"{path.relative_to(root)}: {line.strip()}"
        for path in files
        if str(path.relative_to(root)) not in HELPERS
        for line in path.read_text().splitlines()
        if PRINTS.search(line)
    }
    assert not found
