"""The broker's configuration while it runs: the file as last read, overridden by the cluster's settings (KIP-226).

Rules: one change at a time, applied whole or not at all. Listeners are called in the order of registration, on the
event loop, with the new configuration. A reload that fails leaves everything unchanged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from ...config.dynamic import apply_dynamic, check_dynamic, differing, overlaid
from ...config.section import values
from ...config.sections.broker import BrokerConfig
from ...errors import ConfigError, describe_error

log = logging.getLogger(__name__)

Apply = Callable[[BrokerConfig], Awaitable[None]]
Overlay = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Changed:
    """The effect of a change: new values in force by key; keys that need a restart; keys of the file that the
    cluster overrides."""

    applied: Mapping[str, str]
    restart: tuple[str, ...] = ()
    overridden: tuple[str, ...] = ()


class LiveConfig:
    """`current` is in force; `file` is the part of it from the file; `for_all` and `for_this` are the cluster's
    settings; `elsewhere`: keys of Kafka's brokers that are in other sections of the file, with the values in force."""

    def __init__(self, file: BrokerConfig, elsewhere: Overlay | None = None) -> None:
        self.file = file
        self.elsewhere: Overlay = elsewhere or {}
        self.for_all: Overlay = {}
        self.for_this: Overlay = {}
        self.current = file
        self._said: tuple[Overlay, Overlay] = ({}, {})
        self._appliers: list[Apply] = []
        self._lock = asyncio.Lock()

    def on_change(self, apply: Apply) -> None:
        self._appliers.append(apply)

    def begin(self, for_all: Overlay, for_this: Overlay) -> None:
        """Applies the cluster's settings at the start, before there is a listener."""
        self._take_over(for_all, for_this)
        self.current = self._overlaid(self.file)

    async def reload(self, wanted: BrokerConfig) -> Changed:
        """Applies the file's new content. Raises `ConfigError` if that is not possible; nothing has then changed."""
        async with self._lock:
            file, restart = apply_dynamic(self.file, wanted)
            overridden = tuple(k for k in differing(self.file, file) if k in {**self.for_all, **self.for_this})
            applied = await self._apply(overlaid(file, self.for_all, self.for_this))
            self.file = file
            return Changed(applied, restart, overridden)

    async def overlay(self, for_all: Overlay, for_this: Overlay) -> None:
        """Applies the cluster's present settings; those that cannot be applied are skipped, with one line in the
        log."""
        async with self._lock:
            if (for_all, for_this) == self._said:
                return
            self._take_over(for_all, for_this)
            applied = await self._apply(self._overlaid(self.file))
            for name, value in applied.items():
                log.info("%s is now %s, as set in the cluster", name, value)

    def _take_over(self, for_all: Overlay, for_this: Overlay) -> None:
        self._said = (for_all, for_this)
        self.for_all, self.for_this = _known(for_all), _known(for_this)

    def _overlaid(self, file: BrokerConfig) -> BrokerConfig:
        try:
            return overlaid(file, self.for_all, self.for_this)
        except ConfigError as error:
            log.error("the cluster's configuration of this broker is left out: %s", error)
            self.for_all, self.for_this = {}, {}
            return file

    async def _apply(self, new: BrokerConfig) -> dict[str, str]:
        changed = differing(self.current, new)
        self.current = new
        if changed:
            for apply in self._appliers:
                try:
                    await apply(new)
                except Exception as error:  # the other listeners must still be called
                    log.error("a changed configuration could not be applied everywhere: %s", describe_error(error))
        shown = values(new)
        return {name: shown[name] for name in changed}


def _known(overlay: Overlay) -> dict[str, str]:
    """Returns the settings without unknown keys, which another release may have written."""
    found = {}
    for name, value in overlay.items():
        try:
            check_dynamic(name)
            found[name] = value
        except ConfigError as error:
            log.warning("the cluster's configuration of this broker: %s", error)
    return found
