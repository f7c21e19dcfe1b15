"""The plugin host: the one typed facade through which the core reaches plugins (design D7).

Plugins come from the entry-point group `klamm` (the built-ins too) and from modules that YAML names under
`plugins.modules`. Each hook is called once; its providers are kept by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module, metadata
from inspect import getattr_static
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar, cast

import pluggy

from . import hookspecs
from .errors import KlammError, PluginError, describe_error

if TYPE_CHECKING:  # annotations only: the command line lists commands without loading what the other hooks return
    from pydantic import BaseModel

    from .interfaces.audit import Audit
    from .interfaces.codec import Codec
    from .interfaces.command import Command
    from .interfaces.coordination import Coordination
    from .interfaces.envelope import Envelope
    from .interfaces.interceptor import ConsumerInterceptor, ProducerInterceptor
    from .interfaces.load import Load
    from .interfaces.offsets import OffsetStore
    from .interfaces.provider import Provider
    from .interfaces.security.authenticator import Authenticator
    from .interfaces.security.authorizer import Authorizer
    from .interfaces.serde import Serde, SerdeContext
    from .interfaces.service import BrokerContext, Service
    from .interfaces.sink import BatchSink, Sink
    from .interfaces.validator import TopicValidator
    from .records.codecs import CodecTable

__all__ = [
    "ENTRY_POINT_GROUP",
    "LoadedPlugin",
    "PluginHost",
    "Providers",
    "mandatory",
    "plugin_host",
]

ENTRY_POINT_GROUP = "klamm"
_INTERFACES = f"{__package__}.interfaces"
P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class LoadedPlugin:
    """A row of `klamm plugins`: `source` is the distribution and version, or the module's file."""

    name: str
    module: str
    source: str
    hooks: tuple[str, ...]
    provides: tuple[str, ...]


class Providers(Generic[P, T_co]):
    """The providers of one hook, by name."""

    def __init__(
        self, kind: str, found: Iterable[tuple[str, Provider[P, T_co]]], interfaces: tuple[str, ...] = ()
    ) -> None:
        """`interfaces`: those of which a provider makes one, as `module:Class` below `klamm.core.interfaces`."""
        self._kind = kind
        self._interfaces = interfaces
        self._by_name: dict[str, Provider[P, T_co]] = {}
        origin: dict[str, str] = {}
        for plugin, provider in found:
            if provider.name in self._by_name:
                both = f"{origin[provider.name]!r} and {plugin!r}"
                raise PluginError(f"two plugins provide the {kind} {provider.name!r}: {both}; uninstall one")
            self._by_name[provider.name] = provider
            origin[provider.name] = plugin
        self._origin = origin

    def names(self) -> list[str]:
        return sorted(self._by_name)

    def listed(self) -> str:
        """Returns the names as a text."""
        return ", ".join(self.names()) or "none"

    def get(self, name: str) -> Provider[P, T_co]:
        """Returns the provider; raises `PluginError` with the nearest name if there is none."""
        if name in self._by_name:
            return self._by_name[name]
        import difflib  # a broker without mistakes in its configuration does not need it

        near = difflib.get_close_matches(name, self._by_name, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise PluginError(f"unknown {self._kind} {name!r}{hint} (there are: {self.listed()})")

    def create(
        self, name: str, config: Mapping[str, object] | BaseModel | None = None, *args: P.args, **kwargs: P.kwargs
    ) -> T_co:
        """Creates the object from a validated config model or from raw values (`ValidationError` if they are wrong).
        Raises `PluginError` if the plugin's `create` fails, or returns an object that lacks a mandatory member.
        """
        provider = self.get(name)
        if config is None or isinstance(config, Mapping):
            config = provider.config.model_validate(dict(config or {}))
        try:
            made = provider.create(config, *args, **kwargs)
        except KlammError:
            raise
        except Exception as error:  # a third party's function may raise anything
            raise PluginError(f"{self._of(name)} cannot be made: {describe_error(error)}") from error
        self._check(name, made)
        return made

    def _of(self, name: str) -> str:
        return f"the {self._kind} {name!r} of plugin {self._origin[name]!r}"

    def _check(self, name: str, made: object) -> None:
        missing: list[list[str]] = []
        for interface in self._interfaces:
            module, _, kind = interface.partition(":")
            wanted = mandatory(getattr(import_module(f"{_INTERFACES}.{module}"), kind))
            missing.append([member for member in wanted if not _has(made, member)])
            if not missing[-1]:
                return
        if missing:
            least, interface = min(zip(missing, self._interfaces, strict=True), key=lambda pair: len(pair[0]))
            kind = interface.partition(":")[2]
            raise PluginError(
                f"{self._of(name)}: `create` returned {made!r:.100}, which is no {kind}: it lacks {', '.join(least)}"
            )


def mandatory(interface: type) -> list[str]:
    """Returns the members of a protocol, in its order: every implementation must have all of them."""
    found: dict[str, None] = {}
    for base in reversed(interface.__mro__):
        if getattr(base, "_is_protocol", False):
            found |= dict.fromkeys([*vars(base).get("__annotations__", {}), *vars(base)])
    return [name for name in found if not name.startswith("_")]


def _has(made: object, member: str) -> bool:
    """Returns whether the object has the member, without running a property, which may need a started object."""
    return getattr_static(made, member, None) is not None or "__getattr__" in dir(type(made))


class PluginHost:
    """All plugins of a process. Modules are imported when it is made; a hook is called when it is first needed."""

    def __init__(self, modules: Iterable[str] = ()) -> None:
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._sources: dict[str, str] = {}
        self._offered: dict[str, list[tuple[str, object]]] = {}
        described: dict[int, tuple[str, str]] = {}  # reading the metadata of a distribution takes milliseconds
        for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
            if id(point.dist) not in described:
                found = point.dist and point.dist.metadata
                described[id(point.dist)] = (found["Name"], found["Version"]) if found else ("klamm", "")
            owner, version = described[id(point.dist)]
            self._register(
                point.name if owner == "klamm" else f"{owner}:{point.name}",
                point.load,
                f"{owner} {version}" if version else point.value,
            )
        for name in modules:
            self._register(name, lambda name=name: import_module(name), name)  # type: ignore[misc]
            if not self._manager.get_hookcallers(self._manager.get_plugin(name)):
                raise PluginError(f"plugin {name!r} has no hook: none of its functions is marked @klamm.hookimpl")
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise PluginError(f"a plugin implements a hook that does not exist: {error}") from error

    @cached_property
    def codecs(self) -> Providers[[], Codec]:
        return self._collect("codec", "klamm_codecs", of=("codec:Codec",))

    @cached_property
    def coordinations(self) -> Providers[[], Coordination]:
        return self._collect("coordination", "klamm_coordinations", of=("coordination:Coordination",))

    @cached_property
    def offset_stores(self) -> Providers[[Coordination], OffsetStore]:
        return self._collect("offset store", "klamm_offset_stores", of=("offsets:OffsetStore",))

    @cached_property
    def envelopes(self) -> Providers[[], Envelope]:
        return self._collect("envelope", "klamm_envelopes", of=("envelope:Envelope",))

    @cached_property
    def serdes(self) -> Providers[[SerdeContext], Serde]:
        return self._collect("serde", "klamm_serdes", of=("serde:Serde",))

    @cached_property
    def audits(self) -> Providers[[], Audit]:
        return self._collect("audit", "klamm_audits", of=("audit:Audit",))

    @cached_property
    def sinks(self) -> Providers[[], Sink | BatchSink]:
        return self._collect(
            "sink",
            "klamm_sinks",
            of=(
                "sink:Sink",
                "sink:BatchSink",
            ),
        )

    @cached_property
    def loads(self) -> Providers[[], Load]:
        return self._collect("load", "klamm_loads", of=("load:Load",))

    @cached_property
    def sinks_and_loads(self) -> Providers[[], Sink | BatchSink | Load]:
        """The providers that a section of `sinks` may name."""
        return self._collect("sink", "klamm_sinks", "klamm_loads")

    @cached_property
    def producer_interceptors(self) -> Providers[[], ProducerInterceptor]:
        return self._collect(
            "producer interceptor", "klamm_producer_interceptors", of=("interceptor:ProducerInterceptor",)
        )

    @cached_property
    def consumer_interceptors(self) -> Providers[[], ConsumerInterceptor]:
        return self._collect(
            "consumer interceptor", "klamm_consumer_interceptors", of=("interceptor:ConsumerInterceptor",)
        )

    @cached_property
    def topic_validators(self) -> Providers[[], TopicValidator]:
        return self._collect("topic validator", "klamm_topic_validators", of=("validator:TopicValidator",))

    @cached_property
    def services(self) -> Providers[[BrokerContext], Service]:
        return self._collect("service", "klamm_services", of=("service:Service",))

    @cached_property
    def authenticators(self) -> Providers[[], Authenticator]:
        return self._collect("authenticator", "klamm_authenticators", of=("security.authenticator:Authenticator",))

    @cached_property
    def authorizers(self) -> Providers[[], Authorizer]:
        return self._collect("authorizer", "klamm_authorizers", of=("security.authorizer:Authorizer",))

    @cached_property
    def commands(self) -> list[Command]:
        offers: list[tuple[str, Command]] = self._offers("klamm_commands")
        return [command for _, command in offers]

    def codec_table(self) -> CodecTable:
        """Returns the table of all codecs that plugins provide, with their default configurations."""
        from .records.codecs import CodecTable

        return CodecTable(self.codecs.create(name) for name in self.codecs.names())

    def call_hooks(self) -> None:
        """Calls every hook that was not called yet. Raises `PluginError` if one raises, or two provide the same
        name.
        """
        for name, attribute in vars(PluginHost).items():
            if isinstance(attribute, cached_property):
                getattr(self, name)

    def _register(self, name: str, load: Callable[[], object], source: str) -> None:
        try:
            self._manager.register(load(), name)
        except Exception as error:  # a third party's import may raise anything
            raise PluginError(f"plugin {name!r} ({source}) cannot be loaded: {error!r}") from error
        self._sources[name] = source

    def _collect(self, kind: str, *hooks: str, of: tuple[str, ...] = ()) -> Providers[P, T]:
        offers: list[tuple[str, Provider[P, T]]] = []
        for hook in hooks:
            offers += self._offers(hook)
        return Providers(kind, offers, of)

    def _offers(self, hook: str) -> list[tuple[str, T]]:
        """Returns what each plugin returned from one hook, with the plugin's name. The hook is called once."""
        if hook not in self._offered:
            self._offered[hook] = _call(getattr(self._manager.hook, hook))
        return cast("list[tuple[str, T]]", self._offered[hook])

    def loaded(self) -> list[LoadedPlugin]:
        """Returns the loaded plugins with their sources and the hooks that each implements, sorted by name."""
        rows = []
        for name, plugin in self._manager.list_name_plugin():
            callers = self._manager.get_hookcallers(plugin) or []
            offers: list[tuple[str, Provider[..., object] | Command]] = []
            for caller in callers:
                offers += self._offers(caller.name)
            provides = [offer.name for owner, offer in offers if owner == name]
            rows.append(
                LoadedPlugin(
                    name,
                    getattr(plugin, "__name__", repr(plugin)),
                    self._sources[name],
                    tuple(sorted(c.name for c in callers)),
                    tuple(provides),
                )
            )
        return sorted(rows, key=lambda row: row.name)


def _call(hook: pluggy.HookCaller) -> list[tuple[str, object]]:
    """Calls the hook of each plugin; returns the results with the plugin's name."""
    found: list[tuple[str, object]] = []
    for implementation in hook.get_hookimpls():
        name = implementation.plugin_name
        try:
            found += [(name, offer) for offer in cast("Iterable[object]", implementation.function())]
        except Exception as error:  # a third party's hook may raise anything
            raise PluginError(f"plugin {name!r}: hook {hook.name} raised {error!r}") from error
    return found


@lru_cache(maxsize=8)
def plugin_host(modules: tuple[str, ...] = ()) -> PluginHost:
    """Returns the process's host for these extra modules. Raises `PluginError` if a plugin cannot be loaded; a hook is
    called when it is first needed.
    """
    return PluginHost(modules)
