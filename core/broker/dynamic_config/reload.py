"""Reads the configuration file again while the broker runs, and reports the outcome.

Rules: a file that is wrong changes nothing. The outcome of the last reload is logged, and written to
`reload-outcome.json` in the log directory for `klamm config reload`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ...config.settings import Settings, load_settings
from ...errors import KlammError, StorageError
from ...log.segment.file_operations import write_atomically
from ...process_log import ProcessLog
from ..workers import Workers
from .live_config import LiveConfig

log = logging.getLogger(__name__)

OUTCOME = "reload-outcome.json"
_SECTIONS = ("coordination", "offsets", "audit", "plugins")
"""Sections that a broker reads only at its start, besides `broker` and `log`."""


@dataclass(frozen=True)
class ReloadOutcome:
    """The outcome of a reload. `applied`: new values by key; `restart`: changed keys that need a restart;
    `overridden`: keys that the cluster's configuration overrides; `error`: why nothing was changed, "" otherwise."""

    file: str
    applied: dict[str, str] = field(default_factory=dict)
    restart: tuple[str, ...] = ()
    overridden: tuple[str, ...] = ()
    error: str = ""

    def lines(self) -> list[str]:
        """Returns the outcome as lines of text."""
        if self.error:
            return [f"not reloaded, nothing has changed: {self.error}"]
        said = [f"{name} is {value!r} now" for name, value in self.applied.items()]
        if self.restart:
            said.append(f"needs a restart: {', '.join(self.restart)}")
        if self.overridden:
            said.append(f"set in the cluster, which goes before the file: {', '.join(self.overridden)}")
        return said or ["nothing has changed"]


_CODEC = TypeAdapter(ReloadOutcome)


def read_outcome(directory: Path) -> ReloadOutcome | None:
    """Returns the outcome of the last reload; None if there was none, or it cannot be read."""
    try:
        return _CODEC.validate_json((directory / OUTCOME).read_bytes())
    except (OSError, ValidationError):
        return None


class Reloader:
    """Reloads the configuration of a broker that was started with `settings`; `said` is the process's own log, if it
    has one."""

    def __init__(self, settings: Settings, live: LiveConfig, workers: Workers, said: ProcessLog | None) -> None:
        self._settings = settings
        self._live = live
        self._workers = workers
        self._said = said

    async def reload(self, file: Path) -> ReloadOutcome:
        try:
            outcome = await self._reload(file)
        except KlammError as error:
            outcome = ReloadOutcome(str(file), error="; ".join(str(error).splitlines()))
        for line in outcome.lines():
            log.log(logging.ERROR if outcome.error else logging.INFO, "%s: %s", file, line)
        try:
            path = self._live.current.log_dirs / OUTCOME
            await self._workers.disk(write_atomically, path, _CODEC.dump_json(outcome), durable=False)
        except StorageError as error:
            log.warning("the outcome of the reload cannot be stored: %s", error)
        return outcome

    async def _reload(self, file: Path) -> ReloadOutcome:
        wanted = (await self._workers.disk(load_settings, file)).for_broker(self._settings.index)
        changed = await self._live.reload(wanted.broker)
        applied = dict(changed.applied)
        if self._said is not None and wanted.log != self._settings.log:
            self._said.apply(wanted.log)
            self._settings = self._settings.with_(log=wanted.log)
            applied["log"] = wanted.log.model_dump_json()
        sections = [name for name in _SECTIONS if getattr(wanted, name) != getattr(self._settings, name)]
        restart = (*changed.restart, *sections)
        return ReloadOutcome(str(file), applied, restart, changed.overridden)
