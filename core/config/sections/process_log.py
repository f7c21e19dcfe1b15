"""The configuration of a process's log messages, on stderr; not to be confused with the log of records."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from ..section import Section, key


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


Level = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(_upper)]


class ProcessLogConfig(Section):
    """Applies to the process of a broker and, if the file has the section, of `klamm sink`, `load` and `audit`."""

    format: Literal["text", "json"] = key("text", "text: one line for people for each message; json: one JSON object.")
    level: Level = key("INFO", "The lowest level that is written.")
    levels: dict[str, Level] = key(
        {}, "Levels of single loggers and the loggers below them, such as klamm.core.log: DEBUG."
    )
