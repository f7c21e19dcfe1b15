"""What a process says of itself, on stderr; not to be confused with the log of records."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from ..section import Section, key


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


Level = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(_upper)]


class ProcessLogConfig(Section):
    """Of the process of a broker; where the file has the section, of `klamm sink`, `load` and `audit`, too."""

    format: Literal["text", "json"] = key("text", "One line for people, or one JSON object, for each thing said.")
    level: Level = key("INFO", "The least that is said.")
    levels: dict[str, Level] = key({}, "Other levels for some loggers and those below them: klamm.core.log: DEBUG.")
