"""What YAML says of one sink: whose records, for which group, and the sink's own configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from klamm.core.config.choice import PluginChoice
from klamm.core.config.section import Int, Names, Section, key


def _some(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise ValueError("expected the name of at least one topic")
    return value


class SinkSettings(Section):
    """A sink. Keys that are not here are the plugin's own, validated by its model."""

    topics: Annotated[Names, AfterValidator(_some)] = key(..., "The topics whose records go in.")
    group_id: str = key("", "The consumer group; `sink-NAME` when not set. A load commits to it what it has published.")
    flush_records: Int = key(10_000, "Records after which the sink is flushed and offsets are committed.", ge=1)
    flush_interval_ms: Int = key(10_000, "Time after which they are, in ms.", ge=1)
    on_bad_record: Literal["fail", "skip", "quarantine"] = key(
        "fail",
        "What cannot be read (a value, or a whole batch) ends the task or load, is left out, or is set aside where the "
        "plugin has a place for it. A load takes fail and quarantine.",
    )
    choice: PluginChoice = key(PluginChoice(""), "The plugin, and its own keys.", exclude=True)


def own_keys() -> set[str]:
    """The keys of a sink's section that are not the plugin's."""
    return {info.alias or name for name, info in SinkSettings.model_fields.items()} - {"choice"}
