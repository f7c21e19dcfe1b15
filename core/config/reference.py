"""Generates the reference of all keys, `docs/configuration.md`, from the models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from ..plugins import PluginHost, Providers, plugin_host
from .section import LONG_MAX, ConfigKey, definitions, to_string
from .sections.broker import BrokerConfig
from .sections.consumer import ConsumerConfig
from .sections.ignored_topic import IgnoredTopicConfig
from .sections.process_log import ProcessLogConfig
from .sections.producer import ProducerConfig
from .sections.sink import SinkSettings
from .sections.topic import BROKER_SYNONYMS, TopicConfig
from .sections.topic_settings import TopicSettings

BEGIN = "<!-- The tables from here on are made by klamm.core.config.reference; a test compares. -->"


def reference(host: PluginHost) -> str:
    """Markdown: a table for each section, then one for each plugin that has keys."""
    return "\n".join(_lines(host)) + "\n"


def _lines(host: PluginHost) -> Iterator[str]:
    yield BEGIN
    yield from _section("broker", "A broker.", BrokerConfig)
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
    yield from _section(
        "topics.NAME.config without effect",
        "Kafka's topic configs that are accepted, validated and shown as in Kafka, but have no effect.",
        IgnoredTopicConfig,
    )
    yield from _section("producer", "A producer.", ProducerConfig)
    yield from _section("consumer", "A consumer.", ConsumerConfig)
    yield from _section("sinks.NAME", "A sink: `plugin`, these keys, and the plugin's own.", SinkSettings)
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


def _section(title: str, summary: str, model: type[BaseModel]) -> Iterator[str]:
    yield f"\n## {title}\n\n{summary[:1].upper()}{summary[1:]}\n"
    yield "| Key | Type | Default | Valid | |\n| --- | --- | --- | --- | --- |"
    excluded = {info.alias or name for name, info in model.model_fields.items() if info.exclude}
    required = {info.alias or name for name, info in model.model_fields.items() if info.is_required()}
    for key in definitions(model):
        if key.name not in excluded:
            default = "*required*" if key.name in required else _default(key)
            cells = (f"`{key.name}`", key.type.name.lower(), default, key.valid.replace("|", "\\|"), key.doc)
            yield "| " + " | ".join(cells).replace("\n", " ") + " |"


def _default(key: ConfigKey) -> str:
    if key.default is None:
        return ""
    if key.default == LONG_MAX:
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
