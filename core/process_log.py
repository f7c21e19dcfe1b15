"""Applies the `log` section: Python's logging, as lines of text or of JSON, on one stream.

A broker always has one. A command that may run long (`klamm sink`, `load`, `audit`) has one if the file has the
section; without it, Python's default applies: warnings, unformatted, between the command's own lines.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from .config.sections.process_log import ProcessLogConfig
from .escaping import LineFormatter
from .records.partition import TopicPartition

__all__ = ["ROOT", "TEXT_FORMAT", "ProcessLog", "of_command"]

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_QUIET = {"kazoo": "WARNING", "py4j": "WARNING"}
"""Loggers that log too much at the general level; a level that is set for them by name overrides this."""
ROOT = "root"
"""The name of the root logger."""


class ProcessLog:
    """Made once in a process; call `apply` whenever the section changes, which ends the effect of `change`."""

    def __init__(self, config: ProcessLogConfig, stream: TextIO | None = None) -> None:
        self._handler = logging.StreamHandler(stream or sys.stderr)
        self._found: dict[str, int] = {}  # levels of loggers before they were changed here
        self._said: dict[str, str] = {}
        self.apply(config)
        logging.getLogger().addHandler(self._handler)

    def apply(self, config: ProcessLogConfig) -> None:
        self._handler.setFormatter(_json() if config.format == "json" else LineFormatter(TEXT_FORMAT))
        self._said = {ROOT: config.level, **_QUIET, **config.levels}
        self.change({**dict.fromkeys(self._found), **self._said})

    def levels(self) -> dict[str, str]:
        """Returns the effective level of every existing logger and of its parents, by name; `root` is the first."""
        names = sorted(logging.getLogger().manager.loggerDict)
        return {name: logging.getLevelName(logging.getLogger(name).getEffectiveLevel()) for name in (ROOT, *names)}

    def change(self, levels: Mapping[str, str | None]) -> None:
        """Sets levels; None resets a logger to the section's level, or else to the level it had at first."""
        for name, level in levels.items():
            logger = logging.getLogger(name)
            self._found.setdefault(name, logger.level)
            logger.setLevel(level or self._said.get(name) or self._found[name])


def of_command(config: ProcessLogConfig) -> None:
    """Sets up the log of a command's process; call it once, before the command starts its work."""
    if config.model_fields_set:
        ProcessLog(config)


def _json() -> logging.Formatter:
    """Returns a formatter with time (UTC), level, logger, message, the fields passed as `extra`, and the first
    partition that the message names.
    """
    from pythonjsonlogger.json import JsonFormatter  # imported only if needed: every process would pay for the import

    class Formatter(JsonFormatter):
        def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
            super().add_fields(log_data, record, message_dict)
            found = record.args if isinstance(record.args, tuple) else ()
            for argument in found:
                if isinstance(argument, TopicPartition):
                    log_data.setdefault("topic", argument.topic)
                    log_data.setdefault("partition", argument.partition)

    return Formatter(
        ["levelname", "name", "message"],
        style=",",
        rename_fields={"levelname": "level", "name": "logger"},
        timestamp="time",
    )
