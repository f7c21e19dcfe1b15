"""What YAML says of one sink: whose records, for which group, and the sink's own configuration."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, model_validator

from ..choice import PluginChoice
from ..section import MISSING, Int, Names, Section, key, wrong_key


def _pattern(value: Any) -> Any:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from error
    except TypeError:
        raise ValueError("expected a regular expression") from None
    return value


class SinkSettings(Section):
    """A sink. Keys that are not here are the plugin's own, validated by its model."""

    topics: Names = key((), "The topics whose records go in; this or topics.regex is required.")
    topics_regex: Annotated[str, BeforeValidator(_pattern)] | None = key(
        None,
        "A load takes all topics whose whole name matches, without internal ones (with _ in front). Python's syntax.",
    )
    group_id: str = key("", "The consumer group; `sink-NAME` when not set. A load commits to it what it has published.")
    flush_records: Int = key(10_000, "Records after which the sink is flushed and offsets are committed.", ge=1)
    flush_interval_ms: Int = key(10_000, "Time after which they are, in ms.", ge=1)
    on_bad_record: Literal["fail", "skip", "quarantine"] = key(
        "fail",
        "What cannot be read (a value, or a whole batch) ends the task or load, is left out, or is set aside where the "
        "plugin has a place for it. A load takes fail and quarantine.",
    )
    choice: PluginChoice = key(PluginChoice(""), "The plugin, and its own keys.", exclude=True)

    @model_validator(mode="after")
    def _what(self) -> SinkSettings:
        if self.topics_regex is None and not self.topics:
            given = "topics" in self.model_fields_set
            message = "expected the name of at least one topic" if given else MISSING
            raise wrong_key("topics", message)
        if self.topics_regex is not None and self.topics:
            raise wrong_key("topics.regex", "stands beside topics; give one of them")
        return self


def own_keys() -> set[str]:
    """The keys of a sink's section that are not the plugin's."""
    return {info.alias or name for name, info in SinkSettings.model_fields.items()} - {"choice"}
