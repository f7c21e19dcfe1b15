"""The plugin host: the one typed facade through which the core reaches plugins (design D7).

Plugins come from the entry-point group `klamm` (the built-ins too) and from modules that YAML names under
`plugins.modules`. Hooks are called once; what they provide is kept by seam and name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module, metadata
from typing import Any, Generic, TypeVar, cast

import pluggy
from pydantic import BaseModel

from . import hookspecs
from .errors import PluginError
from .interfaces.audit import Audit
from .interfaces.authenticator import Authenticator
from .interfaces.authorizer import Authorizer
from .interfaces.codec import Codec
from .interfaces.command import Command
from .interfaces.coordination import Coordination
from .interfaces.envelope import Envelope
from .interfaces.interceptor import ConsumerInterceptor, ProducerInterceptor
from .interfaces.offsets import OffsetStore
from .interfaces.provider import Provider
from .interfaces.serde import Serde
from .interfaces.sink import Sink
from .interfaces.validator import TopicValidator

ENTRY_POINT_GROUP = "klamm"
T = TypeVar("T")


@dataclass(frozen=True)
class LoadedPlugin:
    """A row of `klamm plugins`: `source` is the distribution and version, or the module's file."""

    name: str
    module: str
    source: str
    hooks: tuple[str, ...]
    provides: tuple[str, ...]


class Providers(Generic[T]):
    """The providers of one seam, by name."""

    def __init__(self, seam: str, found: Iterable[tuple[str, Provider[T]]]) -> None:
        self._seam = seam
        self._by_name: dict[str, Provider[T]] = {}
        origin: dict[str, str] = {}
        for plugin, provider in found:
            if provider.name in self._by_name:
                both = f"{origin[provider.name]!r} and {plugin!r}"
                raise PluginError(f"two plugins provide the {seam} {provider.name!r}: {both}; uninstall one")
            self._by_name[provider.name] = provider
            origin[provider.name] = plugin

    def names(self) -> list[str]:
        return sorted(self._by_name)

    def listed(self) -> str:
        """The names, for people."""
        return ", ".join(self.names()) or "none"

    def get(self, name: str) -> Provider[T]:
        """`PluginError` with the nearest name when there is none."""
        if name in self._by_name:
            return self._by_name[name]
        near = difflib.get_close_matches(name, self._by_name, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise PluginError(f"unknown {self._seam} {name!r}{hint} (there are: {self.listed()})")

    def create(self, name: str, config: Mapping[str, Any] | BaseModel | None = None, *more: Any) -> T:
        """The object, from a validated config model or from raw values (`ValidationError` if wrong)."""
        provider = self.get(name)
        model = config if isinstance(config, BaseModel) else provider.config.model_validate(dict(config or {}))
        return provider.create(model, *more)


class PluginHost:
    """All plugins of a process, loaded once."""

    def __init__(self, modules: Iterable[str] = ()) -> None:
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._sources: dict[str, str] = {}
        for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
            dist = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
            self._register(
                point.name if point.dist is None or point.dist.name == "klamm" else f"{point.dist.name}:{point.name}",
                point.load,
                dist,
            )
        for name in modules:
            self._register(name, lambda name=name: import_module(name), name)  # type: ignore[misc]
            if not self._manager.get_hookcallers(self._manager.get_plugin(name)):
                raise PluginError(f"plugin {name!r} has no hook: none of its functions is marked @klamm.hookimpl")
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise PluginError(f"a plugin implements a hook that does not exist: {error}") from error
        hook = self._manager.hook
        self.codecs: Providers[Codec] = self._collect("codec", hook.klamm_codecs)
        self.coordinations: Providers[Coordination] = self._collect("coordination", hook.klamm_coordinations)
        self.offset_stores: Providers[OffsetStore] = self._collect("offset store", hook.klamm_offset_stores)
        self.envelopes: Providers[Envelope] = self._collect("envelope", hook.klamm_envelopes)
        self.serdes: Providers[Serde] = self._collect("serde", hook.klamm_serdes)
        self.audits: Providers[Audit] = self._collect("audit", hook.klamm_audits)
        self.sinks: Providers[Sink] = self._collect("sink", hook.klamm_sinks)
        self.producer_interceptors: Providers[ProducerInterceptor] = self._collect(
            "producer interceptor", hook.klamm_producer_interceptors
        )
        self.consumer_interceptors: Providers[ConsumerInterceptor] = self._collect(
            "consumer interceptor", hook.klamm_consumer_interceptors
        )
        self.topic_validators: Providers[TopicValidator] = self._collect("topic validator", hook.klamm_topic_validators)
        self.authenticators: Providers[Authenticator] = self._collect("authenticator", hook.klamm_authenticators)
        self.authorizers: Providers[Authorizer] = self._collect("authorizer", hook.klamm_authorizers)
        self.commands: list[Command] = [c for _, c in _offers(hook.klamm_commands)]

    def _register(self, name: str, load: Callable[[], Any], source: str) -> None:
        try:
            self._manager.register(load(), name)
        except Exception as error:  # a third party's import may raise anything
            raise PluginError(f"plugin {name!r} ({source}) cannot be loaded: {error!r}") from error
        self._sources[name] = source

    def _collect(self, seam: str, hook: pluggy.HookCaller) -> Providers[Any]:
        return Providers(seam, _offers(hook))

    def loaded(self) -> list[LoadedPlugin]:
        """What is loaded, from where, and which hooks each implements; sorted by name."""
        rows = []
        for name, plugin in self._manager.list_name_plugin():
            callers = self._manager.get_hookcallers(plugin) or []
            provides = [offer.name for c in callers for owner, offer in _offers(c) if owner == name]
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


def _offers(hook: pluggy.HookCaller) -> list[tuple[str, Any]]:
    """What each plugin returned from one hook, with the plugin's name."""
    found: list[tuple[str, Any]] = []
    for implementation in hook.get_hookimpls():
        name = implementation.plugin_name
        try:
            found += [(name, offer) for offer in cast("Iterable[Any]", implementation.function())]
        except Exception as error:  # a third party's hook may raise anything
            raise PluginError(f"plugin {name!r}: hook {hook.name} raised {error!r}") from error
    return found


@lru_cache(maxsize=8)
def plugin_host(modules: tuple[str, ...] = ()) -> PluginHost:
    """The process's host for these extra modules; loading is done once."""
    return PluginHost(modules)
