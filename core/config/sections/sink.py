"""The section of one sink: its topics, its consumer group, and the sink's own configuration."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, model_validator

from ..choice import PluginChoice
from ..section import MISSING, Int, Names, Section, key, wrong_key
from .topic_settings import check_names

__all__ = ["SinkSettings", "own_keys"]


def _pattern(value: Any) -> Any:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    except TypeError:
        raise ValueError("expected a regular expression") from None
    return value


class SinkSettings(Section):
    """A sink. Keys that are not here are the plugin's own, validated by its model."""

    topics: Annotated[Names, AfterValidator(check_names)] = key(
        (), "The topics whose records are written; this or topics.regex is required."
    )
    topics_regex: Annotated[str, BeforeValidator(_pattern)] | None = key(
        None,
        "A load reads all topics whose whole name matches, except internal ones (beginning with _). Python's syntax.",
    )
    group_id: str = key("", "The consumer group; `sink-NAME` when not set. A load commits the published offsets to it.")
    flush_records: Int = key(
        10_000, "Number of records after which the sink is flushed and offsets are committed.", ge=1
    )
    flush_interval_ms: Int = key(10_000, "Time after which the sink is flushed and offsets are committed, in ms.", ge=1)
    on_bad_record: Literal["fail", "skip", "quarantine"] = key(
        "fail",
        "A value or batch that cannot be read ends the task or load, is left out, or is written to the plugin's "
        "quarantine if it has one. A load accepts fail and quarantine.",
    )
    choice: PluginChoice = key(PluginChoice(""), "The plugin, and its own keys.", exclude=True)

    @model_validator(mode="after")
    def _what(self) -> SinkSettings:
        if self.topics_regex is None and not self.topics:
            given = "topics" in self.model_fields_set
            message = "expected the name of at least one topic" if given else MISSING
            raise wrong_key("topics", message)
        if self.topics_regex is not None and self.topics:
            raise wrong_key("topics.regex", "cannot be combined with topics; give one of them")
        return self


def own_keys() -> set[str]:
    """Returns the keys of a sink's section that are not the plugin's."""
    return {info.alias or name for name, info in SinkSettings.model_fields.items()} - {"choice"}
