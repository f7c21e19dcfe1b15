"""The configuration of `embedded`."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from klamm.plugin import ConfigPath


class EmbeddedConfig(BaseModel):
    """`path`: the file, created if it does not exist; on a local disk, not on a network file system."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True)

    path: ConfigPath = Field(default=Path("klamm-coordination.db"), validate_default=True)
    session_timeout_ms: int = Field(default=6000, alias="session.timeout.ms", ge=100, le=600_000)
