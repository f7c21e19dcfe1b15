"""The configuration of a plugin that has none."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["NoConfig"]


class NoConfig(BaseModel):
    """No keys: any key is refused."""

    model_config = ConfigDict(extra="forbid")
