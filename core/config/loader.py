"""Validates the sections of a document. All problems are collected, so that one run shows them all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..errors import ConfigError, PluginError
from ..plugins import PluginHost, Providers, plugin_host
from .choice import PluginChoice
from .defaults import DEFAULT_COORDINATION, DEFAULT_OFFSET_STORE, DEFAULT_SERDE
from .document import Document
from .problems import ConfigProblem, Path, nearest, problems_of, unknown, unknown_key
from .section import BASE_DIR, definitions
from .sections.broker import BrokerConfig, kafka_keys_of
from .sections.consumer import ConsumerConfig
from .sections.mirror import MirrorConfig
from .sections.process_log import ProcessLogConfig
from .sections.producer import ProducerConfig
from .sections.sink import SinkSettings, own_keys
from .sections.topic import TOPIC_DEFINITIONS, check_topic_key
from .sections.topic_settings import TopicSettings, name_problem
from .units import in_unit_of

SECTIONS = (
    "broker",
    "coordination",
    "offsets",
    "topics",
    "producer",
    "consumer",
    "audit",
    "sinks",
    "mirrors",
    "serdes",
    "plugins",
    "log",
)
PLUGIN = "plugin"
"""The key that names the plugin of a section."""
TOPIC_KEYS = tuple(info.alias or name for name, info in TopicSettings.model_fields.items() if name != "options")
"""The keys of a topic's section that are not its serde's."""
M = TypeVar("M", bound=BaseModel)
_Offered = Callable[[], Providers[..., object]]
"""Calls the hook only if the section names a plugin."""


class SettingsLoader:
    """Validates one document; `problems` are those found so far."""

    def __init__(self, document: Document) -> None:
        self._context = {BASE_DIR: str(document.base_dir)}
        self.problems = list(document.problems)
        tree = document.tree
        if not isinstance(tree, Mapping):
            raise ConfigError(f"{document.name}: expected sections ({', '.join(SECTIONS)}), got {type(tree).__name__}")
        self._tree: Mapping[str, Any] = tree

    def load(self) -> dict[str, Any]:
        """Returns the sections by their names in `Settings`; invalid ones are left out, with an entry in `problems`."""
        for name in self._tree:
            if name not in SECTIONS:
                self._found((name,), _no_section(name))
        host = self.load_plugins()
        if host is None:
            return {}
        sections: dict[str, Any] = {"plugins": self._modules()}
        sections["coordination"] = self._choice(("coordination",), host.coordinations, DEFAULT_COORDINATION)
        sections["offsets"] = self._choice(("offsets",), host.offset_stores, DEFAULT_OFFSET_STORE)
        if "audit" in self._tree:
            sections["audit"] = self._choice(("audit",), host.audits)
        sections["serdes"] = self._serdes(host)
        sections["topics"] = self._topics(host)
        sections["sinks"] = self._sinks(host)
        sections["mirrors"] = self._mirrors()
        sections["broker"] = self._broker(host)
        sections["producer"] = self._producer(host)
        sections["consumer"] = self._consumer(host)
        sections["log"] = self._model(ProcessLogConfig, self._section(("log",)), ("log",))
        return sections

    def load_plugins(self) -> PluginHost | None:
        """Returns the host of the plugins that the document names; None, with an entry in `problems`, if one fails."""
        try:
            return plugin_host(self._modules())
        except PluginError as error:
            self._found(("plugins",), str(error))
            return None

    def _found(self, path: Path, message: str) -> None:
        self._add(ConfigProblem(path, message))

    def _add(self, problem: ConfigProblem) -> None:
        """Adds a problem unless it was added before: some sections are validated twice."""
        if problem not in self.problems:
            self.problems.append(problem)

    def _section(self, path: Path) -> dict[str, Any]:
        """Returns the mapping at a path, sizes and times as numbers; {} if it is missing or empty."""
        value: Any = self._tree
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self._found(path, f"expected keys with values, got {value!r}")
            return {}
        section = {}
        for name, item in value.items():
            try:
                section[name] = in_unit_of(str(name), item)
            except ValueError as error:
                self._found((*path, name), str(error))
        return section

    def _model(self, model: type[M], values: Mapping[str, Any], path: Path, also: Iterable[str] = ()) -> M | None:
        """Validates a section. `also`: keys that are allowed besides the model's."""
        try:
            return model.model_validate(values, context=self._context, by_alias=True, by_name=False)
        except ValidationError as error:
            self.problems += problems_of(error, model, values, path, also)
            return None

    def _modules(self) -> tuple[str, ...]:
        section = self._section(("plugins",))
        for name in section:
            if name != "modules":
                self._add(unknown_key(("plugins", name), ["modules"]))
        modules = section.get("modules")
        modules = [] if modules is None else modules
        if not isinstance(modules, list) or not all(isinstance(name, str) for name in modules):
            self._found(("plugins", "modules"), "expected a list of module names")
            return ()
        return tuple(modules)

    def _choice(self, path: Path, providers: Providers[..., object], default: str = "") -> PluginChoice | None:
        if path[0] not in self._tree and default not in providers.names():
            return PluginChoice(default)  # the file does not ask for it: an error only when it is used
        section = self._section(path)
        name = section.pop(PLUGIN, default)
        if not name:
            self._unnamed(ConfigProblem(path, f"needs `plugin:` (there are: {providers.listed()})"), path, section)
            return None
        return self._plugin(path, providers, name, section)

    def _unnamed(self, problem: ConfigProblem, path: Path, section: Mapping[str, Any]) -> None:
        """Adds the problem of a section that names no plugin, or a mistyped `plugin` key if there is one."""
        self._add(next((unknown_key((*path, key), [PLUGIN]) for key in section if nearest(key, [PLUGIN])), problem))

    def _plugin(
        self,
        path: Path,
        providers: Providers[..., object],
        name: Any,
        section: Mapping[str, Any],
        named: Path | None = None,
        also: Iterable[str] = (PLUGIN,),
    ) -> PluginChoice | None:
        """Validates a plugin's section. `named` is the path of the key with the plugin's name, `path.plugin` if not
        given; `also`: keys of the section that are not the plugin's."""
        if name in ("", None):
            at = named or (*path, PLUGIN)
            self._unnamed(ConfigProblem(at, f"is missing; it names one of: {providers.listed()}"), path, section)
            return None
        try:
            provider = providers.get(str(name))
        except PluginError as error:
            self._found(named or (*path, PLUGIN), str(error))
            return None
        config = self._model(provider.config, section, path, also)
        return None if config is None else PluginChoice(provider.name, config)

    def _choices(self, path: Path, providers: Providers[..., object], value: Any) -> tuple[PluginChoice, ...]:
        """Validates a list of names or of `{plugin: NAME, …}`."""
        items = value if isinstance(value, list) else [value]
        found = [self._chosen((*path, i), providers, item) for i, item in enumerate(items)]
        return tuple(choice for choice in found if choice is not None)

    def _chosen(self, path: Path, providers: Providers[..., object], value: Any) -> PluginChoice | None:
        """Validates a name or `{plugin: NAME, …}`."""
        said = dict(value) if isinstance(value, Mapping) else {PLUGIN: value}
        return self._plugin(path, providers, said.pop(PLUGIN, ""), said)

    def _broker(self, host: PluginHost) -> BrokerConfig | None:
        lists: dict[str, _Offered] = {
            "topic.validators": lambda: host.topic_validators,
            "services": lambda: host.services,
        }
        one: dict[str, _Offered] = {
            "authenticator": lambda: host.authenticators,
            "authorizer": lambda: host.authorizers,
        }
        kafkas, wrong = kafka_keys_of(self._section(("broker",)))
        for name, why in wrong.items():
            self._found(("broker", name), why)
        config = self._with_plugins(BrokerConfig, "broker", host, lists, one, without={*kafkas, *wrong})
        return None if config is None else config.with_kafka_keys(kafkas)

    def _producer(self, host: PluginHost) -> ProducerConfig | None:
        return self._with_plugins(
            ProducerConfig, "producer", host, {"interceptors": lambda: host.producer_interceptors}
        )

    def _with_plugins(
        self,
        model: type[M],
        name: str,
        host: PluginHost,
        lists: Mapping[str, _Offered],
        one: Mapping[str, _Offered] | None = None,
        without: Collection[str] = (),
    ) -> M | None:
        """Validates a section with plugins: each key in `lists` holds a list of them, each key in `one` a single
        one; the keys `without` are not the model's."""
        section = {key: value for key, value in self._section((name,)).items() if key not in without}
        for single, offered in (one or {}).items():
            if section.get(single) is not None:
                section[single] = self._chosen((name, single), offered(), section[single])
        for several, offered in lists.items():
            if section.get(several) is not None:
                section[several] = self._choices((name, several), offered(), section[several])
        self._codec((name, "compression.type"), section.get("compression.type"), host)
        return self._model(model, section, (name,))

    def _codec(self, path: Path, name: Any, host: PluginHost) -> None:
        ours = ("none", "uncompressed", "producer")
        if isinstance(name, str) and name not in ours and name not in host.codecs.names():
            near = nearest(name, [*ours, *host.codecs.names()])
            hint = f"; did you mean {near}?" if near else ""
            self._found(path, f"unknown codec {name!r}{hint} (there are: {', '.join(host.codecs.names())})")

    def _consumer(self, host: PluginHost) -> ConsumerConfig | None:
        config = self._with_plugins(
            ConsumerConfig, "consumer", host, {"interceptors": lambda: host.consumer_interceptors}
        )
        if config is None or config.group_protocol is not None:
            return config
        # registry is the default where the file names a coordination (design D6); without one there is no reaching it
        protocol = "registry" if "coordination" in self._tree else "classic"
        return config.model_copy(update={"group_protocol": protocol})

    def _serdes(self, host: PluginHost) -> dict[str, PluginChoice]:
        found = {}
        for name in self._section(("serdes",)):
            path = ("serdes", name)
            choice = self._plugin(path, host.serdes, name, self._section(path), path, ())
            if choice is not None:
                found[name] = choice
        return found

    def _topics(self, host: PluginHost) -> dict[str, TopicSettings]:
        found = {}
        for name in self._section(("topics",)):
            wrong = name_problem(name)
            if wrong:
                self._found(("topics", name), wrong)
                continue
            topic = self._topic(("topics", name), host)
            if topic is not None:
                found[name] = topic
        return found

    def _topic(self, path: Path, host: PluginHost) -> TopicSettings | None:
        section = self._section(path)
        config = self._section((*path, "config"))
        self._topic_config((*path, "config"), config, host)
        own = {name: section.pop(name) for name in list(section) if name not in TOPIC_KEYS}
        section["config"] = {k: _text(v) for k, v in config.items()}
        if section.get("schema") is not None:
            section.setdefault("serde", DEFAULT_SERDE)
        for name in [
            name for name in own if name in TOPIC_DEFINITIONS and section.get("serde") in (None, DEFAULT_SERDE)
        ]:
            del own[name]
            self._found((*path, name), "is a topic config: it belongs under this topic's `config:`")
        topic = self._model(TopicSettings, section, path)
        if "envelope" in section:
            self._plugin(path, host.envelopes, section["envelope"], {}, (*path, "envelope"))
        if section.get("serde") is None:
            for name in own:
                self._add(unknown_key((*path, name), TOPIC_KEYS))
        if topic is None:
            return None
        if topic.schema_file is not None and not topic.schema_file.is_file():
            self._found((*path, "schema"), f"no such file: {topic.schema_file}")
        if topic.serde is None:
            return topic
        options = self._serde_options(path, topic.serde, own, host)
        return None if options is None else topic.model_copy(update={"options": options})

    def _serde_options(self, path: Path, serde: str, own: Mapping[str, Any], host: PluginHost) -> BaseModel | None:
        """Returns the serde's configuration for a topic: the topic's own keys over those of the section `serdes`."""
        common = self._section(("serdes", serde)) if "serdes" in self._tree else {}
        choice = self._plugin(path, host.serdes, serde, {**common, **own}, (*path, "serde"), TOPIC_KEYS)
        return None if choice is None else choice.config

    def _topic_config(self, path: Path, config: Mapping[str, Any], host: PluginHost) -> None:
        for name, value in config.items():
            if name not in TOPIC_DEFINITIONS:
                self._found((*path, name), unknown("topic config", name, TOPIC_DEFINITIONS))
            else:
                for key, why in check_topic_key(name, value):
                    self._found((*path, key), why)
        self._codec((*path, "compression.type"), config.get("compression.type"), host)

    def _sinks(self, host: PluginHost) -> dict[str, SinkSettings]:
        found = {}
        for name in self._section(("sinks",)):
            sink = self._sink(name, host)
            if sink is not None:
                found[name] = sink
        return found

    def _mirrors(self) -> dict[str, MirrorConfig]:
        found: dict[str, MirrorConfig] = {}
        for name in self._section(("mirrors",)):
            path = ("mirrors", name)
            link = self._model(MirrorConfig, self._section(path), path)
            if why := name_problem(name):
                self._found(path, why)
            elif link is not None:
                found[name] = link
        return found

    def _sink(self, name: str, host: PluginHost) -> SinkSettings | None:
        path = ("sinks", name)
        section = self._section(path)
        plugin = section.pop(PLUGIN, "")
        own = {key: section.pop(key) for key in list(section) if key in own_keys()}
        choice = self._plugin(path, host.sinks_and_loads, plugin, section, also=(PLUGIN, *own_keys()))
        own.setdefault("group.id", f"sink-{name}")
        sink = self._model(SinkSettings, own, path)
        return None if sink is None or choice is None else sink.model_copy(update={"choice": choice})


def _no_section(name: str) -> str:
    """Returns the message for an unknown section, which may be a key: Kafka's files have no sections."""
    for section, model in (("broker", BrokerConfig), ("producer", ProducerConfig), ("consumer", ConsumerConfig)):
        if name in {definition.name for definition in definitions(model)}:
            return f"unknown section; the key {name} belongs under `{section}:`"
    return unknown("section", name, SECTIONS)


def _text(value: Any) -> str:
    """Returns a YAML value in the form in which Kafka's tools write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
