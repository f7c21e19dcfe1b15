"""Generates the reference of all keys, `docs/configuration.md`, from the models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from klamm.core.config.describe import broker_definitions
from klamm.core.config.dynamic import DEFINITIONS
from klamm.core.config.kafka_keys import BROKER_KEYS, TOPIC_KEYS, refusal
from klamm.core.config.section import INT_MAX, LONG_MAX, ConfigKey, definitions, flat, to_string
from klamm.core.config.sections.broker import BrokerConfig
from klamm.core.config.sections.consumer import ConsumerConfig
from klamm.core.config.sections.mirror import MirrorConfig
from klamm.core.config.sections.process_log import ProcessLogConfig
from klamm.core.config.sections.producer import ProducerConfig
from klamm.core.config.sections.sink import SinkSettings
from klamm.core.config.sections.topic import BROKER_SYNONYMS, TOPIC_DEFINITIONS, TopicConfig
from klamm.core.config.sections.topic_settings import TopicSettings
from klamm.core.plugins import PluginHost, Providers, plugin_host

BEGIN = "<!-- The tables from here on are made by klammtest.pages.config_reference; a test compares. -->"


def reference(host: PluginHost) -> str:
    """Returns Markdown: a table for each section, then one for each plugin that has keys."""
    return "\n".join(_lines(host)) + "\n"


def _lines(host: PluginHost) -> Iterator[str]:
    yield BEGIN
    yield from _section("broker", "A broker.", BrokerConfig)
    yield from _kafkas_of_brokers()
    yield from _section(
        "log",
        "The log messages of a broker's process, on stderr; also those of `klamm sink`, `load` and `audit`.",
        ProcessLogConfig,
    )
    yield from _section(
        "topics.NAME", "A topic: how it is created, and how its values are written. Further keys are the serde's.",
        TopicSettings,
    )  # fmt: skip
    yield from _section("topics.NAME.config", "The topic's log, by Kafka's topic configs.", TopicConfig)
    yield from _synonyms()
    yield "\n## topics.NAME.config without effect\n"
    yield "Kafka's other topic configs: checked and shown as in Kafka, without effect here.\n"
    yield _HEAD
    own = {key.name for key in definitions(TopicConfig)}
    yield from (_row(key, _default(key), TOPIC_KEYS[n].valid) for n, key in TOPIC_DEFINITIONS.items() if n not in own)
    yield from _section("producer", "A producer.", ProducerConfig)
    yield from _section("consumer", "A consumer.", ConsumerConfig)
    yield from _section("sinks.NAME", "A sink: `plugin`, these keys, and the plugin's own.", SinkSettings)
    yield from _section("mirrors.NAME", "A link to a cluster whose topics this one mirrors.", MirrorConfig)
    for title, providers in _plugin_kinds(host):
        for name in providers.names():
            provider = providers.get(name)
            if provider.config.model_fields:
                yield from _section(f"{title} `{name}`", f"{provider.summary}.", provider.config)


def _plugin_kinds(host: PluginHost) -> list[tuple[str, Providers[..., object]]]:
    found: list[tuple[str, Providers[..., object]]] = []
    for title, providers in (
        ("coordination", host.coordinations),
        ("offsets", host.offset_stores),
        ("serde", host.serdes),
        ("envelope", host.envelopes),
        ("audit", host.audits),
        ("sink", host.sinks_and_loads),
        ("authenticator", host.authenticators),
        ("authorizer", host.authorizers),
        ("topic validator", host.topic_validators),
        ("service", host.services),
        ("producer interceptor", host.producer_interceptors),
        ("consumer interceptor", host.consumer_interceptors),
    ):
        found.append((title, providers))
    return found


_HEAD = "| Key | Type | Default | Valid | |\n| --- | --- | --- | --- | --- |"


def _section(title: str, summary: str, model: type[BaseModel]) -> Iterator[str]:
    yield f"\n## {title}\n\n{summary[:1].upper()}{summary[1:]}\n"
    yield _HEAD
    excluded = {info.alias or name for name, info in model.model_fields.items() if info.exclude}
    required = {info.alias or name for name, info in model.model_fields.items() if info.is_required()}
    valid = dict(zip((key.name for key in definitions(model)), map(_valid, model.model_fields.values()), strict=True))
    for key in definitions(model):
        if key.name not in excluded:
            yield _row(key, "*required*" if key.name in required else _default(key), valid[key.name])


def _valid(info: FieldInfo) -> str:
    """Returns the allowed values in words: `a | b`, `0..5`, `>= 1`."""
    names = [str(v) for part in flat(info.annotation) if get_origin(part) is Literal for v in get_args(part)]
    if names:
        return " | ".join(names)
    marks = [*info.metadata]
    for part in flat(info.annotation):
        for mark in getattr(part, "__metadata__", ()):
            marks += mark.metadata if isinstance(mark, FieldInfo) else [mark]
    lows = [m.ge for m in marks if isinstance(m, Ge)] + [m.gt for m in marks if isinstance(m, Gt)]
    highs = [m.le for m in marks if isinstance(m, Le)]
    low: Any = max(lows, default=None)  # type: ignore[type-var]  # bounds of one key are of one type
    high: Any = min(highs, default=None)  # type: ignore[type-var]
    has_low = low is not None and low not in (-(2**31), -(2**63))
    has_high = high is not None and high not in (INT_MAX, LONG_MAX)
    if has_low and has_high:
        return f"{low}..{high}"
    return f">= {low}" if has_low else f"<= {high}" if has_high else ""


def _row(key: ConfigKey, default: str, valid: str) -> str:
    cells = (f"`{key.name}`", key.type.name.lower(), default, valid.replace("|", "\\|"), key.doc)
    return "| " + " | ".join(cells).replace("\n", " ") + " |"


def _kafkas_of_brokers() -> Iterator[str]:
    """Yields Kafka's keys of brokers that the model does not have: those without effect, and those that are refused."""
    others = [key for key in broker_definitions() if key.name not in DEFINITIONS and not BROKER_KEYS[key.name].internal]
    yield "\n### Kafka's keys without effect\n"
    yield "Kafka's other keys of a broker: checked as in Kafka, kept and shown, without effect here. Tools and files"
    yield "may set them, and `klamm broker` names those of its file at its start.\n"
    yield "| Key | Type | Default | Valid |\n| --- | --- | --- | --- |"
    yield from (
        _row(key, _default(key), BROKER_KEYS[key.name].valid).removesuffix(f" {key.doc} |")
        for key in others
        if not refusal(key.name)
    )
    yield "\n### Kafka's keys that are refused\n"
    yield "They would promise what Klamm lacks (Kafka's own default is accepted), or another key stands for them.\n"
    yield "| Key | Why |\n| --- | --- |"
    yield from (f"| `{key.name}` | {refusal(key.name)} |" for key in others if refusal(key.name))


def _default(key: ConfigKey) -> str:
    if key.default is None:
        return ""
    if to_string(key.default) == str(LONG_MAX):
        return "2⁶³−1"
    text = to_string(key.default)
    return f"`{text}`" if text else ""


def _synonyms() -> Iterator[str]:
    yield "\nA topic config that neither the topic nor the broker's file sets has the default above. In the"
    yield "broker's file these keys set it for all topics; of several the first one that is set counts:\n"
    yield "| Topic config | Broker keys |\n| --- | --- |"
    for name, keys in BROKER_SYNONYMS.items():
        yield f"| `{name}` | {', '.join(f'`{broker_key}`' for broker_key, _ in keys)} |"


def main(page: Path) -> None:
    """Replaces the tables on the page."""
    head = page.read_text(encoding="utf-8").partition(BEGIN)[0]
    page.write_text(head + reference(plugin_host()), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
