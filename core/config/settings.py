"""The settings of a process: one YAML file, validated before anything starts (design D14)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, CoordinationError, SchemaError
from ..plugins import PluginHost, plugin_host
from .choice import PluginChoice
from .defaults import DEFAULT_COORDINATION, DEFAULT_OFFSET_STORE, SCHEMA_VALIDATOR
from .document import read
from .host_brokers import nth_broker
from .loader import SettingsLoader
from .problems import without_repetitions
from .sections.broker import BrokerConfig
from .sections.consumer import ConsumerConfig
from .sections.mirror import MirrorConfig
from .sections.process_log import ProcessLogConfig
from .sections.producer import ProducerConfig
from .sections.sink import SinkSettings
from .sections.topic_settings import TopicSettings

if TYPE_CHECKING:  # annotations, and what few commands make: each import would cost every command milliseconds
    from ..interfaces.audit import Audit
    from ..interfaces.coordination import Coordination
    from ..interfaces.interceptor import ConsumerInterceptor, ProducerInterceptor
    from ..interfaces.load import Load
    from ..interfaces.offsets import OffsetStore
    from ..interfaces.security.authenticator import Authenticator
    from ..interfaces.security.authorizer import Authorizer
    from ..interfaces.serde import Serde, SerdeContext, TopicFormat
    from ..interfaces.service import BrokerContext, Service
    from ..interfaces.sink import BatchSink, Sink
    from ..interfaces.validator import TopicValidator
    from ..records.codecs import CodecTable

__all__ = ["Settings", "load_plugins", "load_settings"]


@dataclass(frozen=True)
class Settings:
    """The validated file, and the plugin objects that it chooses: each call of a `make_…` method creates a new one."""

    broker: BrokerConfig = field(default_factory=BrokerConfig)
    coordination: PluginChoice = field(default_factory=lambda: PluginChoice(DEFAULT_COORDINATION))
    offsets: PluginChoice = field(default_factory=lambda: PluginChoice(DEFAULT_OFFSET_STORE))
    topics: dict[str, TopicSettings] = field(default_factory=dict)
    producer: ProducerConfig = field(default_factory=ProducerConfig)
    consumer: ConsumerConfig = field(default_factory=ConsumerConfig)
    audit: PluginChoice | None = None
    sinks: dict[str, SinkSettings] = field(default_factory=dict)
    mirrors: dict[str, MirrorConfig] = field(default_factory=dict)
    serdes: dict[str, PluginChoice] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()
    log: ProcessLogConfig = field(default_factory=ProcessLogConfig)
    source: str = "configuration"
    base_dir: Path = field(default_factory=Path.cwd)
    index: int = 0
    """The index of the broker that this process runs, among those of one host that the file describes
    (`for_broker`)."""

    def with_(self, **changes: Any) -> Settings:
        """Returns a copy with other sections."""
        return replace(self, **changes)

    def for_broker(self, index: int) -> Settings:
        """Returns the settings of the `index`-th of several brokers of this host (`host_brokers`)."""
        return self.with_(broker=nth_broker(self.broker, index), index=index)

    def host(self) -> PluginHost:
        return plugin_host(self.plugins)

    def codec_table(self) -> CodecTable:
        """Returns a table of all codecs that plugins provide."""
        return self.host().codec_table()

    def make_coordination(self) -> Coordination:
        """Returns a coordination that is not started yet. Raises `CoordinationError` without a configuration of one,
        which means that no file was read."""
        coordinations, chosen = self.host().coordinations, self.coordination
        if not isinstance(chosen.config, coordinations.get(chosen.plugin).config):
            raise CoordinationError("no coordination is configured: name a file that has one with --config")
        return coordinations.create(chosen.plugin, chosen.config)

    def make_offset_store(self, coordination: Coordination) -> OffsetStore:
        return self.host().offset_stores.create(self.offsets.plugin, self.offsets.config, coordination)

    def make_audit(self) -> Audit | None:
        """Returns None without an `audit` section."""
        return None if self.audit is None else self.host().audits.create(self.audit.plugin, self.audit.config)

    def make_sink(self, name: str) -> Sink | BatchSink:
        """Returns the sink. Raises `ConfigError` if the file has no such sink, or a load under its name."""
        chosen = self.sink(name).choice
        load = self.make_load(name)
        if load is not None:
            raise ConfigError(f"{self.source}: sinks.{name}: is filled by `klamm {load.command}`, not by `klamm sink`")
        return self.host().sinks.create(chosen.plugin, chosen.config)

    def make_load(self, name: str) -> Load | None:
        """Returns the load; None if the section is a sink's."""
        chosen, loads = self.sink(name).choice, self.host().loads
        return loads.create(chosen.plugin, chosen.config) if chosen.plugin in loads.names() else None

    def sink(self, name: str) -> SinkSettings:
        """Raises `ConfigError` if the file has no such sink."""
        if name not in self.sinks:
            known = ", ".join(sorted(self.sinks)) or "none"
            raise ConfigError(f"{self.source}: sinks.{name}: there is no such sink (there are: {known})")
        return self.sinks[name]

    def check_sink(self, name: str) -> None:
        """Raises `ConfigError` if there is no such sink, or its plugin does not support what the section requires.
        Makes no connection."""
        section, load = self.sink(name), self.make_load(name)
        where = f"{self.source}: sinks.{name}"
        if load is not None:
            try:
                load.check(section.on_bad_record)
            except ValueError as error:
                raise ConfigError(f"{where}.{error}") from error
            return
        if section.topics_regex is not None:
            raise ConfigError(f"{where}.topics.regex: `klamm load` takes a pattern; `klamm sink` needs topics")
        from ..interfaces.sink import QuarantineSink

        sink = self.make_sink(name)
        if section.on_bad_record == "quarantine" and not isinstance(sink, QuarantineSink):
            raise ConfigError(
                f"{where}.on.bad.record: the plugin {section.choice.plugin!r} has no quarantine; expected fail or skip"
            )

    def check_plugins(self) -> None:
        """Calls every hook of every plugin. Makes what the sections choose as a broker and clients make it when they
        start, and drops it: finds a codec id that is refused, and a `create` that fails or returns something else.
        Makes no connection."""
        self.host().call_hooks()
        self.codec_table()
        self.make_coordination()
        self.make_audit()
        self.make_topic_validators()
        self.make_authenticator()
        self.make_authorizer()
        self.make_producer_interceptors()
        self.make_consumer_interceptors()

    def make_topic_validators(self) -> list[TopicValidator]:
        """Returns the validators of `broker.topic.validators`, and last the one of schemas if it is not among them,
        since a topic's configuration alone enables that."""
        validators, chosen = self.host().topic_validators, self.broker.topic_validators
        made = [validators.create(c.plugin, c.config) for c in chosen]
        if all(choice.plugin != SCHEMA_VALIDATOR for choice in chosen):
            made.append(validators.create(SCHEMA_VALIDATOR))
        return made

    def make_authenticator(self) -> Authenticator | None:
        """Returns the authenticator; None unless `broker.authenticator` is set."""
        chosen = self.broker.authenticator
        return None if chosen is None else self.host().authenticators.create(chosen.plugin, chosen.config)

    def make_authorizer(self) -> Authorizer | None:
        """Returns the authorizer; None unless `broker.authorizer` is set."""
        chosen = self.broker.authorizer
        return None if chosen is None else self.host().authorizers.create(chosen.plugin, chosen.config)

    def make_services(self, context: BrokerContext) -> list[tuple[str, Service]]:
        """Returns the services of `broker.services` with their plugins' names, in that order; not started."""
        services = self.host().services
        return [(c.plugin, services.create(c.plugin, c.config, context)) for c in self.broker.services]

    def make_producer_interceptors(self) -> list[ProducerInterceptor]:
        interceptors = self.host().producer_interceptors
        return [interceptors.create(c.plugin, c.config) for c in self.producer.interceptors]

    def make_consumer_interceptors(self) -> list[ConsumerInterceptor]:
        interceptors = self.host().consumer_interceptors
        return [interceptors.create(c.plugin, c.config) for c in self.consumer.interceptors]

    def serde_name(self, topic: str) -> str | None:
        """Returns the name of the serde of a topic's values; None for raw bytes."""
        return self.topics[topic].serde if topic in self.topics else None

    def make_serde(self, name: str, context: SerdeContext) -> Serde:
        chosen = self.serdes.get(name)
        return self.host().serdes.create(name, chosen.config if chosen else None, context)

    def topic_format(self, topic: str) -> TopicFormat:
        """Returns the format of a topic for its serde. Raises `ConfigError` if the schema file cannot be read."""
        return self._formats(topic, self.topics.get(topic, TopicSettings()))

    def check_topic(self, topic: str) -> None:
        """Raises `ConfigError` if the schema file of a topic cannot be read or, if the serde can check it (a
        `CheckedSerde`), is invalid. Makes no connection."""
        self.topic_format(topic)
        name = self.serde_name(topic)
        if name is None:
            return
        from ..interfaces.serde import CheckedSerde, SerdeContext

        serde = self.make_serde(name, SerdeContext("", self.make_coordination, self.topic_format))
        try:
            if isinstance(serde, CheckedSerde):
                serde.check(topic)
        except SchemaError as error:
            raise ConfigError(
                f"{self.source}: topics.{topic}.schema: {self.topics[topic].schema_file}: {error}"
            ) from error
        finally:
            serde.close()

    def _formats(self, topic: str, section: TopicSettings) -> TopicFormat:
        if topic not in self._cache:
            from ..interfaces.serde import TopicFormat

            text = None
            if section.schema_file is not None:
                try:
                    text = section.schema_file.read_text(encoding="utf-8")
                except (OSError, UnicodeDecodeError) as error:
                    where = f"{self.source}: topics.{topic}.schema"
                    raise ConfigError(f"{where}: {section.schema_file} cannot be read: {error}") from error
            envelope = self.host().envelopes.create(section.envelope)
            self._cache[topic] = TopicFormat(envelope, text, section.options.model_dump(by_alias=True))
        return self._cache[topic]

    @cached_property
    def _cache(self) -> dict[str, TopicFormat]:
        return {}


def load_settings(source: str | Path | Mapping[str, Any]) -> Settings:
    """Loads a YAML file, or a mapping of the same shape. Raises `ConfigError` with one line for each problem."""
    document = read(source)
    loader = SettingsLoader(document)
    sections = loader.load()
    if loader.problems:
        raise document.fail(without_repetitions(loader.problems))
    return Settings(**sections, source=document.name, base_dir=document.base_dir)


def load_plugins(source: str | Path | Mapping[str, Any]) -> PluginHost:
    """Loads the plugins that a YAML file names; its other sections may be wrong. Raises `ConfigError` with one line for
    each problem of `plugins`."""
    document = read(source)
    loader = SettingsLoader(document)
    host = loader.load_plugins()
    problems = [problem for problem in loader.problems if problem.path[:1] == ("plugins",)]
    if problems or host is None:
        raise document.fail(without_repetitions(problems))
    return host
